"""Scans along an axis: cumsum, cumprod, cummax and cummin, a row for each. Kernels are in ops/scan/kernels.py.

Attributes: `axis` (-1 by default) and `reverse` (from the end: the gradient of cumsum). Of integers, cumsum and cumprod give 64
bits as NumPy does, or i32 or u32 if `to` says so; they wrap. Floats are summed in f64 where the target has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DTYPES, DType, as_dtype, f32, f64, u32, u64
from camshaft.extent import Extent
from camshaft.lang import Constant, Kernel, ir
from camshaft.ops import op as ops
from camshaft.ops.checks import NUMBERS, rounded, same_dtype, widened
from camshaft.ops.gradient import rule_in_f32, zeros
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.reduce.frame import NO_F64
from camshaft.ops.scan import kernels, samples
from camshaft.ops.spec import Dim, TensorSpec, bound

# Elements of a row that a program scans, and columns of a block.
PART, COLUMNS = 16384, 512
REVERSE = Attribute("reverse", "bool", False)
TO = Attribute("to", "str | None", None)
_SIZES = ("inner", "dim", "per", "parts", "columns")


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
        """The accumulator's dtype: f64 for sums of floats where the target has it; unsigned for integers, which wrap."""
        if not self.counts:
            return ir.arithmetic_dtype(given)
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


def _infer(row: Scan, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, row.name, specs, "one tensor x")
    expect_attributes(row.name, attrs, parameters_of(row))
    dtype = same_dtype(row.name, specs, NUMBERS)
    axis_of(row.name, specs[0], attrs)
    return (TensorSpec(specs[0].shape, row.gives(dtype, attrs.get("to"))),)


def _reference(row: Scan, inputs: Any, attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    (x,) = inputs
    axis, dtype = attrs.get("axis", -1), row.gives(as_dtype(x.dtype), attrs.get("to"))
    given = np.flip(x, axis) if attrs.get("reverse") else x
    with np.errstate(all="ignore"):
        found = row.numpy.accumulate(widened(given) if dtype.is_float else given.astype(dtype.numpy), axis)
    return (rounded(np.flip(found, axis) if attrs.get("reverse") else found, dtype),)


def _build(row: Scan, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, out = node.inputs[0], node.outputs[0]
    outer, inner, dim, columns = layout_of(x, axis_of(row.name, x, node.attrs))
    wide = row.accumulates_in(as_dtype(x.dtype), as_dtype(out.dtype), target.backend)
    rows, reverse = bound(outer) * inner, bool(node.attrs.get("reverse"))
    constants: dict[str, Constant] = {
        "kind": row.kind,
        "dtype": wide.name,
        "reverse": reverse,
        "inner": inner,
        "dim": dim,
    }
    grid = ops.Cells(outer), ops.Cells(inner)
    if columns > 1:
        arrays = ops.read(0, shape=(rows, dim, columns)), ops.write(0, shape=(rows, dim, columns))
        constants |= {"columns": columns, "block": COLUMNS}
        return _one(kernels.into_columns, arrays, (*grid, ops.Cells(columns, per=COLUMNS)), constants)
    read, write = ops.read(0, shape=(rows, dim)), ops.write(0, shape=(rows, dim))
    if row.kind == "product":
        return _one(kernels.in_order, (read, write), grid, constants)
    constants["lanes"] = lanes = 1 if target.backend in ("scalar", "c") else kernels.WIDTH
    if dim <= PART:
        return _one(kernels.along_rows, (read, write), grid, constants, lanes)
    parts = -(-dim // PART)
    constants["per"] = PART
    by_part, between = (*grid, ops.Cells(parts)), (rows, parts)
    first = _launch(kernels.part_totals, (read, ops.scratch(0, "write", between)), by_part, constants, lanes)
    reads = read, ops.scratch(0, "read", between)
    second = _launch(kernels.parts_of_rows, (*reads, write), by_part, {**constants, "parts": parts}, lanes)
    return ops.Build((first, second), (TensorSpec(between, wide),))


def _launch(
    kernel: Kernel, arrays: tuple[ops.Operand, ...], grid: tuple[ops.Cells, ...], constants: Mapping[str, Constant],
    lanes: int | None = None,
) -> ops.Launch:  # fmt: skip
    sizes = tuple(name for name in _SIZES if name in constants)
    return ops.Launch(kernel, arrays, grid, constants, lanes=lanes, sizes=sizes)


def _one(*launch: Any) -> ops.Build:
    return ops.Build((_launch(*launch),))


def parameters_of(row: Scan) -> Parameters:
    """The parameters of a row."""
    attributes = (Attribute("axis", "int", -1), REVERSE)
    return Parameters("x", (*attributes, TO) if row.counts else attributes)


def _cummin(f: Any, x: Any, **attrs: Any) -> Any:
    """cummax of -x; of integers, whose negation may overflow, of all bits inverted."""
    dtype = as_dtype(x.dtype)
    if dtype.is_float:
        return -f.cummax(-x, **attrs)
    ones = -1 if dtype.kind == "i" else 2**dtype.bits - 1
    return ones - f.cummax(ones - x, **attrs)


def _sum_vjp(f: Any, dy: Any, y: Any, x: Any, axis: int = -1, reverse: bool = False, to: str | None = None) -> Any:
    return f.cumsum(dy, axis=axis, reverse=not reverse)


@rule_in_f32
def _product_vjp(f: Any, dy: Any, y: Any, x: Any, axis: int = -1, reverse: bool = False, to: str | None = None) -> Any:
    """The sum of dy y from each element on, by the element; that of the first 0 is as if it were 1, of those after it 0."""
    zero = f.equal(x, 0)
    count = f.cumsum(f.cast(zero, to="i32"), axis=axis, reverse=reverse, to="i32")
    first = f.logical_and(zero, f.equal(count, 1))
    past = f.cumprod(f.where(first, 1, x), axis=axis, reverse=reverse)
    from_here = f.cumsum(dy * y, axis=axis, reverse=not reverse) / f.where(zero, 1, x)
    from_zero = f.cumsum(dy * past, axis=axis, reverse=not reverse)
    return f.where(first, from_zero, f.where(count > 0, 0, from_here))


def _max_vjp(f: Any, dy: Any, y: Any, x: Any, axis: int = -1, reverse: bool = False, to: str | None = None) -> Any:
    """dy to the last element that was the greatest, as torch does."""
    n, more = x.shape[axis], x.ndim - 1 - axis % x.ndim
    step = np.arange(n, dtype=np.int32)[::-1] if reverse else np.arange(n, dtype=np.int32)
    place = f.cummax(f.where(f.equal(x, y), step.reshape(n, *(1,) * more), 0), axis=axis, reverse=reverse)
    return f.scatter_add(zeros(f, x), (n - 1) - place if reverse else place, dy, axis=axis)


def op_of(row: Scan) -> ops.Op:
    """The Op of a row."""
    return ops.Op(
        name=row.name,
        formula=row.text,
        parameters=parameters_of(row),
        infer=lambda specs, attrs: _infer(row, specs, attrs),
        reference=lambda inputs, attrs: _reference(row, inputs, attrs),
        variants=(ops.KernelVariant("scans", ops.EVERYWHERE, lambda node, target: _build(row, node, target)),),
        samples=lambda: samples.samples(row),
        error_samples=lambda: samples.error_samples(row),
        tolerance=row.tolerance,
        flops=lambda node: float(prod(node.inputs[0].bounds)),
        decompose=row.decompose,
        vjp=row.vjp,
    )


# For targets without 64-bit floats, where a product of 100 factors rounds 100 times.
_IN_F32 = {"f32": 1e-10, "f64": 1e-26, "f16": 1e-8, "bf16": 1e-6}
ROWS = (
    Scan(
        "cumsum",
        "y[i] = sum over j <= i of x[j], or over j >= i if reverse",
        "sum",
        np.add,
        tolerance=_IN_F32,
        vjp=_sum_vjp,
    ),
    Scan(
        "cumprod",
        "y[i] = product over j <= i of x[j], or over j >= i if reverse",
        "product",
        np.multiply,
        tolerance=_IN_F32,
        vjp=_product_vjp,
    ),
    Scan(
        "cummax",
        "y[i] = max over j <= i of x[j], or over j >= i if reverse; NaN from the first NaN on",
        "max",
        np.maximum,
        vjp=_max_vjp,
    ),
    Scan(
        "cummin",
        "y[i] = min over j <= i of x[j], or over j >= i if reverse; NaN from the first NaN on",
        "min",
        np.minimum,
        _cummin,
    ),
)
OPS = {row.name: op_of(row) for row in ROWS}
