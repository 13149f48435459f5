"""The CPU devices "cpu" and "cpu:scalar": their lane width, their features, and compiled kernels."""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from camshaft.backends.cpu.compile import MODULE_FLAGS, compile_module, host_target, load_kernel
from camshaft.backends.cpu.features import names
from camshaft.backends.cpu.loaded import ENTRY as ENTRY
from camshaft.backends.cpu.loaded import CpuKernel as CpuKernel
from camshaft.backends.cpu.loaded import Library, loaded, lock
from camshaft.backends.cpu.loaded import counts as counts
from camshaft.backends.device import HOST, Command, DeviceRun, Memory
from camshaft.emit.target import CpuTarget, native_lanes
from camshaft.errors import BackendError, count
from camshaft.lang import CompileRequest
from camshaft.lang.kernel import language_digest
from camshaft.store.files import digest_of
from camshaft.store.kernels import UNNAMED, CachedKernel, symbol_of
from camshaft.store.store import store


@dataclass(frozen=True)
class HostDevice:
    """Base of devices whose kernels run in this process: a plan calls kernels by address, on its own memory."""

    name: str
    backend: str
    lanes: int
    features: frozenset[str]
    architecture: str
    space: str = HOST
    limits: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}: {self.backend}, {self.architecture}, {count(self.lanes, 'lane')} of f32)"

    def allocate(self, nbytes: int) -> Memory:
        """Raises BackendError: CPU kernels use host memory."""
        raise BackendError(f"{self.name} runs on the process's own memory; give it NumPy arrays")

    def bind(self, commands: Sequence[Command], n_extents: int, *, timed: bool = False) -> DeviceRun:
        """Raises BackendError: plans call CPU kernels by address."""
        raise BackendError(f"{self.name} runs kernels by address, in a plan's own executor")


@dataclass(frozen=True, repr=False)
class CpuDevice(HostDevice):
    """`backend` is 'simd' (LLVM's vectorizers on) or 'scalar' (one lane, vectorizers off)."""

    def refusal(self, request: CompileRequest) -> str | None:
        """Returns None: the CPU supports the whole kernel language."""
        return None

    def compile(self, request: CompileRequest) -> CpuKernel:
        """Returns the kernel's machine code from memory or the store; otherwise traces, verifies, emits and compiles it."""
        width = 1 if self.backend == "scalar" else request.lanes or self.lanes
        target = CpuTarget(self.architecture, width, self.features)

        def source(symbol: str) -> str:
            from camshaft.emit.llvm.module import emit  # takes 10 ms; not needed if all kernels are cached

            return emit(request.trace(), target, symbol)

        signature = digest_of(request.key(), self.backend, target.key())
        return native_function(request.kernel.name, signature, source, self.backend != "scalar")


_functions: dict[str, CpuKernel] = {}  # by first key


def native_function(name: str, signature: str, source: Callable[[str], str], vectorize: bool = True) -> CpuKernel:
    """Compiles the LLVM IR of `source(symbol)` at most once per signature and machine. Signatures with the same IR share
    one object."""
    first = _key(signature)
    return host_kernel(name, first, lambda: _object(first, lambda: source(UNNAMED), vectorize))


def host_kernel(
    name: str, first: str, make: Callable[[], CachedKernel], load: Callable[[bytes], Library] = load_kernel
) -> CpuKernel:
    """Returns the kernel with this first key. Makes its object and loads it if the key is new in this process."""
    with lock:
        found = _functions.get(first)
        if found is None:
            started = time.perf_counter()
            made = make()
            found = _functions[first] = loaded(name, made.second, made.data, load)
            counts.seconds += time.perf_counter() - started
        return found


def code_digest(kernel: CpuKernel) -> str | None:
    """Returns the SHA-256 of the kernel's object without its exported name: equal for equal code. None if the store does
    not have the object."""
    data = store().kernels.object(kernel.key) if kernel.key else None
    if data is None:
        return None
    symbol = symbol_of(kernel.key).encode()
    return digest_of(data.replace(symbol, b"-" * len(symbol)))


def object_code(signature: str, source: Callable[[], str], vectorize: bool = True) -> bytes:
    """Returns the object of the LLVM IR `source()`, which `signature` identifies. Compiles and stores it if it is new."""
    return object_found(signature, source, vectorize).data


def object_found(signature: str, source: Callable[[], str], vectorize: bool = True) -> CachedKernel:
    """Like `object_code`, with the object's second key."""
    return _object(_key(signature), source, vectorize)


def _key(signature: str) -> str:
    return digest_of(signature, _machine_key())


def _object(first: str, source: Callable[[], str], vectorize: bool) -> CachedKernel:
    options = digest_of(vectorize, repr(host_target()), MODULE_FLAGS)
    return cached_object(first, source, options, functools.partial(compile_module, vectorize=vectorize))


_watch: Callable[[bool], None] | None = None


def watch_builds(watch: Callable[[bool], None]) -> None:
    """Sets what is called with True before each compilation of this process and with False after it."""
    global _watch
    _watch = watch


def _watched(build: Callable[[str], bytes], text: str) -> bytes:
    if _watch is None:
        return build(text)
    _watch(True)
    try:
        return build(text)
    finally:
        _watch(False)


def cached_object(first: str, source: Callable[[], str], options: str, build: Callable[[str], bytes]) -> CachedKernel:
    """Returns the object with this first key from the store, or builds it of `source()`, and counts it."""
    found = store().kernels.get_or_build(first, source, options, lambda text: _watched(build, text))
    counts.compiled += found.built
    counts.loaded += not found.built
    return found


@functools.cache
def _machine_key() -> str:
    return f"{host_target()!r}|{MODULE_FLAGS}|{language_digest('emit/*.py', 'emit/llvm/**/*.py')}"


@functools.cache
def cpu_device(backend: str = "simd") -> CpuDevice:
    """Returns this machine's CPU as a device of the backend 'simd' or 'scalar'."""
    features = names(host_target().features)
    lanes = 1 if backend == "scalar" else native_lanes(features)
    name = "cpu:scalar" if backend == "scalar" else "cpu"
    return CpuDevice(name, backend, lanes, features, platform.machine().lower())
