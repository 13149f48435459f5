"""Products of many tokens with packed weights on AMX, x W^T and x W: both as bf16, in tiles whose sums are f32.

Integer sums would have to leave the tiles at each scale, every 32 k, which costs what the tiles gain (838 Gop/s, VNNI 821). So
a program unpacks some columns of W^T to bf16, scales and minima included, a part of the depth at a time, and multiplies all
tokens by them. Activations come as bf16 in tiles, each 1 KiB in one piece, in place of 8-bit codes: rounding them to bf16 adds a
relative error of 2^-9 at most, a fourth of what codes do, and so does rounding the weights. Products are exact in f32.

For x W the depth is the rows of W, of which a packed vector has 16. A block of 32 rows and 32 columns is unpacked to words of two
rows, column by column, which are then read row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

from camshaft.dtypes import f32, i64, u32
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels.bits import GROWN, HALF, HIGH, cut_pair
from camshaft.ops.matmul.blocks.unit_panels import (
    MOST_ROWS,
    PANELS,
    PARTS,
    SIDE,
    WORDS,
    Block,
    Panel,
    even_part,
    multiply,
    refusal_of,
    values_for,
    without_tiles,
)
from camshaft.ops.quantize.quantize_activations import is_tiled
from camshaft.ops.quantized.packed.formats import BLOCK
from camshaft.ops.quantized.packed.packing import ROWS
from camshaft.ops.quantized.packed.weights import Load, Packed, moved, packed, weight_operands
from camshaft.ops.quantized.products.kernels import packed_weights
from camshaft.ops.quantized.products.unpacked_kernels import unpacked_block
from camshaft.ops.spec import TensorSpec

TOLERANCE = {"f32": 2e-5}
# 32-bit words of codes that are prefetched ahead of those that are unpacked.
AHEAD = 128
F32_FRACTION, F32_BIAS = 23, 127
# The time of unpacking a weight (Emerald Rapids), and of turning it too.
UNPACKED_NS, TURNED_NS = 0.08, 0.3


def unpack(k: Tracer, weights: Packed, panel: Panel, number: Value) -> None:
    """Fills a panel with columns 32 number to 32 number + 31 of W^T; tiles of rows of W past the last repeat it."""
    tiles = [k.minimum(number * (SIDE // ROWS) + half, weights.codes.shape[0] - 1) for half in (0, 1)]
    for b in k.range(panel.depth):
        for half, tile in enumerate(tiles):

            def load(array: Array, *at: Any, tile: Value = tile) -> Value:
                return k.load_vector(array, tile, *at, 0, width=ROWS)

            weights.prefetch(tile, panel.begin + b, AHEAD)
            numbers = list(_numbers(weights, load, panel.begin + b))
            for w in range(WORDS):
                word = cut_pair(k, numbers[2 * w], numbers[2 * w + 1])
                k.store_vector(panel.words, word, *panel.at, panel.first + b, half * WORDS + w, 0)


def _numbers(weights: Packed, load: Load, b: Value) -> Iterator[Value]:
    """Yields the numbers of block b's 32 columns, a vector of rows each, times GROWN; within 2^-17 of a scale, 2^-9 for 8 bits.

    A code is put into the fraction of 2^7 (or 2^15), which makes it a float without a conversion; what is added takes 2^7 times
    the scale away."""
    k, form = weights.k, weights.form
    words = weights.code_words(load, b)
    bits = (max(form.table) if form.table else (1 << form.bits) - 1).bit_length()
    place = 16 if bits < 8 else 8
    exponent = F32_BIAS + F32_FRACTION - place
    for g in range(form.groups):
        scale, minimum = (None if x is None else x * GROWN for x in weights.scale(load, b, g))
        assert scale is not None
        unit = 2.0 ** (F32_FRACTION - place)
        base = (
            scale * -(unit + (form.zero_point or 0)) if minimum is None else k.fma(scale, k.splat(-unit, ROWS), minimum)
        )
        for w in range(g * 8 // form.groups, (g + 1) * 8 // form.groups):
            for byte in range(4):
                code = moved(words[w], 8 * byte, place, (1 << bits) - 1)
                yield k.fma(k.bitcast(code | (exponent << F32_FRACTION), f32), scale, base)


def turn(k: Tracer, weights: Packed, columns: Array, panel: Panel, number: Value) -> None:
    """Fills a panel with columns 32 number to 32 number + 31 of W, whose steps are 32 rows each; the columns past the last are
    never stored. `columns`: scratch [32, 16] of a step's words of two rows."""
    for step in k.range(panel.depth):
        for half in (0, 1):
            tile = (panel.begin + step) * (SIDE // ROWS) + half

            def load(array: Array, *at: Any, tile: Value = tile) -> Value:
                return k.load_vector(array, tile, *at, 0, width=ROWS)

            for c, numbers in enumerate(unpacked_block(weights, load, number)):
                k.store_vector(columns, row_pairs(k, numbers), c, half * (WORDS // 2), count=WORDS // 2)
        for half in range(SIDE // ROWS):
            for row in k.lanes(ROWS):
                for w in range(WORDS):
                    word = k.gather(columns, half * ROWS + row, w)
                    panel.words[(*panel.at, panel.first + step, half * WORDS + w, row)] = word


def row_pairs(k: Tracer, numbers: Value) -> Value:
    """Returns words of elements 0 and 1, 2 and 3, .. of a vector of f32, each rounded to bf16, ties away from 0; then zeros."""
    bits, odd = k.bitcast(numbers, u32) + HALF, k.iota(numbers.width) & 1
    low, high = (k.pack(bits, odd == parity) for parity in (0, 1))
    return (low >> 16) | (high & HIGH)


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
    turns: bool,
) -> None:
    # out[t, j] = sum_k x[t, k] w[j, k], or if it turns w[k, j]; x as tiles
    weights, start = packed(k, codes, scales, extra, form), k.program(1) * tokens
    limit = extent[0] if extent else k.const(bound, i64)
    block = Block(k.program(0) * panels, start, limit, n, blocks, tokens, part, panels)
    fill = partial(turn, k, weights, k.scratch(u32, SIDE, WORDS)) if turns else partial(unpack, k, weights)
    multiply(k, x, out, block, fill, lambda row, step: (row // SIDE, step, 0, 0))


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why tiles of bf16 do not take the node, or None."""
    x = node.inputs[0]
    return (
        without_tiles(target) or packed_weights(node) or (None if is_tiled(x) else "takes activations of bf16 in tiles")
    )


def words_of(x: TensorSpec) -> ops.Operand:
    """Returns the operand that reads input 0, bf16 in tiles, as words."""
    (tiles,) = x.parts
    return ops.Operand("input", 0, tiles.name, (*tiles.shape[:-1], WORDS), "read", u32)


def tokens_of(x: TensorSpec) -> int:
    """Returns the tokens of a program."""
    return min(-(-x.bounds[0] // SIDE) * SIDE, MOST_ROWS)


def cost(node: ops.NodeSpec, target: ops.Target, unpacked_ns: float = UNPACKED_NS) -> float:
    """Measured on Emerald Rapids: 500 multiply-adds per ns; unpacking a weight takes `unpacked_ns`."""
    x, w = node.inputs[:2]
    return (0.002 * x.bounds[0] + unpacked_ns * -(-x.bounds[0] // MOST_ROWS)) * float(prod(w.bounds))


def variant(turns: bool) -> ops.KernelVariant:
    """Returns the variant of the product x W, if it `turns`, or x W^T."""

    def steps_of(node: ops.NodeSpec) -> int:
        return node.inputs[0].bounds[1] // BLOCK

    def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
        """The cost model's choice."""
        return values_for(steps_of(node), node.outputs[0].bounds[1])

    def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
        return refusal_of(values, steps_of(node), tokens_of(node.inputs[0]), 4 * SIDE * WORDS if turns else 0)

    def build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
        """A launch with a program per block of columns and tokens."""
        (x, w), (y,) = node.inputs, node.outputs
        n, bound, panels, tokens = y.bounds[1], x.bounds[0], values["panels"], tokens_of(x)
        blocks = steps_of(node)
        sizes = {"n": n, "blocks": blocks, "bound": bound, "tokens": tokens, "panels": panels}
        launch = ops.Launch(
            multiply_tiles,
            (words_of(x), *weight_operands(node), ops.write(0)),
            (ops.Cells(n, SIDE * panels), ops.Cells(x.shape[0], tokens)),
            {**sizes, "part": even_part(blocks, values["part"]), "form": w.dtype.name, "turns": turns},
            (x.shape[0],) if isinstance(x.shape[0], Extent) else (),
        )
        return ops.Build((launch,))

    each = partial(cost, unpacked_ns=TURNED_NS) if turns else cost
    values = ops.Tunables({"part": PARTS, "panels": PANELS}, defaults, build, refusal)
    name = "unpacked_tiles"
    return ops.KernelVariant(
        name, frozenset({"simd"}), values.build_default, supports, each, values, tolerance=TOLERANCE
    )
