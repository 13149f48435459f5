"""The general variant of matmul, for every target: out[i, j] = sum_k a[i, k] b[k, j], with k.lanes."""

from __future__ import annotations

from typing import TypeAlias

from camshaft.dtypes import f32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.matmul.shapes import SHORT, rounds_on_cpus, sizes_of
from camshaft.ops.spec import bound

COLUMNS = 256  # columns of a program: its sums stay in the L1 cache
UNROLL = 4


Axes: TypeAlias = tuple[int, ...]


def matrix_of(index: Value, batch: Axes, steps: Axes) -> Value | int:
    """Returns the index of an operand's matrix for product `index` of the batch; the constant 0 if it has only one."""
    found: Value | int = 0
    for size, step in zip(reversed(batch), reversed(steps), strict=True):
        if step:
            found = index % size * step + found
        index = index // size
    return found


def added(k: Tracer, a: Value, b: Value, total: Value) -> Value:
    """a b + total."""
    return k.fma(a, b, total) if total.dtype.is_float else a * b + total


@kernel
def columns_by_lane(
    k: Tracer,
    a: Array,
    b: Array,
    out: Array,
    *,
    rows: int,
    columns: int,
    depth: int,
    batch: Axes,
    a_steps: Axes,
    b_steps: Axes,
) -> None:
    # out[i, j] = sum_k a[i, k] b[k, j]: row i, COLUMNS columns, four k at a time; the sums are kept in out, or
    # in scratch where out has a shorter dtype
    index, row, first = k.program(0), k.program(1), k.program(2) * COLUMNS
    last = k.minimum(first + COLUMNS, columns)
    a_row = matrix_of(index, batch, a_steps) * rows + row
    b_row = matrix_of(index, batch, b_steps) * depth
    out_row, is_short = index * rows + row, out.dtype in SHORT
    sums = k.scratch(f32, COLUMNS) if is_short else out

    def at(c: Value) -> tuple[Value, ...]:
        return (c - first,) if is_short else (out_row, c)

    for c in k.lanes(first, last):
        sums[at(c)] = 0
    whole = depth // UNROLL * UNROLL
    for d in k.range(0, whole, UNROLL):
        factors = [a[a_row, d + i] for i in range(UNROLL)]
        for c in k.lanes(first, last):
            total = sums[at(c)]
            for i, factor in enumerate(factors):
                total = added(k, factor, b[b_row + d + i, c], total)
            sums[at(c)] = total
    for rest in range(whole, depth):
        factor = a[a_row, rest]
        for c in k.lanes(first, last):
            sums[at(c)] = added(k, factor, b[b_row + rest, c], sums[at(c)])
    if is_short:
        for c in k.lanes(first, last):
            out[out_row, c] = sums[at(c)]


@kernel
def depth_by_lane(
    k: Tracer,
    a: Array,
    b: Array,
    out: Array,
    *,
    rows: int,
    columns: int,
    depth: int,
    batch: Axes,
    a_steps: Axes,
    b_steps: Axes,
) -> None:
    # out[i, j] = sum_k a[i, k] b[j, k]: row i, COLUMNS of j in sequence, lanes along k
    index, row, first = k.program(0), k.program(1), k.program(2) * COLUMNS
    a_row = matrix_of(index, batch, a_steps) * rows + row
    b_row = matrix_of(index, batch, b_steps) * columns
    for j in k.range(first, k.minimum(first + COLUMNS, columns)):
        total = k.accumulator("sum", f32 if out.dtype in SHORT else out.dtype)
        for c in k.lanes(depth):
            total.set(added(k, a[a_row, c], b[b_row + j, c], total.value))
        out[index * rows + row, j] = k.lanes_sum(total)


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    return rounds_on_cpus(node, target)


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds a launch with a program per product, row and COLUMNS columns."""
    s = sizes_of(node)
    rows = bound(s.rows)
    arrays = (
        ops.read(0, shape=(s.a_matrices * rows, s.depth)),
        ops.read(1, shape=s.b_shape),
        ops.write(0, shape=(s.matrices * rows, s.columns)),
    )
    sizes = {"rows": rows, "columns": s.columns, "depth": s.depth}
    grid = (ops.Cells(s.matrices), ops.Cells(s.rows), ops.Cells(s.columns, COLUMNS))
    return ops.Build(
        (ops.Launch(depth_by_lane if s.transposed else columns_by_lane, arrays, grid, {**sizes, **s.constants()}),)
    )


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """One multiply-add per lane and nanosecond; on CPUs, operands at 10 bytes per nanosecond."""
    reading = sum(spec.nbytes for spec in node.inputs) / 10 if target.backend in ("scalar", "simd", "c") else 0.0
    return max(sizes_of(node).multiply_adds / target.lanes, reading)
