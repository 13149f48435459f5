"""Load compiled C into this process: an object through LLVM's loader, or a shared library from a private folder."""

from __future__ import annotations

import ctypes
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from camshaft.backends.c.compilers import Compiler, compile_c
from camshaft.backends.cpu.compile import NativeLibrary, load_kernel, process_symbol
from camshaft.errors import BackendError

_RELOCATABLE, _SYMBOLS, _RELOCATIONS, _ALLOCATED = 1, 2, 4, 2
_TABLE_OF_ADDRESSES = "_GLOBAL_OFFSET_TABLE_"


@dataclass(frozen=True)
class Machine:
    """The relocation types that LLVM's loader supports on an architecture. `calls` are direct calls, which may only target
    functions of the object itself."""

    known: frozenset[int]
    calls: frozenset[int]


# by ELF machine number: x86-64 and AArch64
_MACHINES: dict[int, Machine] = {
    62: Machine(frozenset({0, 1, 2, 4, 9, 10, 11, 24, 41, 42}), frozenset({2, 4})),
    183: Machine(
        frozenset({0, 257, 258, 260, 261, 274, 275, 277, 278, 282, 283, 284, 285, 286, 299, 311, 312}),
        frozenset({282, 283}),
    ),
}


@dataclass(frozen=True)
class _Section:
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


def refusal(data: bytes) -> str | None:
    """Returns None if LLVM's loader can load the object, else the reason."""
    try:
        return _refusal(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        return f"an object that cannot be read: {error}"


def _refusal(data: bytes) -> str | None:
    if data[:6] != b"\x7fELF\x02\x01":
        return "not a 64-bit little-endian ELF object"
    kind, number = struct.unpack_from("<HH", data, 16)
    machine = _MACHINES.get(number)
    if kind != _RELOCATABLE or machine is None:
        return f"an ELF file of type {kind} for machine {number}"
    sections = _sections(data)
    table = next((s for s in sections if s.kind == _SYMBOLS), None)
    if table is None:
        return "an object without symbols"
    names = [_symbol(data, table, sections[table.link], i) for i in range(table.size // 24)]
    return _missing(names) or _unknown(data, sections, machine, names)


def _sections(data: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    rows = (struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count))
    return [_Section(row[1], row[2], row[4], row[5], row[6], row[7]) for row in rows]


def _symbol(data: bytes, table: _Section, strings: _Section, index: int) -> str | None:
    """Returns the name of an undefined symbol, None for a symbol that the object defines."""
    name, _, _, section = struct.unpack_from("<IBBH", data, table.offset + 24 * index)
    if section != 0 or name == 0:
        return None
    start = strings.offset + name
    return data[start : data.index(b"\0", start)].decode("ascii")


def _missing(names: list[str | None]) -> str | None:
    for name in names:
        if name and name != _TABLE_OF_ADDRESSES and process_symbol(name) is None:
            return f"it calls {name}, which this process does not have"
    return None


def _unknown(data: bytes, sections: list[_Section], machine: Machine, names: list[str | None]) -> str | None:
    for kind, symbol in _relocations(data, sections):
        if kind not in machine.known:
            return f"a relocation of kind {kind}"
        if kind in machine.calls and names[symbol]:
            return f"{names[symbol]} is called directly"
    return None


def _relocations(data: bytes, sections: list[_Section]) -> Iterator[tuple[int, int]]:
    """Yields (type, symbol index) of each relocation in the mapped sections."""
    for section in sections:
        if section.kind == _RELOCATIONS and sections[section.info].flags & _ALLOCATED:
            for place in range(section.offset, section.offset + section.size, 24):
                (info,) = struct.unpack_from("<Q", data, place + 8)
                yield info & 0xFFFFFFFF, info >> 32


# The first byte of a stored binary: how to load it.
_OBJECT, _SHARED = b"o", b"s"


@dataclass(frozen=True)
class SharedLibrary:
    """A kernel's shared library. Its code stays mapped for the lifetime of this value."""

    library: ctypes.CDLL = field(repr=False)

    def address(self, name: str) -> int:
        """Returns the address of an exported function. BackendError if there is none with that name."""
        function = getattr(self.library, name, None)
        if function is None:
            raise BackendError(f"the shared library of a kernel has no function {name!r}")
        return ctypes.cast(function, ctypes.c_void_p).value or 0


def build(compiler: Compiler, text: str) -> bytes:
    """Compiles C text to an object if LLVM's loader can load it, else to a shared library. Errors as `compile_c`."""
    made = compile_c(compiler, text)
    if refusal(made) is None:
        return _OBJECT + made
    return _SHARED + compile_c(compiler, text, shared=True)


def load(data: bytes) -> NativeLibrary | SharedLibrary:
    """Maps and links a result of `build`. BackendError if it does not load."""
    kind, made = data[:1], data[1:]
    if kind == _SHARED:
        return _open(made)
    reason = refusal(made)
    if reason is not None:
        raise BackendError(f"a stored object cannot be loaded: {reason}")
    return load_kernel(made)


def _open(made: bytes) -> SharedLibrary:
    """Loads a shared library from a temporary file. Removes the file at once, or at process exit if an open library cannot
    be removed."""
    folder = tempfile.TemporaryDirectory(prefix="camshaft-", ignore_cleanup_errors=True)  # of mode 0700
    with folder as name:
        path = Path(name) / "kernel.so"
        path.write_bytes(made)
        try:
            return SharedLibrary(ctypes.CDLL(str(path)))
        except OSError as error:
            raise BackendError(f"the shared library of a kernel does not load: {error}") from error
