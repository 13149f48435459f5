"""quantized_matmul of many tokens on AMX: weights and activations as bf16, in tiles whose sums are f32.

Integer sums would have to leave the tiles at each scale, every 32 k, which costs what the tiles gain: 838 Gop/s, VNNI's 821. So a
program unpacks some columns of W^T to bf16, scales and minima included, a part of the depth at a time, and multiplies all tokens by
them. A launch before it writes the activations as tiles, so that a tile is 1 KiB in one piece. Products are exact in f32; both
factors are rounded to bf16, which adds a relative error of 2^-9 to each: less than a third of that of 8-bit activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from camshaft.dtypes import bf16, f32, i8, i64, u32
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels.bf16_words import pair
from camshaft.ops.quantized.operands import Packed, packed, weight_operands
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
# Blocks of a part of the depth, and panels of 32 columns of a program.
PARTS, PANELS = (8, 12, 16, 24, 32, 48, 64), (1, 2, 3, 4, 6, 8)
TOLERANCE = {"f32": 2e-5}


@kernel
def tokens_to_tiles(k: Tracer, codes: Array, scales: Array, out: Array, *, blocks: int) -> None:
    # out[t // 32, b, t % 32, :] = block b of token t as bf16
    t = k.program(0)
    for b in k.range(blocks):
        scale = k.splat(scales[t, b], ROWS, f32)
        for half in (0, ROWS):
            numbers = k.load_vector(codes, t, b * BLOCK + half, width=ROWS).to(f32) * scale
            k.store_vector(out, numbers, t // SIDE, b, t % SIDE, half)


@dataclass(frozen=True)
class Panel:
    """32 columns of W^T as words of two k: blocks `begin` to `begin + depth` lie in words[at.., b]."""

    k: Tracer
    words: Array
    at: tuple[Value, ...]
    begin: Value
    depth: Value

    def unpack(self, weights: Packed, panel: Value) -> None:
        """Writes columns 32 panel to 32 panel + 31; tiles of rows of W past the last repeat it."""
        k = self.k
        for half in (0, 1):
            tile = k.minimum(panel * (SIDE // ROWS) + half, weights.codes.shape[0] - 1)

            def load(array: Array, *at: Any, tile: Value = tile) -> Value:
                return k.load_vector(array, tile, *at, 0, width=ROWS)

            for b in k.range(self.depth):
                numbers = list(unpacked_block(weights, load, self.begin + b))
                for w in range(WORDS):
                    word = pair(k, numbers[2 * w], numbers[2 * w + 1])
                    k.store_vector(self.words, word, *self.at, b, w, half * ROWS)

    def times(self, x: Array, tile: Value, sums: tuple[Array, tuple[Any, ...]] | None = None) -> Any:
        """Returns the product of 32 tokens by the panel, added to `sums` if given."""
        total = self.k.word_tile(SIDE, SIDE, f32, sums)
        for b in self.k.range(self.depth):
            total.mma(x, (tile, self.begin + b, 0, 0), self.words, (*self.at, b, 0, 0), k=WORDS)
        return total


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
    # out[t, j] = sum_k x[t, k] w[j, k] of `panels` panels of columns and `tokens` tokens per program, `part` blocks at a time
    weights, first, start = packed(k, codes, scales, extra, form), k.program(0) * panels, k.program(1) * tokens
    limit = extent[0] if extent else k.const(bound, i64)
    count = (k.minimum(limit - start, tokens) + (SIDE - 1)) // SIDE
    parts, there = -(-blocks // part), k.minimum(-(-n // SIDE) - first, panels)
    words = k.scratch(u32, panels, part, WORDS, SIDE)
    sums = k.scratch(f32, panels, tokens, SIDE) if parts > 1 else k.scratch(f32, 1, SIDE, SIDE)
    for number in k.range(parts):
        begin = number * part
        depth = k.minimum(blocks - begin, part)
        k.barrier()
        for p in k.range(there):
            Panel(k, words, (p,), begin, depth).unpack(weights, first + p)
            if parts > 1:
                _clear(k, sums, p, k.select(number == 0, count * SIDE, 0))
        k.barrier()
        for p in k.range(there):
            for i in k.range(count):
                to, at = (start + i * SIDE, (first + p) * SIDE), (p, i * SIDE, 0) if parts > 1 else (0, 0, 0)
                _fetch(k, out, to)
                total = Panel(k, words, (p,), begin, depth).times(x, to[0] // SIDE, (sums, at) if parts > 1 else None)
                partial = (to[0] + SIDE > limit) | (to[1] + SIDE > n)
                with k.when((number < parts - 1) | partial):
                    total.store(sums, at)
                with k.when((number == parts - 1) & (to[0] + SIDE <= limit) & (to[1] + SIDE <= n)):
                    total.store(out, to)
                with k.when((number == parts - 1) & partial):
                    k.barrier()
                    _store_part(k, out, sums, at, to, (limit, n))
                    k.barrier()


def _clear(k: Tracer, sums: Array, panel: Value, rows: Value) -> None:
    for i in k.range(rows):
        for half in (0, ROWS):
            k.store_vector(sums, k.splat(0.0, ROWS), panel, i, half)


def _fetch(k: Tracer, out: Array, to: tuple[Value, Value]) -> None:
    """Prefetches the lines of a tile of the result while it is computed: 30 % of the time of 896 x 4864 (Emerald Rapids)."""
    for i in k.range(SIDE):
        for half in (0, ROWS):
            k.prefetch(out, k.minimum(to[0] + i, out.shape[0] - 1), k.minimum(to[1] + half, out.shape[1] - 1))


def _store_part(
    k: Tracer, out: Array, sums: Array, at: tuple[Any, ...], to: tuple[Value, Value], limits: tuple[Value, int]
) -> None:
    """Stores a tile's rows and columns below the limits."""
    (panel, first, _), (row, column), (limit, n) = at, to, limits
    for i in k.range(k.minimum(limit - row, SIDE)):
        for half in (0, ROWS):
            with k.when(column + half < n):
                values = k.load_vector(sums, panel, first + i, half, width=ROWS)
                k.store_vector(out, values, row + i, column + half, count=k.minimum(n - (column + half), ROWS))


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why tiles of bf16 do not take the node, or None."""
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
    blocks = node.inputs[1].bounds[1] // BLOCK
    deep = blocks > PARTS[-1]
    return {"part": 24 if deep else next(p for p in PARTS if p >= blocks), "panels": 4 if deep else 1}


def tiles_of(node: ops.NodeSpec) -> tuple[ops.Launch, TensorSpec, ops.Operand]:
    """Returns the launch that writes input 0 as tiles to scratch tensor 0, its spec, and the operand that reads its words."""
    x = node.inputs[0]
    bound, depth = x.bounds
    tiles = TensorSpec((-(-bound // SIDE), depth // BLOCK, SIDE, BLOCK), bf16)
    codes = ops.Operand("input", 0, "codes", x.bounds, "read", i8)
    arrays = codes, ops.read(0, "scales"), ops.scratch(0, "write")
    launch = ops.Launch(tokens_to_tiles, arrays, (ops.Cells(x.shape[0]),), {"blocks": depth // BLOCK})
    return launch, tiles, ops.Operand("scratch", 0, "data", (*tiles.bounds[:-1], WORDS), "read", u32)


def tokens_of(tiles: TensorSpec) -> int:
    """Returns the tokens of a program."""
    return min(tiles.bounds[0] * SIDE, MOST_TOKENS)


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
    return (0.0016 * x.bounds[0] + 0.08 * -(-x.bounds[0] // MOST_TOKENS)) * float(prod(w.bounds)) + 1000.0


_TUNABLES = ops.Tunables({"part": PARTS, "panels": PANELS}, _defaults, _build)
VARIANT = ops.KernelVariant(
    "unpacked_tiles", frozenset({"simd"}), _TUNABLES.build_default, supports, cost, _TUNABLES, tolerance=TOLERANCE
)
