"""The device "cpu:c": kernels emitted as C and built by the C compiler of the machine."""

from __future__ import annotations

import functools
import hashlib
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from camshaft.backends.c.compilers import Compiler, absent, find_compiler
from camshaft.backends.c.load import SharedLibrary, build, load
from camshaft.backends.cpu.compile import NativeLibrary, host_target
from camshaft.backends.cpu.device import ENTRY, count, counts
from camshaft.backends.device import HOST, Command, DeviceInfo, DeviceRun, Memory
from camshaft.emit.c.module import emit
from camshaft.emit.refusal import refusal
from camshaft.errors import BackendError
from camshaft.lang.kernel import CompileRequest, language_digest
from camshaft.store.kernels import UNNAMED, symbol_of
from camshaft.store.store import store

# The camshaft files that the C text depends on, besides lang/.
_SOURCES = ("emit/*.py", "emit/c/*.py", "emit/c_family/*.py", "emit/llvm/**/*.py", "backends/c/*.py")


@dataclass(frozen=True)
class CKernel:
    """Machine code with the entry ABI (args, first, last). `address` is valid for the lifetime of this value."""

    name: str
    address: int
    library: NativeLibrary | SharedLibrary = field(repr=False)

    def __call__(self, args: int, first: int, last: int) -> None:
        """Runs programs [first, last) on this thread; `args` is the argument block's address."""
        ENTRY(self.address)(args, first, last)


@dataclass(frozen=True)
class CDevice:
    """The CPU through a C compiler. Programs have one lane and explicit vectors of any width."""

    compiler: Compiler
    name: str = "cpu:c"
    backend: str = "c"
    lanes: int = 1
    features: frozenset[str] = frozenset()
    architecture: str = ""
    space: str = HOST
    limits: Mapping[str, int] = field(default_factory=dict)

    def refusal(self, request: CompileRequest) -> str | None:
        """Returns what C lacks for the kernel, by the instruction table, or None. KernelError for an invalid kernel."""
        return refusal(request.trace(), "c")

    def compile(self, request: CompileRequest) -> CKernel:
        """Returns the kernel's machine code from memory or the store; otherwise traces, verifies, emits and compiles it.

        BackendError with the compiler's first error and its C line.
        """
        key = hashlib.sha256(f"{request.key()}|{self.compiler.key()}|{_machine_key()}".encode()).hexdigest()

        def source(symbol: str) -> str:
            return emit(request.trace(), symbol)

        with _lock:
            found = _kernels.get(key)
            if found is None:
                started = time.perf_counter()
                found = _kernels[key] = self._made(request.kernel.name, key, source)
                counts.seconds += time.perf_counter() - started
            return found

    def _made(self, name: str, first: str, source: Callable[[str], str]) -> CKernel:
        options = f"{self.compiler.key()}|{_machine_key()}"
        build_text = functools.partial(build, self.compiler)
        found = store().kernels.get_or_build(first, lambda: source(UNNAMED), options, build_text)
        count(found)
        if found.second not in _shared:
            library = load(found.data)
            _shared[found.second] = CKernel(name, library.address(symbol_of(found.second)), library)
        shared = _shared[found.second]
        return shared if shared.name == name else CKernel(name, shared.address, shared.library)

    def allocate(self, nbytes: int) -> Memory:
        """Raises BackendError: CPU kernels use host memory."""
        raise BackendError(f"{self.name} runs on the process's own memory; give it NumPy arrays")

    def bind(self, commands: Sequence[Command], n_extents: int, *, timed: bool = False) -> DeviceRun:
        """Raises BackendError: plans call CPU kernels by address."""
        raise BackendError(f"{self.name} runs kernels by address, in a plan's own executor")


_kernels: dict[str, CKernel] = {}  # by first key
_shared: dict[str, CKernel] = {}  # by second key
_lock = threading.RLock()


@functools.cache
def _machine_key() -> str:
    host = host_target()
    return f"{host.triple}|{host.cpu}|{host.features}|{language_digest(*_SOURCES)}"


def make(index: int = 0) -> CDevice:
    """Returns the device. BackendError without a C compiler or for an index other than 0."""
    if index != 0:
        raise BackendError(f"no device 'cpu:c:{index}': there is one CPU")
    features = frozenset(f[1:] for f in host_target().features.split(",") if f.startswith("+"))
    return CDevice(find_compiler(), features=features, architecture=platform.machine().lower())


def devices() -> tuple[DeviceInfo, ...]:
    """Returns the row of `camshaft devices`."""
    reason = absent()
    description = "the CPU through C" if reason is not None else f"the CPU through C: {find_compiler().version}"
    return (DeviceInfo("cpu:c", "c", description, reason),)
