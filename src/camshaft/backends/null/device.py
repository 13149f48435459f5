"""The null device plans and emits but never runs. "null" emits LLVM IR; "null:wgsl", "null:ptx" and so on emit those languages.

Use it to inspect and test plans and kernel text for hardware that this machine does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from camshaft.backends.cuda.kernel import ptx
from camshaft.backends.device import Bytes, Command, DeviceInfo, check_range
from camshaft.emit.c import module as c
from camshaft.emit.llvm import module as llvm
from camshaft.emit.msl import module as msl
from camshaft.emit.msl.context import MslTarget
from camshaft.emit.nvptx import module as nvptx
from camshaft.emit.refusal import refusal
from camshaft.emit.target import CpuTarget, GpuTarget
from camshaft.emit.wgsl import module as wgsl
from camshaft.emit.wgsl.layout import WgslTarget
from camshaft.errors import BackendError, KernelError
from camshaft.lang import CompileRequest, ir
from camshaft.lang.simt.form import to_simt
from camshaft.store.files import digest_of

# Bytes: the largest buffer offset alignment of any kind of device.
ALIGNMENT = 256


@dataclass(frozen=True)
class Dialect:
    """A target language: its column of the instruction table, the default lanes of a program, and its emitter, a function from a
    traced kernel and a number of lanes to text."""

    name: str
    description: str
    column: str
    lanes: int
    emit: Callable[[ir.KernelIR, int], str]
    limits: Mapping[str, int] = field(default_factory=dict)


def _llvm(kernel: ir.KernelIR, lanes: int) -> str:
    return llvm.emit(kernel, CpuTarget("x86_64", lanes, frozenset({"avx2", "fma", "f16c"})), "kernel")


def _c(kernel: ir.KernelIR, lanes: int) -> str:
    return c.emit(kernel, "kernel")


def _wgsl(kernel: ir.KernelIR, lanes: int) -> str:
    return wgsl.emit(to_simt(kernel, lanes), WgslTarget()).text


def _msl(kernel: ir.KernelIR, lanes: int) -> str:
    target = MslTarget(has_matrices=True)
    simt = msl.simt_form(kernel, lanes, target)
    reason = msl.refusal(simt, target)
    if reason is not None:
        raise KernelError(f"{kernel.name}: {reason}")
    return msl.emit(simt, target).text


def _ptx(kernel: ir.KernelIR, lanes: int) -> str:
    target = GpuTarget()
    return ptx(nvptx.emit(nvptx.simt_form(kernel, lanes), target, kernel.name), target)


def _memory(nbytes: int) -> dict[str, int]:
    """Returns the limits of a GPU language."""
    return {"workgroup_memory": nbytes}


_WGSL = _memory(WgslTarget().max_workgroup_nbytes)
DIALECTS = {
    row.name: row
    for row in (
        Dialect("llvm", "LLVM IR for x86-64 with AVX2", "llvm", 8, _llvm),
        Dialect("wgsl", "WGSL for an adapter with WebGPU's default limits", "wgsl", 64, _wgsl, _WGSL),
        Dialect(
            "msl", "Metal Shading Language for an M1", "msl", 64, _msl, _memory(MslTarget().max_threadgroup_nbytes)
        ),
        Dialect("c", "C11 with GCC's vectors", "c", 1, _c),
        Dialect("ptx", "PTX for sm_80", "ptx", 64, _ptx, _memory(nvptx.MOST_SHARED_NBYTES)),
    )
}


@dataclass(frozen=True)
class NullKernel:
    """The emitted text of a kernel."""

    name: str
    text: str = field(repr=False)


@dataclass(frozen=True)
class NullMemory:
    """An allocation without storage: writes are discarded, reads raise."""

    device: str
    nbytes: int

    def write(self, data: Bytes, offset_nbytes: int = 0) -> None:
        """Discards the data. BackendError if it passes the end."""
        check_range(f"{self.device}: a write", offset_nbytes, data.nbytes, self.nbytes)

    def read(self, offset_nbytes: int = 0, nbytes: int | None = None) -> Bytes:
        raise BackendError(f"{self.device} stores no bytes: it plans and emits, and never runs")

    def close(self) -> None:
        """Does nothing: there is nothing to free."""


@dataclass(frozen=True)
class NullRun:
    """Commands for inspection; `submit` raises."""

    device: str
    commands: tuple[Command, ...]

    def submit(self, active: Sequence[int]) -> None:
        raise BackendError(f"{self.device} plans and emits, and never runs; compile for another device to run this")

    def wait(self) -> None:
        """Does nothing: no submit can succeed."""

    def elapsed_ns(self) -> tuple[int, ...] | None:
        return None

    def close(self) -> None:
        """Does nothing: there is nothing to free."""


@dataclass
class NullDevice:
    """A device without hardware. `emitted` has the kernels that plans requested, by signature."""

    name: str
    dialect: Dialect
    backend: str = "null"
    features: frozenset[str] = frozenset()
    emitted: dict[str, NullKernel | str] = field(default_factory=dict)

    @property
    def lanes(self) -> int:
        return self.dialect.lanes

    @property
    def limits(self) -> Mapping[str, int]:
        return {"alignment": ALIGNMENT, "unified": 0, **self.dialect.limits}

    @property
    def space(self) -> str:
        return self.name

    def refusal(self, request: CompileRequest) -> str | None:
        """Returns why the language cannot express the kernel, or None."""
        found = self._emitted(request)
        return found if isinstance(found, str) else None

    def compile(self, request: CompileRequest) -> NullKernel:
        """Emits the kernel's text. BackendError with the reason of a refusal."""
        found = self._emitted(request)
        if isinstance(found, str):
            raise BackendError(f"{self.name} cannot run kernel {request.kernel.name}: {found}")
        return found

    def _emitted(self, request: CompileRequest) -> NullKernel | str:
        """Emits the kernel once. Returns the kernel, or the reason of a refusal."""
        width = request.lanes or self.lanes
        key = digest_of(request.key(), width)
        if key not in self.emitted:
            self.emitted[key] = self._traced(request.kernel.name, request.trace(), width)
        return self.emitted[key]

    def _traced(self, name: str, traced: ir.KernelIR, width: int) -> NullKernel | str:
        reason = refusal(traced, self.dialect.column)
        if reason is not None:
            return reason
        try:
            return NullKernel(name, self.dialect.emit(traced, width))
        except KernelError as error:
            return str(error)

    def allocate(self, nbytes: int) -> NullMemory:
        return NullMemory(self.name, nbytes)

    def bind(self, commands: Sequence[Command], n_extents: int, *, timed: bool = False) -> NullRun:
        return NullRun(self.name, tuple(commands))


def absent() -> str | None:
    """Returns None: the null device is always present."""
    return None


def make(suffix: str) -> NullDevice:
    """Returns the null device of a language; '' means LLVM IR. BackendError for an unknown language."""
    dialect = DIALECTS.get(suffix or "llvm")
    if dialect is None:
        raise BackendError(f"no device null:{suffix}; wanted null, or null: and one of {', '.join(DIALECTS)}")
    return NullDevice(f"null:{suffix}" if suffix else "null", dialect)


def devices() -> tuple[DeviceInfo, ...]:
    """Returns one device per language; 'null' is 'null:llvm'."""
    return tuple(
        DeviceInfo(
            f"null:{row.name}", "null", f"plans and emits {row.description}, never runs", None, {"lanes": row.lanes}
        )
        for row in DIALECTS.values()
    )
