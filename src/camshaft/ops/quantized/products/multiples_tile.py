"""The variant `multiples` of quantized_matmul: multiples.py for prompts, on CPUs with AVX-512 VNNI."""

from __future__ import annotations

from typing import Any

from camshaft.dtypes import i64
from camshaft.lang import Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.quantized.operands import Rows
from camshaft.ops.quantized.packed.packing import ROWS, SUPER
from camshaft.ops.quantized.products.kernels import (
    FEW_ROWS,
    is_q8,
    operands,
    packed_only,
    product_build,
    tile_cost,
)
from camshaft.ops.quantized.products.multiples import FORMATS, STEP, program_of

# Tokens of a program, whose codes are half of the first cache; the most tiles of rows, whose totals are in the second; and the
# fewest programs, where there are as many tiles.
COLUMNS, MOST_TILES, PROGRAMS = 64, 32, 16


@kernel
def multiples_tile(
    k: Tracer, *arguments: Any, n: int, blocks: int, columns: int, tiles: int, bound: int, block: str
) -> None:
    # `tiles` tiles of 16 rows of weights x `columns` tokens per program
    given, supers = operands(k, arguments, block), blocks // SUPER
    first, tile = k.program(0) * columns, k.program(1) * tiles
    active = k.minimum((given.active[0] if given.active else k.const(bound, i64)) - first, columns)
    count, steps = k.minimum(-(-n // ROWS) - tile, tiles), (active + (STEP - 1)) // STEP
    made, zero = program_of(k, given.weights, columns, tiles, steps), k.const(0, i64)

    def rows(r: Value) -> Rows:
        return Rows(k, ROWS, n, tile + r)

    for i in k.range(SUPER):
        made.stage.fill(zero, rows(zero), zero, i)
    for s in k.range(supers):
        made.slab.fill(given.x, first, steps * STEP, bound, s, supers)
        for r in k.range(count):
            ends = r + 1 == count
            following = rows(k.select(ends, zero, r + 1)), k.minimum(k.select(ends, s + 1, s), supers - 1)
            made.add_tile(rows(r), s, r, (s * count + r) % 2, following)
    for r in k.range(count):
        for t in k.range(active):
            rows(r).store(given.out, k.var(k.load_vector(made.totals, r, t, 0, width=ROWS)), first + t)


def _values(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the default tokens and tiles of rows of a program."""
    bound, tiles = node.inputs[0].bounds[0], -(-node.inputs[1].bounds[0] // ROWS)
    most = max(1, min(tiles * -(-bound // COLUMNS) // PROGRAMS, MOST_TILES))
    return {"columns": COLUMNS, "tiles": -(-tiles // -(-tiles // most))}


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    x, w = node.inputs
    grid = ops.Cells(x.shape[0], values["columns"]), ops.Cells(w.bounds[0], ROWS * values["tiles"])
    return product_build(multiples_tile, node, grid, {"n": w.bounds[0], "bound": x.bounds[0], **values})


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    x, w = node.inputs
    if target.backend != "simd" or target.lanes != ROWS or "avx512vnni" not in target.features:
        return "takes CPUs with AVX-512 VNNI"
    if not is_q8(x):
        return "takes quantized activations"
    if w.dtype.name not in FORMATS:
        return f"takes weights of {', '.join(FORMATS)}"
    if x.bounds[0] <= FEW_ROWS:  # next tokens of sequences have the bits of one alone
        return f"takes more than {FEW_ROWS} tokens; got {x.bounds[0]}"
    return packed_only(node, target)


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on one Zen 4 core: 1.08 to 1.15 times the speed of a tile for 512 tokens."""
    return 0.9 * tile_cost(node, target)


TUNABLES = ops.Tunables({"columns": (32, 48, 64, 96, 128), "tiles": (1, 2, 4, 8, 16, 32, 64)}, _values, _build)
VARIANT = ops.KernelVariant("multiples", frozenset({"simd"}), TUNABLES.build_default, _supports, _cost, TUNABLES)
