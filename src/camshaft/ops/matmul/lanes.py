"""matmul with k.lanes: the general variant, with columns or the depth over the lanes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from camshaft.dtypes import f32, i64, u64
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.lang import tile_of as zeros
from camshaft.ops import op as ops
from camshaft.ops.matmul.shapes import (
    CPUS,
    SHORT,
    SIZES,
    WIDTH,
    Matrices,
    column_vectors,
    only_floats,
    rounds_on_cpus,
    sizes_of,
)

COLUMNS = 256  # columns of a program of the general variant: its sums stay in the L1 cache
UNROLL = 4
TILE, SMALL_TILE = (
    (8, 2),
    (4, 1),
)  # rows and vectors of sums in registers: of AVX-512, and of AVX2, where a vector has two halves


def added(k: Tracer, a: Value, b: Value, total: Value) -> Value:
    """a b + total."""
    return k.fma(a, b, total) if total.dtype.is_float else a * b + total


@kernel
def columns_by_lane(k: Tracer, a: Array, b: Array, out: Array, **sizes: Any) -> None:
    # out[i, j] = sum_k a[i, k] b[k, j]: row i, COLUMNS columns, four k at a time; the sums are in out, or in
    # scratch if out has a shorter dtype
    m = Matrices(**sizes)
    index, row, first = k.program(0), k.program(1), k.program(2) * COLUMNS
    last = k.minimum(first + COLUMNS, m.columns)
    a_row = m.a(index) * m.rows + row
    b_row = m.b(index) * m.depth
    out_row, is_short = index * m.rows + row, out.dtype in SHORT
    sums = k.scratch(f32, COLUMNS) if is_short else out

    def at(c: Value) -> tuple[Value, ...]:
        return (c - first,) if is_short else (out_row, c)

    for c in k.lanes(first, last):
        sums[at(c)] = 0
    whole = m.depth // UNROLL * UNROLL
    for d in k.range(0, whole, UNROLL):
        factors = [a[a_row, d + i] for i in range(UNROLL)]
        for c in k.lanes(first, last):
            total = sums[at(c)]
            for i, factor in enumerate(factors):
                total = added(k, factor, b[b_row + d + i, c], total)
            sums[at(c)] = total
    for rest in k.range(whole, m.depth):
        factor = a[a_row, rest]
        for c in k.lanes(first, last):
            sums[at(c)] = added(k, factor, b[b_row + rest, c], sums[at(c)])
    if is_short:
        for c in k.lanes(first, last):
            out[out_row, c] = sums[at(c)]


@kernel
def weights_by_column(
    k: Tracer, a: Array, b: Array, out: Array, *extent: Value, tile: int, block: int, **sizes: Any
) -> None:
    # out[i, j] = sum_k a[i, k] b[k, j]: `tile` rows i, `block` vectors of columns j; each b is read once per tile
    m = Matrices(**sizes)
    index, at, first = k.program(0), k.program(1) * tile, k.program(2) * (block * WIDTH)
    active = extent[0] if extent else m.rows
    a_row, b_row = m.a(index) * m.rows, m.b(index) * m.depth
    from_a = [k.minimum(at + i, active - 1) + a_row for i in range(tile)]
    starts, counts = column_vectors(k, first, m.columns, block)
    sums = zeros(k, tile, block, WIDTH)
    for d in k.range(m.depth):
        for j in range(block):
            weights = k.load_vector(b, b_row + d, starts[j], width=WIDTH, count=counts[j])
            for i in range(tile):
                sums[i][j].set(k.fma(k.splat(a[from_a[i], d], WIDTH), weights, sums[i][j].value))
    for i in range(tile):
        with k.when(at + i < active):
            for j in range(block):
                k.store_vector(out, sums[i][j].value, index * m.rows + at + i, starts[j], count=counts[j])


@kernel
def depth_by_lane(k: Tracer, a: Array, b: Array, out: Array, **sizes: Any) -> None:
    # out[i, j] = sum_k a[i, k] b[j, k]: row i, COLUMNS of j in sequence, lanes along k
    m = Matrices(**sizes)
    index, row, first = k.program(0), k.program(1), k.program(2) * COLUMNS
    a_row = m.a(index) * m.rows + row
    b_row = m.b(index) * m.columns
    for j in k.range(first, k.minimum(first + COLUMNS, m.columns)):
        total = k.accumulator("sum", f32 if out.dtype in SHORT else out.dtype)
        for c in k.lanes(m.depth):
            total.set(added(k, a[a_row, c], b[b_row + j, c], total.value))
        out[index * m.rows + row, j] = k.lanes_sum(total)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds a launch with a program per product, row and COLUMNS columns; on SIMD, of floats, per tile of sums in registers."""
    s = sizes_of(node)
    if target.backend == "simd" and not s.transposed and only_floats(node) is None:
        tile, block = TILE if target.lanes >= WIDTH else SMALL_TILE
        tiles = (ops.Cells(s.matrices), ops.Cells(s.rows, tile), ops.Cells(s.columns, block * WIDTH))
        constants = {"tile": tile, "block": block, **s.constants()}
        return ops.Build((ops.Launch(weights_by_column, s.operands, tiles, constants, s.extents, sizes=SIZES),))
    grid = (ops.Cells(s.matrices), ops.Cells(s.rows), ops.Cells(s.columns, COLUMNS))
    function = depth_by_lane if s.transposed else columns_by_lane
    wraps = node.outputs[0].dtype == i64  # as u64: the kernel language's i64 are indexes and must not overflow
    arrays = tuple(replace(o, dtype=u64) for o in s.operands) if wraps else s.operands
    return ops.Build((ops.Launch(function, arrays, grid, s.constants(), sizes=SIZES),))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """One multiply-add per lane and nanosecond; on CPUs, operands at 10 bytes per nanosecond."""
    reading = sum(spec.nbytes for spec in node.inputs) / 10 if target.backend in CPUS else 0.0
    return max(sizes_of(node).multiply_adds / target.lanes, reading)


LANES = ops.KernelVariant("lanes", ops.EVERYWHERE, _build, rounds_on_cpus, _cost)
