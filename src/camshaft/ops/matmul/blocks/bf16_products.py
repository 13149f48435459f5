"""The variant of matmul of f32 on AMX for `precision` "bf16x3": three products of bf16, as one of three times the depth.

x = high + low with an error of at most 2^-17 |x|, both of bf16. So a b is nearly high high + high low + low high: rows
[high, high, low] of a times columns [high, low, high] of b. What is left out is about 2^-16 of a product. This is
XLA's BF16_BF16_F32_X3, and PyTorch's "high". An infinity, or a number that rounds to one (from 3.3961e38 on), gives NaN.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from camshaft.dtypes import bf16, i64, u16, u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels.bits import rest
from camshaft.ops.matmul.blocks import bf16_panels as panels
from camshaft.ops.matmul.blocks.unit_panels import STEP, without_tiles
from camshaft.ops.matmul.shapes import PAIR, WIDTH, Sizes, result_of, sizes_of
from camshaft.ops.spec import TensorSpec, bound

PRODUCTS = 3
# Which of the three parts of the depth has the low halves of a, and of b.
LOW_OF_A, LOW_OF_B = 2, 1
# Rows of a program that splits numbers.
ROWS = 32


def _halves(k: Tracer, values: Value, low: int) -> list[Value]:
    """Returns what each part of the depth holds of some numbers."""
    below = rest(k, values)
    return [below if part == low else values - below for part in range(PRODUCTS)]


@kernel
def split_along_rows(
    k: Tracer, x: Array, halves: Array, *extent: Value, rows: int, depth: int, padded: int, low: int
) -> None:
    # halves[r] = the halves of x[r], a part of the depth each: part `low` the low ones, others the high ones, 0 past the depth
    matrix, first = k.program(0), k.program(1) * ROWS
    for r in k.range(first, k.minimum(first + ROWS, extent[0] if extent else rows)):
        row = matrix * rows + r
        for at in k.range(padded // WIDTH):
            start = at * WIDTH
            count = k.minimum(k.maximum(depth - start, 0), WIDTH) if depth < padded else None
            values = k.load_vector(x, row, k.minimum(start, depth - 1), width=WIDTH, count=count)
            for part, half in enumerate(_halves(k, values, low)):
                k.store_vector(halves, half, row, start + part * padded)


@kernel
def split_along_columns(k: Tracer, x: Array, halves: Array, *, columns: int, depth: int, padded: int, low: int) -> None:
    # halves[matrix, part, d] = the halves of x[matrix, d], as in split_along_rows
    matrix, first = k.program(0), k.program(1) * ROWS
    for d in k.range(first, k.minimum(first + ROWS, padded)):
        row = matrix * depth + k.minimum(d, depth - 1)
        for at in k.range(-(-columns // WIDTH)):
            start, count = at * WIDTH, None
            if columns % WIDTH:
                count = k.minimum(columns - start, WIDTH)
            taken = count
            if depth < padded:
                taken = k.select(d < depth, k.const(WIDTH, i64) if count is None else count, 0)
            values = k.load_vector(x, row, start, width=WIDTH, count=taken)
            for part, half in enumerate(_halves(k, values, low)):
                k.store_vector(halves, half, matrix * (PRODUCTS * padded) + part * padded + d, start, count=count)


def _sizes(node: ops.NodeSpec) -> Sizes:
    """Returns the sizes of the product of halves."""
    s = sizes_of(node)
    return replace(s, depth=PRODUCTS * -(-s.depth // STEP) * STEP)


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    if (reason := without_tiles(target)) is not None:
        return reason
    if node.attrs.get("precision") != "bf16x3":
        return "takes precision 'bf16x3'"
    return panels.too_few_or_deep(_sizes(node), result_of(node))


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds launches that split a and b, and the product of the halves."""
    s, of_halves = sizes_of(node), _sizes(node)
    rows, padded = bound(s.rows), of_halves.depth // PRODUCTS
    a_shape = s.a_matrices * rows, of_halves.depth
    a, b, _ = s.operands
    sizes = {"depth": s.depth, "padded": padded}
    of_a = ops.Launch(
        split_along_rows,
        (a, ops.scratch(0, "write", shape=a_shape)),
        (ops.Cells(s.a_matrices), ops.Cells(s.rows, ROWS)),
        {"rows": rows, "low": LOW_OF_A, **sizes},
        s.extents,
    )
    written = ops.scratch(1, "write", shape=of_halves.b_shape)
    if s.transposed:
        grid = ops.Cells(s.b_matrices), ops.Cells(s.columns, ROWS)
        constants = {"rows": s.columns, "low": LOW_OF_B, **sizes}
        of_b = ops.Launch(split_along_rows, (b, written), grid, constants)
    else:
        grid = ops.Cells(s.b_matrices), ops.Cells(padded, ROWS)
        of_b = ops.Launch(split_along_columns, (b, written), grid, {"columns": s.columns, "low": LOW_OF_B, **sizes})
    words = (a_shape[0], a_shape[1] // PAIR)
    read = replace(ops.scratch(1, "read", shape=of_halves.b_shape), dtype=u16)
    if s.transposed:
        read = replace(read, shape=(of_halves.b_shape[0], of_halves.depth // PAIR), dtype=u32)
    product = panels.launch_of(
        of_halves.in_words, values, replace(ops.scratch(0, "read", shape=words), dtype=u32), read
    )
    return ops.Build((of_a, of_b, product), (TensorSpec(a_shape, bf16), TensorSpec(of_halves.b_shape, bf16)))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """That of the product, and 0.4 ns for each number that is split."""
    return panels.cost_of(_sizes(node)) + 0.4 * sum(prod(spec.bounds) for spec in node.inputs)


_TUNABLES = ops.Tunables(
    {"part": panels.PARTS, "panels": panels.PANELS, "rows": panels.ROWS},
    lambda node, target: panels.values_for(_sizes(node), result_of(node)),
    _build,
    lambda node, target, values: panels.refusal_of(_sizes(node), result_of(node), values),
)
BF16_PRODUCTS = ops.KernelVariant(
    "bf16_products",
    frozenset({"simd"}),
    _TUNABLES.build_default,
    _supports,
    _cost,
    _TUNABLES,
    tolerance={"f32": 1e-10},
)
