"""quantized_matmul of many tokens on NEON's matrix unit (i8mm): a tile of tokens x rows, a group of k at a time.

The unit computes integer sums; vectors multiply them by the scales of group and token, as in kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from camshaft.dtypes import f32, i32, i64, u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.quantized.operands import Rows
from camshaft.ops.quantized.packed.formats import BLOCK
from camshaft.ops.quantized.packed.weights import Index, Packed
from camshaft.ops.quantized.products.kernels import is_q8, operands, packed_only, product_build

WORDS = BLOCK // 4


@dataclass(frozen=True)
class UnitTile:
    """The tile for CPUs with `features`: rows, most and fewest tokens.

    NEON's 32 registers have room for 8 sums of the unit, 8 totals and 8 words of codes.
    """

    features: frozenset[str]
    rows: int
    tokens: tuple[int, int]


TILES = (UnitTile(frozenset({"neon", "i8mm"}), 4, (8, 8)),)


@kernel
def q8_unit_tile(
    k: Tracer, *arguments: Any, n: int, blocks: int, rows: int, columns: int, bound: int, block: str
) -> None:
    # `rows` rows of weights x `columns` tokens per program; the last tile starts earlier, so that it is full
    given = operands(k, arguments, block)
    (x_codes, x_scales, x_sums), weights, mine = given.x, given.weights, Rows(k, rows, n)
    first, limit = k.program(1) * columns, given.active[0] if given.active else k.const(bound, i64)
    start = k.minimum(first, bound - columns)
    totals = [k.var(mine.spread(0.0)) for _ in range(columns)]
    unpacked, sums = k.scratch(u32, WORDS, rows), k.scratch(i32, columns, rows)
    depth = WORDS // weights.form.groups
    for b in k.range(blocks):
        source, *at = _code_words(k, weights, mine, unpacked, b)
        for g in range(weights.form.groups):
            product = k.word_tile(columns, rows, i32)
            product.mma(x_codes, (start, b * WORDS + g * depth), source, (*at[:-1], g * depth, at[-1]), k=depth)
            product.store(sums, (0, 0))
            k.barrier()
            added = _scaled(k, weights, mine, (x_scales, x_sums, sums), start, b, g)
            for i, total in enumerate(totals):
                total.set(added(i, total.value))
            k.barrier()
    for i, total in enumerate(totals):
        with k.when((start + i >= first) & (start + i < limit)):
            mine.store(given.out, total, start + i)


def _code_words(
    k: Tracer, weights: Packed, mine: Rows, unpacked: Array, b: Value
) -> tuple[Array, *tuple[Value | int, ...]]:
    """Returns where block b's code words are: in the weights if a code is a byte, else in `unpacked`. The result is an array,
    the indices before the word index, and the index after it."""
    form = weights.form
    if form.bits == 8 and form.table is None:
        return weights.codes, mine.tile, b, mine.row
    for w, word in enumerate(weights.code_words(mine.load, b)):
        k.store_vector(unpacked, word, w, 0)
    k.barrier()
    return unpacked, 0


def _scaled(
    k: Tracer, weights: Packed, mine: Rows, x: tuple[Array, Array, Array], start: Value, b: Value, g: int
) -> Callable[[Index, Value], Value]:
    """Returns the function that adds the integer sums of token i's group to its total. x: the tokens' scales and sums, and
    their scratch."""
    scales, x_sums, sums = x
    scale, minimum = weights.scale(mine.load, b, g)

    def added(i: Index, total: Value) -> Value:
        step, q_sum = scales[start + i, b], x_sums[start + i, b * weights.form.groups + g]
        dot = k.load_vector(sums, i, 0, width=mine.count)
        if minimum is None:
            return k.fma((dot + mine.spread(q_sum, i32)).to(f32), scale * step, total)
        return k.fma(minimum, mine.spread(q_sum), k.fma(dot.to(f32), scale * step, total))

    return added


def tile_of(target: ops.Target) -> UnitTile | None:
    """Returns the tile for the target's unit; None if it has none."""
    return next((tile for tile in TILES if tile.features <= target.features), None)


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    x = node.inputs[0]
    if not is_q8(x):
        return "takes quantized activations"
    tile = tile_of(target) if target.backend == "simd" else None
    if tile is None:
        return "takes CPUs that multiply matrices of bytes: NEON's i8mm"
    fewest = tile.tokens[-1]
    return f"a tile of {fewest} tokens for {x.bounds[0]}" if x.bounds[0] < fewest else packed_only(node, target)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds one launch with a program per tile."""
    (x, w), tile = node.inputs, tile_of(target)
    assert tile is not None
    columns = next(tokens for tokens in tile.tokens if tokens <= x.bounds[0])
    sizes = {"n": w.bounds[0], "rows": tile.rows, "columns": columns, "bound": x.bounds[0]}
    inputs = tuple(ops.read(0, part.name) for part in x.parts)
    grid = ops.Cells(w.bounds[0], tile.rows), ops.Cells(x.shape[0], columns)
    return product_build(q8_unit_tile, node, grid, sizes, x=inputs)


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """An estimate: half of the tile's instructions per weight and token."""
    return 0.0036 * node.inputs[0].bounds[0] * float(prod(node.inputs[1].bounds))


VARIANT = ops.KernelVariant("matrix_unit", frozenset({"simd"}), _build, _supports, _cost)
