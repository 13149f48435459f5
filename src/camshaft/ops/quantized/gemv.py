"""quantized_matmul of one token, which is bound by reading the weights: it reads several streams of them at once.

Hardware prefetches only within a 4 KiB page, so a single stream waits at each page end; software prefetches displace hardware
ones. A program takes 16 rows of each of `streams` parts of the weights, alternating `step` blocks of each, in memory order.
Results are bit-equal to the tile's. Zen 4, weights of k = 14336 from memory, GB/s of the file's bytes, first for a tile with
prefetches 8 KiB ahead and then for this kernel, on one thread: Q4_0 27.5 and 31.4, Q4_1 27.3 and 29.2, Q8_0 26.4 and 31.0, Q4_K
24.5 and 26.4, Q6_K 21.5 and 27.0; k = 896: Q5_0 24.5 and 30.1 (two threads 46 and 57).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, Value, Variable, kernel
from camshaft.ops import op as ops
from camshaft.ops.quantized import k_quant, kernels
from camshaft.ops.quantized.kernels import Activations
from camshaft.ops.quantized.packing import BLOCK, ROWS, SUPER
from camshaft.ops.quantized.rows import Rows, Tokens
from camshaft.ops.quantized.unpacking import Packed, packed

# (streams, blocks of each at a time), the fastest of 1 to 6 and 1, 2, 4 on one Zen 4 core. For other formats a tile with
# prefetches is as fast or faster: one stream of Q2_K 26 GB/s, several 19 to 23, Q3_K 26 and 18 to 26, Q5_1 24 and 18 to 23.
FASTEST = {
    "Q4_0": (4, 2),
    "Q4_1": (3, 1),
    "Q5_0": (4, 2),
    "Q8_0": (2, 1),
    "Q4_K": (3, 4),
    "Q5_K": (3, 2),
    "Q6_K": (3, 4),
    "IQ4_NL": (4, 2),
    "IQ4_XS": (3, 1),
}
# SmolLM2's products of up to 1536 x 576 take 5 to 15 microseconds: with streams for all products its Q4_0 file generated 276
# tokens/s on two threads, for logits only 326, for none 328. Products of 4864 x 896 gain 19 %.
LEAST_WEIGHTS = 1 << 21
STREAMS, STEPS = (1, 2, 3, 4, 6), (1, 2, 4)


@kernel
def q8_streams(
    k: Tracer,
    x_codes: Array,
    x_scales: Array,
    x_sums: Array,
    codes: Array,
    scales: Array,
    extra: Array,
    out: Array,
    *active: Value,
    n: int,
    blocks: int,
    streams: int,
    step: int,
    block: str,
    whole_numbers: bool,
) -> None:
    # 16 rows of each part per program
    tiles, share = -(-n // ROWS), shares(n, streams)
    places = [k.program(0) + stream * share for stream in range(streams)]
    is_ragged = streams * share != tiles
    mine = [Rows(k, ROWS, n, k.minimum(place, tiles - 1) if is_ragged else place) for place in places]
    weights, tokens = packed(k, codes, scales, extra, block), Tokens(k, 1, 1, active)
    totals_of = _nested_totals if whole_numbers else _totals
    totals = totals_of((x_codes, x_scales, x_sums), weights, mine, tokens, blocks, step)
    for place, rows, total in zip(places, mine, totals, strict=True):
        if is_ragged:
            with k.when(place < tiles):
                tokens.store(rows, out, [total])
        else:
            tokens.store(rows, out, [total])


def shares(n: int, streams: int) -> int:
    """Returns the tiles of 16 rows in each stream's part of n rows."""
    return -(-n // (ROWS * streams))


def _totals(
    x: Activations, weights: Packed, mine: Sequence[Rows], tokens: Tokens, blocks: int, step: int
) -> list[Variable]:
    k = weights.k
    totals = [k.var(rows.spread(0.0)) for rows in mine]
    for first in k.range(0, blocks, step):
        for rows, total in zip(mine, totals, strict=True):
            for i in range(step):
                kernels.add_block(x, weights, rows, tokens, blocks, first + i, [total])
    return totals


def _nested_totals(
    x: Activations, weights: Packed, mine: Sequence[Rows], tokens: Tokens, blocks: int, step: int
) -> list[Variable]:
    k = weights.k
    totals, parts = ([k.var(rows.spread(0.0)) for rows in mine] for _ in range(2))
    for s in k.range(blocks // SUPER):
        steps = [k_quant.steps_of(weights, rows, s) for rows in mine]
        for rows, part in zip(mine, parts, strict=True):
            part.set(rows.spread(0.0))
        for first in k.range(0, SUPER, step):
            for rows, part, own in zip(mine, parts, steps, strict=True):
                for i in range(step):
                    k_quant.add_block(x, weights, rows, tokens, blocks, s * SUPER + first + i, own, [part])
        for total, part, own in zip(totals, parts, steps, strict=True):
            total.set(k.fma(own.scale, part.value, total.value))
    return totals


def values_of(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the default streams and blocks per step: fewer streams if there would be few or uneven programs."""
    w = node.inputs[1]
    tiles, (most, step) = -(-w.bounds[0] // ROWS), FASTEST[w.dtype.name]
    even = (n for n in range(most, 1, -1) if tiles >= 32 * n or (tiles >= 8 * n and tiles % (2 * n) == 0))
    return {"streams": next(even, 1), "step": gcd(step, w.bounds[1] // BLOCK)}


def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why the values do not fit, or None: steps that do not divide the blocks, streams without a tile."""
    n, k = node.inputs[1].bounds
    if k // BLOCK % values["step"]:
        return f"steps of {values['step']} blocks of {k // BLOCK}"
    tiles = -(-n // ROWS)
    return f"{values['streams']} streams of {tiles} tiles" if values["streams"] > tiles else None


def launch(
    node: ops.NodeSpec,
    weights: tuple[ops.Operand, ...],
    values: ops.Values,
    whole_numbers: bool,
) -> ops.Launch:
    """Returns the launch, with a program per tile of a part. `weights`: the operands of the packed weights."""
    x, w = node.inputs
    sizes = {"n": w.bounds[0], "blocks": w.bounds[1] // BLOCK, "streams": values["streams"], "step": values["step"]}
    inputs = tuple(ops.read(0, part.name, (prod(part.shape),)) for part in x.parts)
    return ops.Launch(
        q8_streams,
        (*inputs, *weights, ops.write(0)),
        (ops.Cells(shares(w.bounds[0], values["streams"])), ops.Cells(x.shape[0])),
        {**sizes, "block": w.dtype.name, "whole_numbers": whole_numbers},
        (x.shape[0],) if isinstance(x.shape[0], Extent) else (),
    )
