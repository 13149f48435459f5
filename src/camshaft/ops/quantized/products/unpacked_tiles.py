"""quantized_matmul of many tokens on AMX: weights and activations as bf16, in tiles whose sums are f32.

Integer sums would have to leave the tiles at each scale, every 32 k, which costs what the tiles gain (838 Gop/s, VNNI 821). So
a program unpacks some columns of W^T to bf16, scales and minima included, a part of the depth at a time, and multiplies all
tokens by them. A launch before it writes the activations as tiles, so that a tile is 1 KiB in one piece. Products are exact in
f32; both factors are rounded to bf16, a relative error of 2^-9 at most: less than a third of that of 8-bit activations.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from camshaft.dtypes import bf16, f32, i8, i64, u32
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels.bf16_words import pair
from camshaft.ops.matmul.blocks.unit_panels import (
    MOST_ROWS,
    PANELS,
    PARTS,
    SIDE,
    WORDS,
    Block,
    Panel,
    multiply,
    values_for,
    without_tiles,
)
from camshaft.ops.quantized.operands import Packed, packed, weight_operands
from camshaft.ops.quantized.packed.formats import BLOCK
from camshaft.ops.quantized.packed.packing import ROWS
from camshaft.ops.quantized.products.kernels import is_q8, packed_only
from camshaft.ops.quantized.products.unpacked_kernels import unpacked_block
from camshaft.ops.spec import TensorSpec

# Next tokens of up to so many sequences have the sums of one alone, so they are left to `tile`.
FEW_TOKENS = 16
TOLERANCE = {"f32": 2e-5}


@kernel
def tokens_to_tiles(k: Tracer, codes: Array, scales: Array, out: Array, *extent: Value, blocks: int) -> None:
    # out[t // 32, b, t % 32, :] = block b of token t as bf16
    tile, active = k.program(0), extent[0] if extent else k.const(codes.shape[0], i64)
    for b in k.range(blocks):
        for i in k.range(k.minimum(active - tile * SIDE, SIDE)):
            t = tile * SIDE + i
            scale = k.splat(scales[t, b], ROWS, f32)
            for half in (0, ROWS):
                numbers = k.load_vector(codes, t, b * BLOCK + half, width=ROWS).to(f32) * scale
                k.store_vector(out, numbers, tile, b, i, half)


def unpack(k: Tracer, weights: Packed, panel: Panel, number: Value) -> None:
    """Fills a panel with columns 32 number to 32 number + 31 of W^T; tiles of rows of W past the last repeat it."""
    for half in (0, 1):
        tile = k.minimum(number * (SIDE // ROWS) + half, weights.codes.shape[0] - 1)

        def load(array: Array, *at: Any, tile: Value = tile) -> Value:
            return k.load_vector(array, tile, *at, 0, width=ROWS)

        for b in k.range(panel.depth):
            numbers = list(unpacked_block(weights, load, panel.begin + b))
            for w in range(WORDS):
                word = pair(k, numbers[2 * w], numbers[2 * w + 1])
                k.store_vector(panel.words, word, *panel.at, b, w, half * ROWS)


@kernel
def multiply_tiles(
    k: Tracer,
    x: Array,
    codes: Array,
    scales: Array,
    extra: Array,
    out: Array,
    *extent: Value,
    n: int,
    blocks: int,
    bound: int,
    tokens: int,
    part: int,
    panels: int,
    form: str,
) -> None:
    # out[t, j] = sum_k x[t, k] w[j, k]; x as tiles
    weights, start = packed(k, codes, scales, extra, form), k.program(1) * tokens
    limit = extent[0] if extent else k.const(bound, i64)
    block = Block(k.program(0) * panels, start, limit, 0, n, blocks, tokens, part, panels)
    fill = partial(unpack, k, weights)
    multiply(k, x, out, block, fill, lambda row, step: (row // SIDE, step, 0, 0), None)


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why tiles of bf16 do not take the node, or None."""
    x = node.inputs[0]
    if (reason := without_tiles(target)) is not None:
        return reason
    if not is_q8(x):
        return "takes quantized activations"
    if x.bounds[0] <= FEW_TOKENS:
        return f"takes more than {FEW_TOKENS} tokens; got {x.bounds[0]}"
    return packed_only(node, target)


def _defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the cost model's choice."""
    return values_for(node.inputs[1].bounds[1] // BLOCK)


def tiles_of(node: ops.NodeSpec) -> tuple[ops.Launch, TensorSpec, ops.Operand]:
    """Returns the launch that writes input 0 as tiles to scratch tensor 0, its spec, and the operand that reads its words."""
    x = node.inputs[0]
    bound, depth = x.bounds
    tiles = TensorSpec((-(-bound // SIDE), depth // BLOCK, SIDE, BLOCK), bf16)
    codes = ops.Operand("input", 0, "codes", x.bounds, "read", i8)
    arrays = codes, ops.read(0, "scales"), ops.scratch(0, "write")
    extents = (x.shape[0],) if isinstance(x.shape[0], Extent) else ()
    grid = (ops.Cells(x.shape[0], SIDE),)
    launch = ops.Launch(tokens_to_tiles, arrays, grid, {"blocks": depth // BLOCK}, extents)
    return launch, tiles, ops.Operand("scratch", 0, "data", (*tiles.bounds[:-1], WORDS), "read", u32)


def tokens_of(tiles: TensorSpec) -> int:
    """Returns the tokens of a program."""
    return min(tiles.bounds[0] * SIDE, MOST_ROWS)


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds the launch that writes the activations as tiles, then one with a program per block of columns and tokens."""
    x, w = node.inputs
    (n, depth), bound, panels = w.bounds, x.bounds[0], values["panels"]
    first, tiles, words = tiles_of(node)
    tokens = tokens_of(tiles)
    blocks, parts = depth // BLOCK, -(-(depth // BLOCK) // values["part"])
    sizes = {"n": n, "blocks": blocks, "bound": bound, "tokens": tokens, "part": -(-blocks // parts), "panels": panels}
    second = ops.Launch(
        multiply_tiles,
        (words, *weight_operands(node), ops.write(0)),
        (ops.Cells(n, SIDE * panels), ops.Cells(x.shape[0], tokens)),
        {**sizes, "form": w.dtype.name},
        (x.shape[0],) if isinstance(x.shape[0], Extent) else (),
    )
    return ops.Build((first, second), (tiles,))


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Emerald Rapids: 1.25 multiply-adds per ps... placeholder."""
    x, w = node.inputs[:2]
    return (0.0016 * x.bounds[0] + 0.08 * -(-x.bounds[0] // MOST_ROWS)) * float(prod(w.bounds)) + 1000.0


_TUNABLES = ops.Tunables({"part": PARTS, "panels": PANELS}, _defaults, _build)
VARIANT = ops.KernelVariant(
    "unpacked_tiles", frozenset({"simd"}), _TUNABLES.build_default, supports, cost, _TUNABLES, tolerance=TOLERANCE
)
