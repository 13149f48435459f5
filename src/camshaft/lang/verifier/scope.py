"""The verifier's state at a value: the control flow around it, and which values vary by lane. Rules for indices."""

from __future__ import annotations

from camshaft.dtypes import i64
from camshaft.errors import VerifyError
from camshaft.lang import ir
from camshaft.lang.uniformity import varying


class Scope:
    """The context of a rule: which values vary, and the control flow around the value."""

    def __init__(self, kernel: ir.KernelIR) -> None:
        self.kernel = kernel
        self.arrays = {*kernel.arrays, *kernel.scratch}
        self.varying, self.varying_vars = varying(kernel)
        self.in_lanes = False
        self.masked = False

    def fail(self, line: int, message: str) -> VerifyError:
        return VerifyError(f"kernel {self.kernel.name}, line {line}: {message}")

    def contiguous(self, array: ir.Array, indices: tuple[ir.Value, ...]) -> bool:
        """Return whether lanes access neighbours or one element. // and % by a constant are accepted: the emitter decides."""
        total = 0
        for index, stride in zip(indices, array.strides, strict=True):
            step, known = self.lane_step(index)
            if not known:
                return step is not None
            total += (step or 0) * stride
        return total in (0, 1)

    def lane_step(self, value: ir.Value) -> tuple[int | None, bool]:
        """Return (step per lane, True) if linear; (0, False) if // or % make it depend on the width; (None, False) if unknown."""
        if value not in self.varying:
            return 0, True
        if value.op in ("index", "lane"):
            return 1, True
        if value.op in ("add", "subtract"):
            return self._sum(value)
        if value.op == "multiply" and any(a.op == "const" for a in value.args):
            factor, other = value.args if value.args[0].op == "const" else value.args[::-1]
            step, known = self.lane_step(other)
            return (step * factor.attr if known and step is not None else step), known
        if value.op in ("floor_divide", "remainder") and value.args[1].op == "const":
            return (0, False) if self.lane_step(value.args[0])[0] is not None else (None, False)
        return None, False

    def _sum(self, value: ir.Value) -> tuple[int | None, bool]:
        (a, a_known), (b, b_known) = (self.lane_step(arg) for arg in value.args)
        if a is None or b is None:
            return None, False
        return (a + b if value.op == "add" else a - b), a_known and b_known


def wanted_index(scope: Scope, array: ir.Array, indices: tuple[ir.Value, ...], line: int, bounds: bool = True) -> None:
    """Raise VerifyError unless the array is the kernel's and the indices are i64, one per dimension; constants in bounds."""
    if array not in scope.arrays:
        raise scope.fail(line, f"{array.name} is not an array of this kernel")
    if len(indices) != len(array.shape):
        raise scope.fail(line, f"{array.name} has {len(array.shape)} dimensions, indexed with {len(indices)}")
    for axis, (index, size) in enumerate(zip(indices, array.shape, strict=True)):
        if index.dtype != i64 or index.width:
            raise scope.fail(line, f"{array.name} is indexed with {index!r}: wanted i64")
        if bounds and index.op == "const" and not 0 <= index.attr < size:
            raise scope.fail(line, f"{array.name} is indexed with {index.attr} along axis {axis} of {size}")


def vector_index(
    scope: Scope, array: ir.Array, indices: tuple[ir.Value, ...], count: ir.Value | None, line: int
) -> None:
    """Raise VerifyError unless an explicit vector's indices and count are uniform, outside k.lanes."""
    if scope.in_lanes:
        raise scope.fail(line, "explicit vectors do not go inside k.lanes")
    if not scope.varying.isdisjoint(indices):
        raise scope.fail(line, f"an explicit vector of {array.name} at an index that varies by lane")
    if count is not None and (count.dtype != i64 or count.width or count in scope.varying):
        raise scope.fail(line, f"the count of a vector is {count!r}: wanted a uniform i64")
