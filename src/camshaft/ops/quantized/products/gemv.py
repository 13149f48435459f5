"""The variant of quantized_matmul for one token, which is bound by reading the weights: it reads several streams of them at once.

Hardware prefetches only within a 4 KiB page, so a single stream waits at each page end; software prefetches displace hardware
ones. A program takes 16 rows of each of `streams` parts of the weights, alternating `step` blocks of each, in memory order.
Products are added in 16 bits (avx2/sums.py) where the CPU has AVX2 alone. Results are bit-equal to the tile's. Times are in
docs/performance/quantized_products.md and avx2.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

from camshaft.lang import Array, Tracer, Variable, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import plan_workers
from camshaft.ops.quantized.operands import Consecutive, Rows, Tokens
from camshaft.ops.quantized.packed.formats import BLOCK
from camshaft.ops.quantized.packed.packing import ROWS, SUPER
from camshaft.ops.quantized.packed.weights import Packed
from camshaft.ops.quantized.products import k_quant, kernels
from camshaft.ops.quantized.products.avx2.sums import Tile, stream_totals
from camshaft.ops.quantized.products.avx2.tile import has_int16_sums

# (streams, blocks of each at a time), the fastest of 1 to 6 and 1, 2, 4, 8 on one Zen 4 core. For other formats a tile with
# prefetches is as fast or faster: one stream of Q2_K 26 GB/s, several 19 to 23, Q3_K 26 and 18 to 26, Q5_1 24 and 18 to 23.
# Whole super-blocks of Q4_K and Q5_K, whose steps stay in registers: 1.17 and 1.07 times the speed of 4 and 2 blocks.
FASTEST = {
    "Q4_0": (4, 2),
    "Q4_1": (3, 1),
    "Q5_0": (4, 2),
    "Q8_0": (2, 1),
    "Q4_K": (3, 8),
    "Q5_K": (2, 8),
    "Q6_K": (3, 4),
    "IQ4_NL": (4, 2),
    "IQ4_XS": (3, 1),
}
# By 16-bit sums (AVX2 alone), the fastest of 2, 3, 4 and 6 streams and 1, 2, 4 blocks on one Zen 3 core.
FASTEST_INT16 = {name: (3 if name == "Q4_1" else 4, 1) for name in FASTEST}
# SmolLM2's products of up to 1536 x 576 take 5 to 15 microseconds: with streams for all products its Q4_0 file generated 276
# tokens/s on two threads, for logits only 326, for none 328. Products of 4864 x 896 gain 19 %.
LEAST_WEIGHTS = 1 << 21
# On Zen 3, SmolLM2 took 6.8 ms of processor time a token with streams from here on, 7.2 from 2^19 or 2^23, 7.5 without.
LEAST_INT16 = 1 << 18


@kernel
def product_streams(
    k: Tracer, *arguments: Any, n: int, blocks: int, streams: int, step: int, int16: bool, block: str
) -> None:
    # 16 rows of each part per program
    tiles, share = -(-n // ROWS), shares(n, streams)
    places = [k.program(0) + stream * share for stream in range(streams)]
    is_ragged = streams * share != tiles
    mine = [Rows(k, ROWS, n, k.minimum(place, tiles - 1) if is_ragged else place) for place in places]
    given = kernels.operands(k, arguments, block)
    tokens = Tokens(k, 1, 1, given.active)
    totals = totals_of(given.x, given.weights, mine, [tokens] * streams, blocks, step, int16)
    for place, rows, total in zip(places, mine, totals, strict=True):
        if is_ragged:
            with k.when(place < tiles):
                tokens.store(rows, given.out, [total])
        else:
            tokens.store(rows, given.out, [total])


def shares(n: int, streams: int) -> int:
    """Returns the tiles of 16 rows in each stream's part of n rows."""
    return -(-n // (ROWS * streams))


def totals_of(
    x: tuple[Array, ...],
    weights: Packed,
    mine: Sequence[Rows],
    tokens: Sequence[Consecutive],
    blocks: int,
    step: int,
    int16: bool,
) -> list[Variable]:
    """Returns the totals of each stream's rows for its one token, `step` blocks of each stream at a time; by 16-bit sums if
    `int16`."""
    if int16:
        tiles = [Tile(x, weights, rows, blocks, own.first, None, 1, 1) for rows, own in zip(mine, tokens, strict=True)]
        return [sums.variables[0] for sums in stream_totals(tiles, 1, step)]
    by_format = _nested_totals if k_quant.by_whole_numbers(weights.form) else _totals
    return by_format(x, weights, mine, tokens, blocks, step)


def _totals(
    x: tuple[Array, ...], weights: Packed, mine: Sequence[Rows], tokens: Sequence[Consecutive], blocks: int, step: int
) -> list[Variable]:
    k = weights.k
    totals = [k.var(rows.spread(0.0)) for rows in mine]
    for first, parts in k_quant.in_steps(weights, mine, blocks, step):
        for rows, token, total, own in zip(mine, tokens, totals, parts, strict=True):
            for i in range(step):
                kernels.add_block(x, own, rows, token, blocks, first + i, [total])
    return totals


def _nested_totals(
    x: tuple[Array, ...], weights: Packed, mine: Sequence[Rows], tokens: Sequence[Consecutive], blocks: int, step: int
) -> list[Variable]:
    k = weights.k
    totals, parts = ([k.var(rows.spread(0.0)) for rows in mine] for _ in range(2))
    for s in k.range(blocks // SUPER):
        steps = [k_quant.steps_of(weights, rows, s) for rows in mine]
        for rows, part in zip(mine, parts, strict=True):
            part.set(rows.spread(0.0))
        for first in k.range(0, SUPER, step):
            for rows, token, part, own in zip(mine, tokens, parts, steps, strict=True):
                for i in range(step):
                    k_quant.add_block(x, weights, rows, token, blocks, s * SUPER + first + i, own, [part])
        for total, part, own in zip(totals, parts, steps, strict=True):
            total.set(k.fma(own.scale, part.value, total.value))
    return totals


def fastest(name: str, target: ops.Target) -> tuple[int, int]:
    """Returns the streams of a format's weights, and the blocks of each at a time."""
    return (FASTEST_INT16 if has_int16_sums(target) else FASTEST)[name]


def has_streams(target: ops.Target) -> bool:
    """Returns whether several streams were measured as faster on CPUs like the target."""
    return target.lanes == ROWS or has_int16_sums(target)


def values_of(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the default streams and blocks per step: fewer streams if there would be few or uneven programs."""
    w = node.inputs[1]
    tiles, (most, step) = -(-w.bounds[0] // ROWS), fastest(w.dtype.name, target)
    even = (n for n in range(most, 1, -1) if tiles >= 32 * n or (tiles >= 8 * n and tiles % (2 * n) == 0))
    return {"streams": next(even, 1), "step": gcd(step, w.bounds[1] // BLOCK)}


def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why the values do not fit, or None: steps that do not divide the blocks, streams without a tile."""
    n, k = node.inputs[1].bounds
    if k // BLOCK % values["step"]:
        return f"steps of {values['step']} blocks of {k // BLOCK}"
    tiles = -(-n // ROWS)
    return f"{values['streams']} streams of {tiles} tiles" if values["streams"] > tiles else None


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds one launch with a program per tile of a part."""
    (x, w), streams = node.inputs, values["streams"]
    grid = ops.Cells(shares(w.bounds[0], streams)), ops.Cells(x.shape[0])
    constants = {"n": w.bounds[0], "int16": has_int16_sums(target), **values}
    return kernels.product_build(product_streams, node, grid, constants)


TUNABLES = ops.Tunables({"streams": (1, 2, 3, 4, 6), "step": (1, 2, 4, 8)}, values_of, _build, refusal)


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None for one quantized token."""
    x, w = node.inputs
    if w.dtype.name not in FASTEST:
        return f"takes weights of {', '.join(FASTEST)}: a tile reads others as fast"
    if not has_streams(target):
        return f"takes CPUs with vectors of {ROWS} numbers, or AVX2 without VNNI"
    return kernels.packed_only(node, target) if kernels.is_q8(x) and x.bounds[0] == 1 else "takes one quantized token"


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on one Zen 4 core: 0.024 ns per weight, a tile 0.028. But it waits for each stream's first lines, and two cores
    that share scarce bandwidth read 22 to 25 GB/s with one stream each, 15 to 20 with several. On a Zen 3 core, by 16-bit sums,
    14 to 17 GB/s where one stream has 12 to 14; on two cores a token took 0.9 to 1.1 times as long as with tiles."""
    size, gain = prod(node.inputs[1].bounds), 1.2
    if plan_workers() == 1:
        if has_int16_sums(target):
            gain = 0.5 if size >= LEAST_INT16 and values_of(node, target)["streams"] > 1 else gain
        else:
            gain = 0.85 if size >= LEAST_WEIGHTS else gain
    return gain * kernels.tile_cost(node, target)


VARIANT = ops.KernelVariant("gemv", frozenset({"simd"}), TUNABLES.build_default, supports, cost, TUNABLES)
