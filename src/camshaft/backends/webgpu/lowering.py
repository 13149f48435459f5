"""Lower a traced kernel to WGSL: convert it to SIMT form and emit it, or refuse it with the reason."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from camshaft.emit.refusal import refusal
from camshaft.emit.wgsl.layout import WgslModule, WgslTarget
from camshaft.emit.wgsl.module import emit
from camshaft.errors import BackendError, KernelError
from camshaft.lang import ir
from camshaft.lang.simt.form import SimtKernel, to_simt


@dataclass(frozen=True, eq=False)
class Lowered:
    """A kernel in SIMT form and its WGSL with all arrays writable; or None for both and the reason of the refusal."""

    target: WgslTarget
    simt: SimtKernel | None = None
    module: WgslModule | None = None
    refusal: str | None = None

    def emitted(self, read_only: frozenset[int]) -> WgslModule:
        """Returns the WGSL with these arrays read-only. BackendError for a refused kernel."""
        if self.simt is None or self.module is None:
            raise BackendError(f"a kernel that was refused has no WGSL: {self.refusal}")
        if not read_only:
            return self.module
        names = frozenset(self.simt.arrays[i].name for i in read_only)
        return emit(self.simt, dataclasses.replace(self.target, read_only=names))


def lower(traced: ir.KernelIR, lanes: int, target: WgslTarget, adapter: str) -> Lowered:
    """Lowers a verified kernel for an adapter."""
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
