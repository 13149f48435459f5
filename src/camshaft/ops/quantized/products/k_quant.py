"""Totals of a tile of quantized_matmul for k-quants: an integer scale per group, and steps per super-block of 256 k.

    y += step sum_blocks (d sum_groups scale (sum code q - zero_point sum q) + (low / step) minimum (d sum q))

Everything up to d is in integers, of which one register per token has both sums, so 12 tokens fit. On Zen 4 products of integers
and of floats take as much of the byte dot products' two ports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from camshaft.dtypes import f32, i32, u32
from camshaft.lang import Array, Tracer, Value, Variable
from camshaft.ops.quantized.operands import Consecutive, Rows, dot_words
from camshaft.ops.quantized.packed.formats import PackedFormat
from camshaft.ops.quantized.packed.packing import SUPER
from camshaft.ops.quantized.packed.weights import Packed


def by_whole_numbers(form: PackedFormat) -> bool:
    """Returns whether integer scales are faster. With minima per 32 k they are 3 % slower (Q4_K, Q5_K on Zen 4: 65 % of the
    int8 peak, 67 % with float scales)."""
    return form.is_nested and (form.is_joint or not form.has_minima)


def in_steps(
    weights: Packed, mine: Sequence[Rows], blocks: int, step: int, nested: bool = True
) -> Iterator[tuple[Value, list[Packed]]]:
    """Yields the first of each `step` blocks, and the weights for each of `mine`. If `nested`, steps of nested scales are loaded
    once a super-block: one token is 5 to 8 % faster, a prompt of Q5_K 2 % slower."""
    k = weights.k
    if not (nested and weights.form.is_nested):
        for b in k.range(0, blocks, step):
            yield b, [weights] * len(mine)
        return
    for s in k.range(blocks // SUPER):
        own = [weights.within(rows.load, s) for rows in mine]
        for b in k.range(0, SUPER, step):
            yield s * SUPER + b, own


def nested_totals(
    x: tuple[Array, ...], weights: Packed, mine: Rows, tokens: Consecutive, blocks: int, ahead: int
) -> list[Variable]:
    """Computes a tile of y. Returns the totals of all rows for each token."""
    k = mine.k
    totals, parts = ([k.var(mine.spread(0.0)) for _ in tokens.places] for _ in range(2))
    for s in k.range(blocks // SUPER):
        steps = steps_of(weights, mine, s)
        for part in parts:
            part.set(mine.spread(0.0))
        for i in k.range(SUPER):
            b = s * SUPER + i
            if ahead:
                weights.prefetch(mine.tile, b, ahead, len(totals))
            add_block(x, weights, mine, tokens, blocks, b, steps, parts)
        for total, part in zip(totals, parts, strict=True):
            total.set(k.fma(steps.scale, part.value, total.value))
    return totals


@dataclass(frozen=True)
class Steps:
    """The steps of one super-block: of its scales (never 0 where minima are multiples of them); `low`, the steps of the minima
    relative to those, None without minima; `some`: where the file's scales are not all zero."""

    scale: Value
    low: Value | None
    some: Value


def steps_of(weights: Packed, mine: Rows, s: Value) -> Steps:
    """Returns the steps of super-block s."""
    step, low = weights.steps(mine.load, s)
    some = step != 0.0
    if low is None:
        return Steps(step, None, some)
    step = mine.k.select(some, step, mine.spread(1.0))
    return Steps(step, low / step, some)


Scales: TypeAlias = Sequence[tuple[Value, Value | None]]
"""The whole scale and minimum of each group of a block."""


def scales_of(weights: Packed, mine: Rows, b: Value, steps: Steps) -> Scales:
    """Returns the scales and minima of block b; a scale is 0 where its step is."""
    pairs = [weights.whole_scale(mine.load, b, g) for g in range(weights.form.groups)]
    if steps.low is None:
        return pairs
    return [(mine.k.select(steps.some, scale, mine.spread(0, i32)), minimum) for scale, minimum in pairs]


def minima_of(scales: Scales, steps: Steps) -> list[Value]:
    """Returns the minima relative to the steps of the scales, none without minima."""
    return [m.to(f32) * steps.low for _, m in scales if m is not None and steps.low is not None]


def add_block(
    x: tuple[Array, ...],
    weights: Packed,
    mine: Rows,
    tokens: Consecutive,
    blocks: int,
    b: Value,
    steps: Steps,
    parts: list[Variable],
) -> None:
    """Adds block b of `blocks` to each token's sum over the super-block."""
    (x_codes, x_scales, x_sums), k, groups = x, mine.k, weights.form.groups
    words = weights.code_words(mine.load, b)
    pairs = scales_of(weights, mine, b, steps)
    early = weights.form.is_joint and len(parts) > 2  # eight products of codes or two of sums per token
    if early:
        words = [_scaled(word, pairs[w * groups // 8][0]) for w, word in enumerate(words)]
    minima = minima_of(pairs, steps)
    code_at, scale_at = tokens.along(blocks * 8, b * 8), tokens.along(blocks, b)
    sum_at = tokens.along(blocks * groups, b * groups)
    for t, part in enumerate(parts):
        sums = [x_sums[sum_at[t] + g] for g in range(groups)]
        acted = [mine.spread(x_codes[code_at[t] + w], u32) for w in range(8)]
        if minima:
            for minimum, q_sum in zip(minima, sums, strict=True):
                part.set(k.fma(minimum, mine.spread(q_sum), part.value))
            sums = [k.const(0, i32)] * groups
        starts = [mine.spread(q_sum, i32) for q_sum in sums]
        if early:
            whole = _chain(k, starts[0], words, acted)
        else:
            whole = _times(k, starts, words, acted, [scale for scale, _ in pairs])
        part.set(k.fma(whole.to(f32), mine.spread(x_scales[scale_at[t]]), part.value))


def _scaled(word: Value, scale: Value) -> Value:
    """Multiplies four 2-bit codes by a 4-bit scale: each byte is at most 45."""
    return word * scale.to(u32)


def _chain(k: Tracer, start: Value, words: list[Value], acted: list[Value]) -> Value:
    """Returns start + the dot products of code words with activation words, i32."""
    (dot,) = dot_words(k, [start], words, lambda i, w: acted[w])
    return dot


def _times(k: Tracer, starts: list[Value], words: list[Value], acted: list[Value], scales: list[Value]) -> Value:
    """Returns the block's integer dot products, each group's multiplied by its scale."""
    size, whole = 8 // len(scales), None
    for g, (start, scale) in enumerate(zip(starts, scales, strict=True)):
        at = slice(g * size, (g + 1) * size)
        dot = _chain(k, start, words[at], acted[at]) * scale
        whole = dot if whole is None else whole + dot
    assert whole is not None
    return whole
