"""The frame of reductions: their kernels, and how a tensor's axes are grouped and split among programs.

Adjacent axes that are both kept or both reduced are joined. Where the last axis is reduced, a program folds a block of it over
its lanes; where it is kept, a program folds a chunk of rows into a block of columns. A result that takes several programs has
partial results, which a second launch folds. Blocks and chunks follow from the shape, so results do not depend on the workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from camshaft.dtypes import DTYPES, DType, f32, f64, i64, u64
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.lang.instructions import identity
from camshaft.ops import op as ops
from camshaft.ops.kernels.strides import split_index
from camshaft.ops.spec import Dim, TensorSpec, bound

# Elements of a program along a long row, elements of the rows that it folds into columns, and columns of a block.
BLOCK, CHUNK, COLUMNS = 16384, 65536, 512
# Constants of the kernels that may be run-time scalars.
SIZES = ("kept", "reduced", "columns", "per", "parts", "outer_step", "count")
# Targets without 64-bit floats: sums of f32 are in f32, block by block.
NO_F64 = frozenset({"webgpu", "metal", "null"})
MOST_LANES = 1024
UNROLL = 4  # rows folded together before the columns' totals are loaded and stored


# (size, stride) of each.
Axes: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Fold:
    """The axes of a reduction: (size, stride) of the joined axes that are `kept` and `reduced`, except the last one, `columns`.

    `along`: the last axis is reduced. `outer`: the first axis if it is an Extent, which is kept; else 1.
    """

    outer: Dim
    outer_stride: int
    kept: Axes
    reduced: Axes
    columns: int
    along: bool

    @property
    def n_kept(self) -> int:
        """Results of one outer index, not counting columns."""
        return prod(size for size, _ in self.kept)

    @property
    def n_reduced(self) -> int:
        """Elements of one result, not counting the last axis."""
        return prod(size for size, _ in self.reduced)

    @property
    def per(self) -> int:
        """Columns of a row, or rows into its columns, that a program folds."""
        if self.along:
            return min(self.columns, max(BLOCK // self.n_reduced, 64))
        return min(self.n_reduced, max(CHUNK // min(self.columns, COLUMNS), 1))

    @property
    def parts(self) -> int:
        """Partial results of each result."""
        return -(-(self.columns if self.along else self.n_reduced) // self.per)


def fold_of(shape: Sequence[Dim], axes: Sequence[int]) -> Fold:
    """The fold of a row-major tensor over `axes`."""
    joined: list[tuple[int, int, bool]] = []
    stride = 1
    outer: Dim = 1
    for axis in reversed(range(len(shape))):
        size, reduces = bound(shape[axis]), axis in axes
        if isinstance(shape[axis], Extent):
            outer = shape[axis]
        elif joined and joined[-1][2] == reduces:
            joined[-1] = (joined[-1][0] * size, joined[-1][1], reduces)
        elif size > 1:
            joined.append((size, stride, reduces))
        stride *= size
    columns, _, along = joined.pop(0) if joined else (1, 1, True)
    ordered = joined[::-1]
    kept, reduced = ([(size, step) for size, step, reduces in ordered if reduces is wanted] for wanted in (False, True))
    step = stride // bound(outer)
    return Fold(outer, step, tuple(kept), tuple(reduced), columns, along)


def accumulates_in(kind: str, dtype: DType, backend: str) -> DType:
    """The accumulator's dtype: f64 for sums and products of floats where the target has it, u64 for integers, which wrap."""
    if kind in ("max", "min"):
        return ir.arithmetic_dtype(dtype)
    if not dtype.is_float:
        return u64
    return f64 if dtype == f64 or backend not in NO_F64 else f32


def lanes_for(fold: Fold, kind: str, target: ops.Target) -> int | None:
    """Lanes of a fold along rows: several vectors on a CPU where a row is long, to overlap the latency of dependent operations.

    Max of 1 million f32 on AVX-512: 237 us with 16 lanes, 84 with 64.
    """
    if target.backend != "simd" or fold.per < 64 * target.lanes:
        return None
    return (4 if kind in ("max", "min") else 2) * target.lanes


def _wide(k: Tracer, value: ir.Value, dtype: DType) -> ir.Value:
    if dtype != u64 or value.dtype == u64:
        return value.to(dtype)
    return k.bitcast(value.to(i64), u64) if value.dtype.kind == "i" else value.to(u64)


def narrowed(k: Tracer, value: ir.Value, dtype: DType) -> ir.Value:
    """A folded value converted to the result's dtype."""
    if value.dtype == u64 and dtype == i64:
        return k.bitcast(value, i64)
    return value.to(ir.arithmetic_dtype(dtype))


def combine(k: Tracer, kind: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """The fold of two values."""
    return k.apply({"sum": "add", "product": "multiply", "max": "maximum", "min": "minimum"}[kind], a, b)


def start_of(kind: str, dtype: DType) -> float | int:
    """The identity of the fold."""
    return 1 if kind == "product" else identity(kind, dtype.numpy)


def _over_lanes(k: Tracer, kind: str, value: ir.Value) -> ir.Value:
    if kind != "product":
        folded: ir.Value = getattr(k, f"lanes_{kind}")(value)
        return folded
    # the kernel language has no product over lanes: through scratch
    factors, product = k.scratch(value.dtype, MOST_LANES), k.var(1, value.dtype)
    factors[k.lane()] = value
    k.barrier()
    for i in k.range(k.lane_count()):
        product.set(product.value * factors[i])
    return product.value


def _offset(index: ir.Value, axes: Sequence[tuple[int, int]]) -> ir.Operand:
    parts = split_index(index, [size for size, _ in axes])
    total: ir.Operand = 0
    for part, (_, step) in zip(parts, axes, strict=True):
        total = total + part * step
    return total


def _finish(k: Tracer, value: ir.Value, out: Array, dtype: DType, count: tuple[int, ...]) -> ir.Value:
    """The value to store: a mean is divided by its `count`; a partial result keeps its dtype."""
    for n in count:
        value = value / k.number(n, value.dtype)
    return value if out.dtype == value.dtype else narrowed(k, value, dtype)


@kernel
def along_rows(
    k: Tracer, *operands: Any, inputs: int, kind: str, dtype: str, kept: Axes, reduced: Axes, columns: int, per: int,
    parts: int, outer_step: int, count: tuple[int, ...],
) -> None:  # fmt: skip
    # out[r, part] = fold over the part's columns c, and over the other reduced axes, of x[r, .., c] (y[r, .., c])
    out, wide = operands[inputs], DTYPES[dtype]
    n_kept = prod(size for size, _ in kept)
    base = k.program(0) * outer_step + _offset(k.program(1), kept)
    first = k.program(2) * per
    total = k.var(start_of(kind, wide), wide)

    def add_row(start: ir.Operand) -> None:
        for c in k.lanes(first, k.minimum(first + per, columns)):
            values = [_wide(k, x[start + c], wide) for x in operands[:inputs]]
            if inputs == 2 and wide.is_float:  # of two products in a sum, one would be fused or the other
                total.set(k.fma(values[0], values[1], total.value))
            else:
                total.set(combine(k, kind, total.value, prod(values[1:], start=values[0])))

    if reduced:
        for r in k.range(prod(size for size, _ in reduced)):
            add_row(base + _offset(r, reduced))
    else:
        add_row(base)
    at = (k.program(0) * n_kept + k.program(1)) * parts + k.program(2)
    out[at] = _finish(k, _over_lanes(k, kind, total.value), out, out.dtype, count)


@kernel
def into_columns(
    k: Tracer, *operands: Any, kind: str, dtype: str, kept: Axes, reduced: Axes, columns: int, per: int, parts: int,
    outer_step: int, count: tuple[int, ...], block: int, blocks: int,
) -> None:  # fmt: skip
    # out[part, r, c] = fold over the part's rows of x[r, .., c]; each lane keeps its columns' totals in scratch
    x, out, wide = operands[0], operands[1], DTYPES[dtype]
    n_kept, n_reduced = (prod(size for size, _ in axes) for axes in (kept, reduced))
    part, first = k.program(2) // blocks, k.program(2) % blocks * block
    base = k.program(0) * outer_step + _offset(k.program(1), kept)
    stop = k.minimum(first + block, columns)
    totals = k.scratch(wide, block)
    for c in k.lanes(first, stop):
        totals[c - first] = start_of(kind, wide)
    start, last = part * per, k.minimum(part * per + per, n_reduced)
    unrolled = start + (last - start) // UNROLL * UNROLL

    def add_rows(r: ir.Value, count: int) -> None:
        starts = [base + _offset(r + i, reduced) for i in range(count)]
        for c in k.lanes(first, stop):
            values = [_wide(k, x[at + c], wide) for at in starts]
            while len(values) > 1:
                values = [combine(k, kind, *values[i : i + 2]) for i in range(0, len(values), 2)]
            totals[c - first] = combine(k, kind, totals[c - first], values[0])

    for r in k.range(start, unrolled, UNROLL):
        add_rows(r, UNROLL)
    for r in k.range(unrolled, last):
        add_rows(r, 1)
    row = (k.program(0) * n_kept + k.program(1)) * parts + part
    for c in k.lanes(first, stop):
        out[row * columns + c] = _finish(k, totals[c - first], out, out.dtype, count)


def partial_spec(fold: Fold, dtype: DType) -> TensorSpec:
    """The spec of the scratch for partial results."""
    columns = 1 if fold.along else fold.columns
    return TensorSpec((bound(fold.outer), fold.n_kept, fold.parts, columns), dtype)
