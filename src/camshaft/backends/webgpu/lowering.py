"""Lower a kernel to WGSL: trace, verify, convert to SIMT form and emit, or refuse with the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from camshaft.emit.refusal import refusal
from camshaft.emit.wgsl.layout import WgslModule, WgslTarget
from camshaft.emit.wgsl.module import emit
from camshaft.errors import BackendError, KernelError
from camshaft.lang import ir
from camshaft.lang.kernel import Constant, Kernel
from camshaft.lang.simt.form import SimtKernel, to_simt
from camshaft.lang.verifier.verify import verify


@dataclass(frozen=True, eq=False)
class Lowered:
    """A kernel for a target, with the WGSL that may write all its arrays; or neither, and the reason why not."""

    target: WgslTarget
    simt: SimtKernel | None = None
    module: WgslModule | None = None
    refusal: str | None = None

    def emitted(self, read_only: frozenset[int]) -> WgslModule:
        """The WGSL that only reads the arrays of these numbers. BackendError for a kernel that was refused."""
        if self.simt is None or self.module is None:
            raise BackendError(f"a kernel that was refused has no WGSL: {self.refusal}")
        if not read_only:
            return self.module
        names = frozenset(self.simt.arrays[i].name for i in read_only)
        return emit(self.simt, dataclasses.replace(self.target, read_only=names))


def lower(
    kernel: Kernel,
    arrays: Sequence[ir.ArrayParam],
    scalars: Sequence[str],
    constants: Mapping[str, Constant],
    grid: Sequence[ir.GridDim],
    lanes: int,
    target: WgslTarget,
    adapter: str,
) -> Lowered:
    """The kernel for an adapter. KernelError or VerifyError for a source that breaks the language's own rules."""
    traced = kernel.trace(arrays, scalars, constants, grid)
    verify(traced)
    reason = refusal(traced, "wgsl")
    if reason is not None:
        return Lowered(target, refusal=reason)
    simt = to_simt(traced, lanes)
    try:
        module = emit(simt, target)
    except KernelError as error:
        return Lowered(target, refusal=str(error))
    missing = ", ".join(sorted(module.requires - target.features))
    if missing:
        return Lowered(target, refusal=f"it needs the feature {missing}, which {adapter} lacks")
    return Lowered(target, simt, module)
