"""The kernels of reductions, and how a tensor is cut for them: which axes stay, which go.

Neighbouring axes that share their fate are joined. Where the last axis goes, a program folds a block of it over its lanes; where
it stays, a program folds a chunk of rows into a block of columns. What takes more than one program makes partial results that
a second launch folds: blocks and chunks follow from the shape, so results are equal for any number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from camshaft.dtypes import DTYPES, DType, f32, f64, i64, u64
from camshaft.extent import Extent
from camshaft.lang import ir
from camshaft.lang.instructions import identity
from camshaft.lang.kernel import kernel
from camshaft.lang.tracing.tracer import Array, Tracer
from camshaft.ops import op as ops
from camshaft.ops.elementwise.broadcasting import split_index
from camshaft.ops.spec import Dim, TensorSpec, bound

# Elements of a program where a row is long, and of the rows that are folded into columns.
BLOCK, CHUNK, COLUMNS = 16384, 65536, 512
# Targets without 64-bit floats fold f32 in f32, block by block.
NO_F64 = frozenset({"webgpu", "metal", "null"})
MOST_LANES = 1024
UNROLL = 4  # rows that are folded together before the columns' totals are read and written


# (size, stride) of each.
Axes: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Fold:
    """A reduction's cut: `kept` and `gone` list the (size, stride) of joined axes, the last axis apart as `columns`.

    `along`: the last axis goes. `outer`: an Extent that is the first axis and stays, or 1.
    """

    outer: Dim
    outer_stride: int
    kept: Axes
    gone: Axes
    columns: int
    along: bool

    @property
    def n_kept(self) -> int:
        """Results of one outer index, the columns left out."""
        return prod(size for size, _ in self.kept)

    @property
    def n_gone(self) -> int:
        """Elements that go into one result, those of the last axis left out."""
        return prod(size for size, _ in self.gone)

    @property
    def per(self) -> int:
        """What a program folds: columns of a row, or rows into its columns."""
        if self.along:
            return min(self.columns, max(BLOCK // self.n_gone, 64))
        return min(self.n_gone, max(CHUNK // min(self.columns, COLUMNS), 1))

    @property
    def parts(self) -> int:
        """Partial results of each result."""
        return -(-(self.columns if self.along else self.n_gone) // self.per)


def fold_of(shape: Sequence[Dim], axes: Sequence[int]) -> Fold:
    """Cuts a row-major tensor whose `axes` are folded."""
    joined: list[tuple[int, int, bool]] = []
    stride = 1
    outer: Dim = 1
    for axis in reversed(range(len(shape))):
        size, goes = bound(shape[axis]), axis in axes
        if isinstance(shape[axis], Extent):
            outer = shape[axis]
        elif joined and joined[-1][2] == goes:
            joined[-1] = (joined[-1][0] * size, joined[-1][1], goes)
        elif size > 1:
            joined.append((size, stride, goes))
        stride *= size
    columns, _, along = joined.pop(0) if joined else (1, 1, True)
    ordered = joined[::-1]
    kept, gone = ([(size, step) for size, step, goes in ordered if goes is wanted] for wanted in (False, True))
    step = stride // bound(outer)
    return Fold(outer, step, tuple(kept), tuple(gone), columns, along)


def accumulates_in(kind: str, dtype: DType, backend: str) -> DType:
    """The dtype that is folded in: f64 for sums and products of floats where the target has it, u64 for integers, which wrap."""
    if kind in ("max", "min"):
        return ir.arithmetic_dtype(dtype)
    if not dtype.is_float:
        return u64
    return f64 if dtype == f64 or backend not in NO_F64 else f32


def lanes_for(fold: Fold, kind: str, target: ops.Target) -> int | None:
    """Lanes of a fold along rows: more than the CPU's where a row is long, so that its latency is met by other sums.

    1 million f32 on AVX-512: max 237 us in 16 lanes, 84 in 64.
    """
    if target.backend != "simd" or fold.per < 64 * target.lanes:
        return None
    return (4 if kind in ("max", "min") else 2) * target.lanes


def _wide(k: Tracer, value: ir.Value, dtype: DType) -> ir.Value:
    if dtype != u64 or value.dtype == u64:
        return value.to(dtype)
    return k.bitcast(value.to(i64), u64) if value.dtype.kind == "i" else value.to(u64)


def narrowed(k: Tracer, value: ir.Value, dtype: DType) -> ir.Value:
    """A folded value as a result of the dtype."""
    if value.dtype == u64 and dtype == i64:
        return k.bitcast(value, i64)
    return value.to(ir.arithmetic_dtype(dtype))


def combine(k: Tracer, kind: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """Two folded values in one."""
    return k.apply({"sum": "add", "product": "multiply", "max": "maximum", "min": "minimum"}[kind], a, b)


def start_of(kind: str, dtype: DType) -> float | int:
    """The value that changes nothing."""
    return 1 if kind == "product" else identity(kind, dtype.numpy)


def _over_lanes(k: Tracer, kind: str, value: ir.Value) -> ir.Value:
    if kind != "product":
        folded: ir.Value = getattr(k, f"lanes_{kind}")(value)
        return folded
    # the language has no product over lanes: through scratch
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


def _finish(k: Tracer, value: ir.Value, out: Array, dtype: DType, count: int) -> ir.Value:
    """As it is stored: partial results as they are, means divided."""
    if count:
        value = value / count
    return value if out.dtype == value.dtype else narrowed(k, value, dtype)


@kernel
def along_rows(
    k: Tracer, *operands: Any, inputs: int, kind: str, dtype: str, kept: Axes, gone: Axes, columns: int, per: int,
    parts: int, outer_step: int, count: int,
) -> None:  # fmt: skip
    # out[r, part] = fold over the part's columns c, and over the other axes that go, of x[r, .., c] (y[r, .., c])
    out, wide = operands[inputs], DTYPES[dtype]
    n_kept = prod(size for size, _ in kept)
    base = k.program(0) * outer_step + _offset(k.program(1), kept)
    first = k.program(2) * per
    total = k.var(start_of(kind, wide), wide)

    def add_row(start: ir.Operand) -> None:
        for c in k.lanes(first, k.minimum(first + per, columns)):
            values = [_wide(k, x[start + c], wide) for x in operands[:inputs]]
            term = values[0] if inputs == 1 else values[0] * values[1]
            total.set(combine(k, kind, total.value, term))

    if gone:
        for r in k.range(prod(size for size, _ in gone)):
            add_row(base + _offset(r, gone))
    else:
        add_row(base)
    at = (k.program(0) * n_kept + k.program(1)) * parts + k.program(2)
    out[at] = _finish(k, _over_lanes(k, kind, total.value), out, out.dtype, count)


@kernel
def into_columns(
    k: Tracer, *operands: Any, kind: str, dtype: str, kept: Axes, gone: Axes, columns: int, per: int, parts: int,
    outer_step: int, count: int, block: int,
) -> None:  # fmt: skip
    # out[part, r, c] = fold over the part's rows of x[r, .., c]; each lane keeps its columns' totals in scratch
    x, out, wide = operands[0], operands[1], DTYPES[dtype]
    n_kept, n_gone = (prod(size for size, _ in axes) for axes in (kept, gone))
    blocks = -(-columns // block)
    part, first = k.program(2) // blocks, k.program(2) % blocks * block
    base = k.program(0) * outer_step + _offset(k.program(1), kept)
    stop = k.minimum(first + block, columns)
    totals = k.scratch(wide, block)
    for c in k.lanes(first, stop):
        totals[c - first] = start_of(kind, wide)
    start, last = part * per, k.minimum(part * per + per, n_gone)
    whole = start + (last - start) // UNROLL * UNROLL

    def add_rows(r: ir.Value, count: int) -> None:
        starts = [base + _offset(r + i, gone) for i in range(count)]
        for c in k.lanes(first, stop):
            values = [_wide(k, x[at + c], wide) for at in starts]
            while len(values) > 1:
                values = [combine(k, kind, *values[i : i + 2]) for i in range(0, len(values), 2)]
            totals[c - first] = combine(k, kind, totals[c - first], values[0])

    for r in k.range(start, whole, UNROLL):
        add_rows(r, UNROLL)
    for r in k.range(whole, last):
        add_rows(r, 1)
    row = (k.program(0) * n_kept + k.program(1)) * parts + part
    for c in k.lanes(first, stop):
        out[row * columns + c] = _finish(k, totals[c - first], out, out.dtype, count)


def partial_spec(fold: Fold, dtype: DType) -> TensorSpec:
    """The scratch of partial results."""
    columns = 1 if fold.along else fold.columns
    return TensorSpec((bound(fold.outer), fold.n_kept, fold.parts, columns), dtype)
