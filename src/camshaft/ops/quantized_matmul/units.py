"""quantized_matmul of many tokens on a CPU's matrix unit (AMX, NEON's i8mm): a tile of tokens x rows, a group of k at a time.

The unit adds up whole numbers; what a group's scale and the token's make of them goes on in vectors, as in kernels.py.
"""

from __future__ import annotations

from camshaft.dtypes import f32, i32, i64, u32
from camshaft.extent import Extent
from camshaft.lang.ir import Value
from camshaft.lang.kernel import kernel
from camshaft.lang.tracer import Array, Tracer, Variable
from camshaft.ops import op as ops
from camshaft.ops.quantized_matmul.packing import BLOCK
from camshaft.ops.quantized_matmul.rows import Rows
from camshaft.ops.quantized_matmul.unpacking import Packed, packed
from camshaft.ops.spec import TensorSpec

# features -> rows and tokens of a tile: one tile of AMX; the sums, their f32 totals and the operands in 32 registers of NEON
TILES = {frozenset({"amx-tile", "amx-int8"}): (16, 16), frozenset({"neon", "i8mm"}): (8, 4)}
WORDS = BLOCK // 4


@kernel
def q8_unit_tile(
    k: Tracer, x_codes: Array, x_scales: Array, x_sums: Array, codes: Array, scales: Array, extra: Array, out: Array,
    *active: Value, n: int, blocks: int, rows: int, columns: int, bound: int, block: str,
) -> None:  # fmt: skip
    # `rows` weights' rows x `columns` tokens a program; a ragged end's tile starts earlier, so that all that is read is there
    weights, mine = packed(k, codes, scales, extra, block), Rows(k, rows, n)
    first, limit = k.program(1) * columns, active[0] if active else k.const(bound, i64)
    start = k.minimum(first, bound - columns)
    totals = [k.var(mine.spread(0.0)) for _ in range(columns)]
    unpacked, sums = k.scratch(u32, WORDS, rows), k.scratch(i32, columns, rows)
    for b in k.range(blocks):
        source, *at = _code_words(k, weights, mine, unpacked, b)
        for g in range(weights.form.groups):
            depth = WORDS // weights.form.groups
            product = k.word_tile(columns, rows, i32)
            product.mma(x_codes, (start, b * WORDS + g * depth), source, (*at[:-1], g * depth, at[-1]), k=depth)
            product.store(sums, (0, 0))
            k.barrier()
            _add_scaled(k, weights, mine, (x_scales, x_sums, sums), totals, start, b, g)
    for i, total in enumerate(totals):
        with k.when((start + i >= first) & (start + i < limit)):
            mine.store(out, total, start + i)


def _code_words(
    k: Tracer, weights: Packed, mine: Rows, unpacked: Array, b: Value
) -> tuple[Array, *tuple[Value | int, ...]]:
    """Where block b's words of codes lie: the weights themselves where a code is a byte, else `unpacked`; an array, the indices
    before its words, and the one after them."""
    form = weights.form
    if form.bits == 8 and form.table is None:
        return weights.codes, mine.tile, b, mine.row
    for w, word in enumerate(weights.code_words(mine.load, b)):
        k.store_vector(unpacked, word, w, 0)
    k.barrier()
    return unpacked, 0


def _add_scaled(
    k: Tracer, weights: Packed, mine: Rows, x: tuple[Array, Array, Array], totals: list[Variable], start: Value, b: Value, g: int
) -> None:  # fmt: skip
    """The group's whole sums, in scratch, to the totals; x: the tokens' scales and sums, and that scratch."""
    scales, x_sums, sums = x
    scale, minimum = weights.scale(mine.load, b, g)
    for i, total in enumerate(totals):
        step, q_sum = scales[start + i, b], x_sums[start + i, b * weights.form.groups + g]
        dot = k.load_vector(sums, i, 0, width=mine.count)
        if minimum is None:
            dot = dot + mine.spread(q_sum, i32)
        total.set(k.fma(dot.to(f32), scale * step, total.value))
        if minimum is not None:
            total.set(k.fma(minimum, mine.spread(q_sum), total.value))


def tile_of(target: ops.Target) -> tuple[int, int] | None:
    """Rows and tokens of the tile of the target's unit; None without one."""
    return next((tile for features, tile in TILES.items() if features <= target.features), None)


def refusal(x: TensorSpec, target: ops.Target) -> str | None:
    """Why the unit does not take so many quantized tokens, or None."""
    tile = tile_of(target) if target.backend == "simd" else None
    if tile is None:
        return "takes CPUs that multiply matrices of bytes: AMX's or NEON's i8mm"
    return f"a tile of {tile[1]} tokens for {x.bounds[0]}" if x.bounds[0] < tile[1] else None


def launch(node: ops.NodeSpec, target: ops.Target, weights: tuple[ops.Operand, ...]) -> ops.Launch:
    """A program per tile; `weights`: the operands of the packed weights."""
    (x, w), tile = node.inputs, tile_of(target)
    assert tile is not None
    rows, columns = tile
    sizes = {"n": w.bounds[0], "blocks": w.bounds[1] // BLOCK, "rows": rows, "columns": columns, "bound": x.bounds[0]}
    return ops.Launch(
        q8_unit_tile,
        (ops.read(0, "codes"), ops.read(0, "scales"), ops.read(0, "sums"), *weights, ops.write(0)),
        (ops.Cells(w.bounds[0], rows), ops.Cells(x.shape[0], columns)),
        {**sizes, "block": w.dtype.name},
        (x.shape[0],) if isinstance(x.shape[0], Extent) else (),
    )
