"""The CPU devices "cpu" and "cpu:scalar": their lane width, their features, and compiled kernels."""

from __future__ import annotations

import functools
import hashlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from camshaft.backends.cpu.compile import MODULE_FLAGS, compile_module, host_target
from camshaft.backends.cpu.features import names
from camshaft.backends.cpu.loaded import ENTRY as ENTRY
from camshaft.backends.cpu.loaded import CpuKernel as CpuKernel
from camshaft.backends.cpu.loaded import counts as counts
from camshaft.backends.cpu.loaded import loaded, lock
from camshaft.backends.device import HOST, Command, DeviceRun, Memory
from camshaft.emit.target import CpuTarget, native_lanes
from camshaft.errors import BackendError
from camshaft.lang import ir
from camshaft.lang.kernel import Constant, Kernel, constants_key, language_digest
from camshaft.lang.verifier.verify import verify
from camshaft.store.kernels import UNNAMED, CachedKernel, symbol_of
from camshaft.store.store import store


@dataclass(frozen=True)
class CpuDevice:
    """`backend` is 'simd' (LLVM's vectorizers on) or 'scalar' (one lane, vectorizers off)."""

    name: str
    backend: str
    lanes: int
    features: frozenset[str]
    architecture: str
    space: str = HOST
    limits: Mapping[str, int] = field(default_factory=dict)

    def refusal(
        self,
        kernel: Kernel,
        arrays: Sequence[ir.ArrayParam],
        scalars: Sequence[str],
        constants: Mapping[str, Constant],
        grid: Sequence[ir.GridDim],
        lanes: int | None = None,
    ) -> str | None:
        """None: the language is the CPU's own."""
        return None

    def allocate(self, nbytes: int) -> Memory:
        """BackendError: its kernels run on the process's own memory."""
        raise BackendError(f"{self.name} runs on the process's own memory; give it NumPy arrays")

    def bind(self, commands: Sequence[Command], n_extents: int, *, timed: bool = False) -> DeviceRun:
        """BackendError: plans run its kernels by address."""
        raise BackendError(f"{self.name} runs kernels by address, in a plan's own executor")

    def compile(
        self,
        kernel: Kernel,
        arrays: Sequence[ir.ArrayParam],
        scalars: Sequence[str],
        constants: Mapping[str, Constant],
        grid: Sequence[ir.GridDim],
        lanes: int | None = None,
    ) -> CpuKernel:
        """The kernel's machine code: from memory, else from the store, else traced, verified, emitted and compiled."""
        width = 1 if self.backend == "scalar" else lanes or self.lanes
        signature = f"{kernel.name}|{kernel.digest()}|{arrays!r}|{scalars!r}|{constants_key(constants)}|{grid!r}"
        target = CpuTarget(self.architecture, width, self.features)

        def source(symbol: str) -> str:
            from camshaft.emit.llvm.module import emit  # 10 ms, which a start that finds its kernels need not pay

            traced = kernel.trace(arrays, scalars, constants, grid)
            verify(traced)
            return emit(traced, target, symbol)

        return native_function(
            kernel.name, f"{signature}|{self.backend}|{target.key()}", source, self.backend != "scalar"
        )


_functions: dict[str, CpuKernel] = {}  # by first key


def native_function(name: str, signature: str, source: Callable[[str], str], vectorize: bool = True) -> CpuKernel:
    """The function that `source(symbol)` gives LLVM IR for, compiled at most once per signature and machine, and once for all
    signatures that come to the same IR."""
    first = _key(signature)
    with lock:
        found = _functions.get(first)
        if found is None:
            started = time.perf_counter()
            found = _functions[first] = _make(name, first, source, vectorize)
            counts.seconds += time.perf_counter() - started
        return found


def _make(name: str, first: str, source: Callable[[str], str], vectorize: bool) -> CpuKernel:
    found = _object(first, lambda: source(UNNAMED), vectorize)
    return loaded(name, found.second, found.data)


def code_digest(kernel: CpuKernel) -> str | None:
    """SHA-256 of the kernel's object but for the name that it exports: equal for equal code. None when the store has lost it."""
    data = store().kernels.object(kernel.key)
    if data is None:
        return None
    symbol = symbol_of(kernel.key).encode()
    return hashlib.sha256(data.replace(symbol, b"-" * len(symbol))).hexdigest()


def object_code(signature: str, source: Callable[[], str], vectorize: bool = True) -> bytes:
    """The object of `source()`, LLVM IR that `signature` stands for: from the store, else compiled and kept there."""
    return object_found(signature, source, vectorize).data


def object_found(signature: str, source: Callable[[], str], vectorize: bool = True) -> CachedKernel:
    """As `object_code`, with the object's second key."""
    return _object(_key(signature), source, vectorize)


def _key(signature: str) -> str:
    return hashlib.sha256(f"{signature}|{_machine_key()}".encode()).hexdigest()


def _object(first: str, source: Callable[[], str], vectorize: bool) -> CachedKernel:
    options = f"{vectorize}|{host_target()!r}|{MODULE_FLAGS}"
    build = functools.partial(compile_module, vectorize=vectorize)
    found = store().kernels.get_or_build(first, source, options, build)
    count(found)
    return found


def count(found: CachedKernel) -> None:
    """Adds an object to the process's counts."""
    counts.compiled += found.built
    counts.loaded += not found.built


@functools.cache
def _machine_key() -> str:
    return f"{host_target()!r}|{MODULE_FLAGS}|{language_digest('emit/*.py', 'emit/llvm/**/*.py')}"


@functools.cache
def cpu_device(backend: str = "simd") -> CpuDevice:
    """This machine's CPU, as 'simd' or 'scalar'."""
    features = names(host_target().features)
    lanes = 1 if backend == "scalar" else native_lanes(features)
    name = "cpu:scalar" if backend == "scalar" else "cpu"
    return CpuDevice(name, backend, lanes, features, platform.machine().lower())
