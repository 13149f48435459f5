"""quantized_matmul of many tokens on AMX: weights and activations as bf16, in tiles whose sums are f32.

Integer sums would have to leave the tiles at each scale, every 32 k, which costs what the tiles gain: 838 Gop/s, VNNI's 821. So a
program unpacks some columns of W^T to bf16, scales and minima included, a part of the depth at a time, and multiplies all tokens by
them. A launch before it writes the activations as tiles, so that a tile is 1 KiB in one piece. Products are exact in f32; both
factors are rounded to bf16, which adds a relative error of 2^-9 to each: less than a third of that of 8-bit activations.
"""

from __future__ import annotations

from math import prod
from typing import Any

from camshaft.dtypes import bf16, f32, i8, i64, u32
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.quantized.operands import Load, packed, weight_operands
from camshaft.ops.quantized.packed.formats import BLOCK
from camshaft.ops.quantized.packed.packing import ROWS
from camshaft.ops.quantized.products.kernels import is_q8, packed_only
from camshaft.ops.quantized.products.unpacked_kernels import unpacked_block
from camshaft.ops.spec import TensorSpec

FEATURES = frozenset({"amx-tile", "amx-bf16"})
# Tokens and columns of four tiles of sums; words of two k in a block of 32, the depth of a tile.
SIDE, WORDS = 32, BLOCK // 2
# The most tokens of a program: each block of so many unpacks the weights again.
MOST_TOKENS = 512
# Next tokens of up to so many sequences have the sums of one alone, so they are left to `tile`.
FEW_TOKENS = 16
# Blocks of a part of the depth, and panels of a program.
PARTS, PANELS = (8, 12, 16, 24, 32, 48, 64), (1, 2, 3, 4, 6, 8)
TOLERANCE = {"f32": 4e-5}


@kernel
def tokens_to_tiles(k: Tracer, codes: Array, scales: Array, out: Array, *, blocks: int) -> None:
    # out[t // 32, b, t % 32, :] = block b of token t as bf16
    t = k.program(0)
    for b in k.range(blocks):
        scale = k.splat(scales[t, b], 16, f32)
        for half in (0, 16):
            numbers = k.load_vector(codes, t, b * BLOCK + half, width=16).to(f32) * scale
            k.store_vector(out, numbers, t // SIDE, b, t % SIDE, half)


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
    # out[t, j] = sum_k x[t, k] w[j, k] of `panels` panels of 32 columns and `tokens` tokens per program, `part` blocks at a time
    weights, first = packed(k, codes, scales, extra, form), k.program(0) * panels
    start, limit = k.program(1) * tokens, extent[0] if extent else k.const(bound, i64)
    count = (k.minimum(limit - start, tokens) + (SIDE - 1)) // SIDE
    parts, columns = -(-blocks // part), k.minimum(-(-n // SIDE) - first, panels)
    unpacked = k.scratch(u32, panels, part, WORDS, SIDE)
    sums = k.scratch(f32, panels if parts > 1 else 1, tokens if parts > 1 else SIDE, SIDE)
    if parts > 1:
        for panel in k.range(columns):
            for i in k.range(count * SIDE):
                for half in (0, ROWS):
                    k.store_vector(sums, k.splat(0.0, ROWS, f32), panel, i, half)
    for number in k.range(parts):
        begin = number * part
        depth = k.minimum(blocks - begin, part)
        k.barrier()
        for panel in k.range(columns):
            for half in (0, 1):
                tile = k.minimum((first + panel) * 2 + half, codes.shape[0] - 1)

                def load(array: Array, *at: Any, tile: Value = tile) -> Value:
                    return k.load_vector(array, tile, *at, 0, width=ROWS)

                for b in k.range(depth):
                    numbers = list(unpacked_block(weights, load, begin + b))
                    for w in range(WORDS):
                        pair = _pair(k, numbers[2 * w], numbers[2 * w + 1])
                        k.store_vector(unpacked, pair, panel, b, w, half * ROWS)
        k.barrier()
        for panel in k.range(columns):
            for i in k.range(count):
                at = (panel, i * SIDE, 0) if parts > 1 else (0, 0, 0)
                total = k.word_tile(SIDE, SIDE, f32, (sums, at) if parts > 1 else None)
                for b in k.range(depth):
                    total.mma(x, (start // SIDE + i, begin + b, 0, 0), unpacked, (panel, b, 0, 0), k=WORDS)
                total.store(sums, at)
                with k.when(number == parts - 1):
                    k.barrier()
                    for j in k.range(k.minimum(limit - (start + i * SIDE), SIDE)):
                        for half in (0, ROWS):
                            column = (first + panel) * SIDE + half
                            with k.when(column < n):
                                values = k.load_vector(sums, at[0], at[1] + j, half, width=ROWS)
                                where = start + i * SIDE + j, column
                                k.store_vector(out, values, *where, count=k.minimum(n - column, ROWS))
                    k.barrier()


def _pair(k: Tracer, first: Value, second: Value) -> Value:
    """Returns words of two bf16 of each lane, rounded to nearest, ties away from 0."""
    low, high = (k.bitcast(value, u32) + 0x8000 for value in (first, second))
    return (low >> 16) | (high & 0xFFFF0000)


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    x = node.inputs[0]
    if target.backend != "simd" or not FEATURES <= target.features:
        return "takes CPUs with AMX's tiles of bf16"
    if not is_q8(x):
        return "takes quantized activations"
    if x.bounds[0] <= FEW_TOKENS:
        return f"takes more than {FEW_TOKENS} tokens; got {x.bounds[0]}"
    return packed_only(node, target)


def _defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the cost model's choice."""
    n, k = node.inputs[1].bounds
    blocks = k // BLOCK
    parts = -(-blocks // 32)
    part = next(p for p in PARTS if p * parts >= blocks)
    return {"part": part, "panels": 4 if parts > 1 else 1}


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds a launch that writes the activations as tiles, then one with a program per block of columns and tokens."""
    x, w = node.inputs
    (n, depth), bound = w.bounds, x.bounds[0]
    blocks = depth // BLOCK
    tiles = TensorSpec((-(-bound // SIDE), blocks, SIDE, BLOCK), bf16)
    codes = ops.Operand("input", 0, "codes", x.bounds, "read", i8)
    first = ops.Launch(
        tokens_to_tiles, (codes, ops.read(0, "scales"), ops.scratch(0, "write")), (ops.Cells(x.shape[0]),), {"blocks": blocks}
    )
    tokens = min(-(-bound // SIDE) * SIDE, MOST_TOKENS)
    part = -(-blocks // -(-blocks // values["part"]))
    sizes = {"n": n, "blocks": blocks, "bound": bound, "tokens": tokens, "part": part, "panels": values["panels"]}
    words = ops.Operand("scratch", 0, "data", (*tiles.shape[:-1], WORDS), "read", u32)
    active = (x.shape[0],) if isinstance(x.shape[0], Extent) else ()
    second = ops.Launch(
        multiply_tiles,
        (words, *weight_operands(node), ops.write(0)),
        (ops.Cells(n, SIDE * values["panels"]), ops.Cells(x.shape[0], tokens)),
        {**sizes, "form": w.dtype.name},
        active,
    )
    return ops.Build((first, second), (tiles,))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """An estimate."""
    (x, w) = node.inputs[:2]
    blocks = -(-x.bounds[0] // MOST_TOKENS)
    return (0.0016 * x.bounds[0] + 0.08 * blocks) * float(prod(w.bounds)) + 1000.0


_TUNABLES = ops.Tunables({"part": PARTS, "panels": PANELS}, _defaults, _build)
VARIANT = ops.KernelVariant(
    "unpacked_tiles", frozenset({"simd"}), _TUNABLES.build_default, _supports, _cost, _TUNABLES, tolerance=TOLERANCE
)
