"""What a C compiler made, in this process: an object through LLVM's loader, a shared library through a private folder."""

from __future__ import annotations

import ctypes
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from camshaft.backends.c.compilers import Compiler, compile_c
from camshaft.backends.c.relocatable import refusal
from camshaft.backends.cpu.compile import NativeLibrary, load_kernel
from camshaft.errors import BackendError

# The first byte of what the store keeps says how it is loaded.
_OBJECT, _SHARED = b"o", b"s"


@dataclass(frozen=True)
class SharedLibrary:
    """A shared library of ours. Its code stays mapped as long as this value lives."""

    library: ctypes.CDLL = field(repr=False)

    def address(self, name: str) -> int:
        """The address of an exported function. BackendError if there is none of that name."""
        function = getattr(self.library, name, None)
        if function is None:
            raise BackendError(f"the shared library of a kernel holds no function {name!r}")
        return ctypes.cast(function, ctypes.c_void_p).value or 0


def build(compiler: Compiler, text: str) -> bytes:
    """C text compiled: an object where LLVM's loader can take it, else a shared library. Errors as of `compile_c`."""
    made = compile_c(compiler, text)
    if refusal(made) is None:
        return _OBJECT + made
    return _SHARED + compile_c(compiler, text, shared=True)


def load(data: bytes) -> NativeLibrary | SharedLibrary:
    """What `build` made, mapped and linked. BackendError when it does not load."""
    kind, made = data[:1], data[1:]
    if kind == _SHARED:
        return _open(made)
    reason = refusal(made)
    if reason is not None:
        raise BackendError(f"an object that was kept cannot be loaded: {reason}")
    return load_kernel(made)


def _open(made: bytes) -> SharedLibrary:
    """The file is gone once it is mapped; where an open library cannot be removed, the folder stays until the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="camshaft-", ignore_cleanup_errors=True)  # of mode 0700
    with folder as name:
        path = Path(name) / "kernel.so"
        path.write_bytes(made)
        try:
            return SharedLibrary(ctypes.CDLL(str(path)))
        except OSError as error:
            raise BackendError(f"the shared library of a kernel does not load: {error}") from error
