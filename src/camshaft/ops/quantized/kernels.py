"""Kernels of quantized_matmul over interleaved weights: y[t, n] = sum_k x[t, k] w[n, k].

With 8-bit activations q d and weights code s + m, block by block (32 k) and group by group:
    y += s d (sum code q - zero_point sum q)   or   y += s d sum code q + m d sum q
"""

from __future__ import annotations

from typing import TypeAlias

from camshaft.dtypes import f32, i32, u32
from camshaft.lang import Array, Tracer, Value, Variable, kernel
from camshaft.ops.quantized.packing import BLOCK
from camshaft.ops.quantized.rows import Rows, Tokens, abreast, dot_words
from camshaft.ops.quantized.unpacking import Packed, packed

Activations: TypeAlias = tuple[Array, Array, Array]
"""Codes, scales and sums of all tokens, flat."""


@kernel
def q8_tile(
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
    rows: int,
    columns: int,
    bound: int,
    block: str,
    ahead: int,
) -> None:
    # `rows` rows of weights x `columns` tokens per program; prefetches `ahead` 32-bit words
    mine, tokens = Rows(k, rows, n), Tokens(k, columns, bound, active)
    weights = packed(k, codes, scales, extra, block)
    tokens.store(mine, out, q8_totals((x_codes, x_scales, x_sums), weights, mine, tokens, blocks, ahead))


def q8_totals(x: Activations, weights: Packed, mine: Rows, tokens: Tokens, blocks: int, ahead: int) -> list[Variable]:
    """Computes a tile of y. Returns the totals of all rows for each token."""
    totals = [mine.k.var(mine.spread(0.0)) for _ in tokens.places]
    for b in mine.k.range(blocks):
        if ahead:
            weights.prefetch(mine.tile, b, ahead)
        add_block(x, weights, mine, tokens, blocks, b, totals)
    return totals


def add_block(
    x: Activations, weights: Packed, mine: Rows, tokens: Tokens, blocks: int, b: Value, totals: list[Variable]
) -> None:
    """Adds block b of `blocks` to each token's total."""
    (x_codes, x_scales, x_sums), k, form = x, mine.k, weights.form
    per_group = 8 // form.groups
    words = weights.code_words(mine.load, b)
    code_at, scale_at = tokens.along(blocks * 8, b * 8), tokens.along(blocks, b)
    sum_at = tokens.along(blocks * form.groups, b * form.groups)
    for g in range(form.groups):
        scale, minimum = weights.scale(mine.load, b, g)
        group = range(g * per_group, (g + 1) * per_group)
        for some in abreast(len(totals)):
            sums = [x_sums[sum_at[i] + g] for i in some]
            starts = [mine.spread(q_sum if minimum is None else 0, i32) for q_sum in sums]

            def acted(i: int, w: int, some: range = some, group: range = group) -> Value:
                return mine.spread(x_codes[code_at[some[i]] + group[w]], u32)

            dots = dot_words(k, starts, [words[w] for w in group], acted)
            for i, q_sum, dot in zip(some, sums, dots, strict=True):
                total, step = totals[i], x_scales[scale_at[i]]
                total.set(k.fma(dot.to(f32), scale * step, total.value))
                if minimum is not None:
                    total.set(k.fma(minimum, mine.spread(q_sum), total.value))


@kernel
def f32_tile(
    k: Tracer,
    x: Array,
    codes: Array,
    scales: Array,
    extra: Array,
    out: Array,
    *active: Value,
    n: int,
    blocks: int,
    rows: int,
    columns: int,
    bound: int,
    block: str,
) -> None:
    # the same tile with f32 activations: each code is converted to f32 and multiplied by a broadcast x
    weights = packed(k, codes, scales, extra, block)
    form = weights.form
    mine, tokens = Rows(k, rows, n), Tokens(k, columns, bound, active)
    totals = [k.var(mine.spread(0.0)) for _ in tokens.places]
    per_group = 8 // form.groups
    for b in k.range(blocks):
        words = weights.code_words(mine.load, b)
        for g in range(form.groups):
            scale, low = weights.scale(mine.load, b, g)
            minimum = scale * float(-(form.zero_point or 0)) if low is None else low
            dots = [mine.spread(0.0) for _ in totals]
            sums = [mine.spread(0.0) for _ in totals]
            for w in range(g * per_group, (g + 1) * per_group):
                for byte in range(4):
                    code = ((words[w] >> (8 * byte)) & 255).to(i32).to(f32)
                    for c, place in enumerate(tokens.along(blocks * BLOCK, b * BLOCK)):
                        value = mine.spread(x[place + (4 * w + byte)])
                        dots[c] = k.fma(code, value, dots[c])
                        sums[c] = sums[c] + value
            for total, dot, x_sum in zip(totals, dots, sums, strict=True):
                total.set(k.fma(dot, scale, k.fma(minimum, x_sum, total.value)))
    tokens.store(mine, out, totals)


@kernel
def q8_row(
    k: Tracer,
    x_codes: Array,
    x_scales: Array,
    x_sums: Array,
    codes: Array,
    scales: Array,
    extra: Array,
    out: Array,
    *,
    blocks: int,
    block: str,
) -> None:
    # y[t, n] of one row and token per program, a block of 32 k per lane; for any lane width
    weights = packed(k, codes, scales, extra, block)
    row, t, total = k.program(0), k.program(1), k.accumulator("sum")
    groups = weights.form.groups
    size = BLOCK // groups
    for b in k.lanes(blocks):
        for g in range(groups):
            scale, minimum = weights.scale_at(row, b, g)
            q_sum = k.gather(x_sums, t, b * groups + g)
            dot = q_sum if minimum is None else k.const(0, i32)
            for j in range(g * size, (g + 1) * size):
                dot = dot + weights.code_at(row, b, j) * k.gather(x_codes, t, b * BLOCK + j)
            total += dot.to(f32) * (scale * x_scales[t, b])
            if minimum is not None:
                total += minimum * q_sum
    out[t, row] = k.lanes_sum(total)


@kernel
def f32_row(
    k: Tracer,
    x: Array,
    codes: Array,
    scales: Array,
    extra: Array,
    out: Array,
    *,
    blocks: int,
    block: str,
) -> None:
    weights = packed(k, codes, scales, extra, block)
    row, t, total = k.program(0), k.program(1), k.accumulator("sum")
    groups = weights.form.groups
    size = BLOCK // groups
    for b in k.lanes(blocks):
        for g in range(groups):
            scale, low = weights.scale_at(row, b, g)
            minimum = scale * float(-(weights.form.zero_point or 0)) if low is None else low
            for j in range(g * size, (g + 1) * size):
                weight = k.fma(weights.code_at(row, b, j).to(f32), scale, minimum)
                total += weight * k.gather(x, t, b * BLOCK + j)
    out[t, row] = k.lanes_sum(total)
