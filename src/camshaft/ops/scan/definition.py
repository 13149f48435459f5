"""What the scans mean: their attributes, results and reference, and a tensor's layout around an axis.

Attributes: `axis` (-1 by default) and `reverse` (from the end: the gradient of cumsum). Of integers, cumsum and cumprod give 64
bits as NumPy does, or i32 or u32 if `to` says so; they wrap. Floats are summed in f64 where the target has it, but those below 64
bits are summed in f32 within groups of at most 64 on a CPU with vectors: ops/scan/quads.py and pair_sums.py state the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DTYPES, DType, as_dtype, f32, f64, i32, i64, u32, u64
from camshaft.extent import Extent
from camshaft.lang import ir
from camshaft.ops import op as ops
from camshaft.ops.checks import NUMBERS, rounded, same_dtype, widened
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.reduce.frame import NO_F64
from camshaft.ops.spec import Dim, TensorSpec, bound

REVERSE = Attribute("reverse", "bool", False)
TO = Attribute("to", "str | None", None)


@dataclass(frozen=True)
class Scan:
    """`kind` of fold: sum, product, max or min; `numpy`: its accumulate; `decompose` and `vjp`: as of an Op."""

    name: str
    text: str
    kind: str
    numpy: np.ufunc
    decompose: Callable[..., Any] | None = None
    vjp: Callable[..., Any] | None = None
    tolerance: Mapping[str, float] = field(
        default_factory=lambda: {"f32": 1e-12, "f64": 1e-26, "f16": 1e-8, "bf16": 1e-6}
    )

    @property
    def counts(self) -> bool:
        """Whether integers widen to 64 bits."""
        return self.kind in ("sum", "product")

    def gives(self, dtype: DType, to: object) -> DType:
        """The result's dtype. ShapeError for a `to` that is none of those possible."""
        if dtype.is_float or not self.counts:
            ops.expect(to in (None, dtype.name), self.name, f"to {to!r} of {dtype.name}", f"no `to`, or {dtype.name}")
            return dtype
        found = {None: f"{dtype.kind}64", f"{dtype.kind}64": f"{dtype.kind}64", f"{dtype.kind}32": f"{dtype.kind}32"}
        ops.expect(to in found, self.name, f"to {to!r} of {dtype.name}", f"to {' or '.join(f for f in found if f)}")
        return DTYPES[found[to]]  # type: ignore[index]  # checked above

    def accumulates_in(self, given: DType, result: DType, backend: str) -> DType:
        """The accumulator's dtype: f64 for sums of floats where the target has it; unsigned for integers, which wrap. The
        greatest float is found as an integer."""
        if not self.counts:
            wide = ir.arithmetic_dtype(given)
            return {f32: i32, f64: i64}.get(wide, wide)
        if given.is_float:
            return f64 if given == f64 or backend not in NO_F64 else f32
        return u64 if result.bits == 64 else u32


def axis_of(op: str, x: TensorSpec, attrs: ops.Attrs) -> int:
    """The axis, from 0. ShapeError for one that x lacks, for empty axes, and for an Extent anywhere but as another first axis."""
    axis, rank = attrs.get("axis", -1), len(x.shape)
    fits = isinstance(axis, int) and not isinstance(axis, bool) and -rank <= axis < rank
    ops.expect(fits, op, f"axis {axis} of {x}", f"an axis from {-rank} to {rank - 1}" if rank else "a tensor with axes")
    extents = [i for i, d in enumerate(x.shape) if isinstance(d, Extent)]
    fits = 0 not in x.bounds and (not extents or (extents == [0] and axis % rank > 0))
    ops.expect(fits, op, x, f"no empty axis, and an Extent only as a first axis that is not axis {axis}")
    return int(axis % rank)


def expect_attributes(op: str, attrs: ops.Attrs, parameters: Parameters) -> None:
    """ShapeError for attributes that the op lacks."""
    known = [a.name for a in parameters.attributes]
    unknown = sorted(set(attrs) - set(known))
    ops.expect(not unknown, op, f"attributes {unknown}", f"{', '.join(known)}" if known else "no attributes")


def layout_of(x: TensorSpec, axis: int) -> tuple[Dim, int, int, int]:
    """(outer, inner, dim, columns): x as [outer, inner, dim, columns], where `outer` is an Extent if the first axis is one."""
    inner, dim, columns = prod(x.bounds[:axis]), x.bounds[axis], prod(x.bounds[axis + 1 :])
    if isinstance(x.shape[0], Extent):
        return x.shape[0], inner // bound(x.shape[0]), dim, columns
    return inner, 1, dim, columns


def infer(row: Scan, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, row.name, specs, "one tensor x")
    expect_attributes(row.name, attrs, parameters_of(row))
    dtype = same_dtype(row.name, specs, NUMBERS)
    axis_of(row.name, specs[0], attrs)
    return (TensorSpec(specs[0].shape, row.gives(dtype, attrs.get("to"))),)


def reference(row: Scan, inputs: Any, attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    (x,) = inputs
    axis, dtype = attrs.get("axis", -1), row.gives(as_dtype(x.dtype), attrs.get("to"))
    given = np.flip(x, axis) if attrs.get("reverse") else x
    with np.errstate(all="ignore"):
        found = row.numpy.accumulate(widened(given) if dtype.is_float else given.astype(dtype.numpy), axis)
    return (rounded(np.flip(found, axis) if attrs.get("reverse") else found, dtype),)


def parameters_of(row: Scan) -> Parameters:
    """The parameters of a row."""
    attributes = (Attribute("axis", "int", -1), REVERSE)
    return Parameters("x", (*attributes, TO) if row.counts else attributes)
