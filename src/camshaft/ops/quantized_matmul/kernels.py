"""Kernels of quantized_matmul over interleaved weights: y[t, n] = sum_k x[t, k] w[n, k].

With 8-bit activations q d and weights code s + m, block by block (32 k) and group by group:
    y += s d (sum code q - zero_point sum q)   or   y += s d sum code q + m d sum q
"""

from __future__ import annotations

from camshaft.dtypes import f32, i32, u32
from camshaft.lang.ir import Value
from camshaft.lang.kernel import kernel
from camshaft.lang.tracer import Array, Tracer
from camshaft.ops.quantized_matmul.packing import BLOCK, ROWS
from camshaft.ops.quantized_matmul.rows import Rows, Tokens


@kernel
def q8_tile(
    k: Tracer,
    x_codes: Array,
    x_scales: Array,
    x_sums: Array,
    codes: Array,
    scales: Array,
    minima: Array,
    out: Array,
    *active: Value,
    n: int,
    blocks: int,
    rows: int,
    columns: int,
    bound: int,
    bits: int,
    groups: int,
    zero_point: int,
    ahead: int,
) -> None:
    # `rows` weights' rows x `columns` tokens a program
    # `minima` is the scales once more where the format has a zero point (-1: it has not); words `ahead` are prefetched
    mine, tokens = Rows(k, rows, n), Tokens(k, columns, bound, active)
    totals = [k.var(mine.spread(0.0)) for _ in tokens.places]
    per_group = 8 // groups
    for b in k.range(blocks):
        if ahead:
            for w in range(bits):
                k.prefetch(codes, mine.tile, b + ahead // bits, w, 0)
        words = mine.code_words(codes, b, bits)
        for g in range(groups):
            scale = mine.load(scales, b, g)
            minimum = mine.load(minima, b, g) if zero_point < 0 else None
            for total, t in zip(totals, tokens.places, strict=True):
                step = x_scales[t, b]
                q_sum = x_sums[t, b * groups + g]
                dot = mine.spread(0 if minimum is not None else q_sum * -zero_point, i32)
                for w in range(g * per_group, (g + 1) * per_group):
                    dot = k.dot4(dot, words[w], mine.spread(x_codes[t, b * 8 + w], u32))
                total.set(k.fma(dot.to(f32), scale * step, total.value))
                if minimum is not None:
                    total.set(k.fma(minimum, mine.spread(step * q_sum.to(f32)), total.value))
    tokens.store(mine, out, totals)


@kernel
def f32_tile(
    k: Tracer,
    x: Array,
    codes: Array,
    scales: Array,
    minima: Array,
    out: Array,
    *active: Value,
    n: int,
    blocks: int,
    rows: int,
    columns: int,
    bound: int,
    bits: int,
    groups: int,
    zero_point: int,
) -> None:
    # the same tile with f32 activations: each code becomes a float and meets a broadcast x
    mine, tokens = Rows(k, rows, n), Tokens(k, columns, bound, active)
    totals = [k.var(mine.spread(0.0)) for _ in tokens.places]
    per_group = 8 // groups
    for b in k.range(blocks):
        words = mine.code_words(codes, b, bits)
        for g in range(groups):
            scale = mine.load(scales, b, g)
            if zero_point < 0:
                minimum = mine.load(minima, b, g)
            else:
                minimum = scale * float(-zero_point)
            dots = [mine.spread(0.0) for _ in totals]
            sums = [mine.spread(0.0) for _ in totals]
            for w in range(g * per_group, (g + 1) * per_group):
                for byte in range(4):
                    code = ((words[w] >> (8 * byte)) & 255).to(i32).to(f32)
                    for c, t in enumerate(tokens.places):
                        value = mine.spread(x[t, b * BLOCK + 4 * w + byte])
                        dots[c] = k.fma(code, value, dots[c])
                        sums[c] = sums[c] + value
            for total, dot, x_sum in zip(totals, dots, sums, strict=True):
                total.set(k.fma(dot, scale, k.fma(minimum, x_sum, total.value)))
    tokens.store(mine, out, totals)


def _code_at(k: Tracer, codes: Array, row: Value, b: Value, j: int, bits: int) -> Value:
    """Code of k = 32 b + j in a row, as f32, where b varies by lane."""
    high = bits == 4 and j >= 16
    word = k.gather(codes, row // ROWS, b, (j - 16 if high else j) // 4, row % ROWS)
    shift = (j % 4) * 8 + (4 if high else 0)
    return ((word >> shift) & (15 if bits == 4 else 255)).to(i32)


@kernel
def q8_row(
    k: Tracer,
    x_codes: Array,
    x_scales: Array,
    x_sums: Array,
    codes: Array,
    scales: Array,
    minima: Array,
    out: Array,
    *,
    blocks: int,
    bits: int,
    groups: int,
    zero_point: int,
) -> None:
    # one row and token a program, a block of 32 k per lane; right at any width
    row, t, total = k.program(0), k.program(1), k.accumulator("sum")
    size = BLOCK // groups
    for b in k.lanes(blocks):
        for g in range(groups):
            scale = k.gather(scales, row // ROWS, b, g, row % ROWS)
            dot = k.gather(x_sums, t, b * groups + g) * (0 if zero_point < 0 else -zero_point)
            for j in range(g * size, (g + 1) * size):
                dot = dot + _code_at(k, codes, row, b, j, bits) * k.gather(x_codes, t, b * BLOCK + j)
            total += dot.to(f32) * (scale * x_scales[t, b])
            if zero_point < 0:
                minimum = k.gather(minima, row // ROWS, b, g, row % ROWS)
                total += minimum * (x_scales[t, b] * k.gather(x_sums, t, b * groups + g).to(f32))
    out[t, row] = k.lanes_sum(total)


@kernel
def f32_row(
    k: Tracer,
    x: Array,
    codes: Array,
    scales: Array,
    minima: Array,
    out: Array,
    *,
    blocks: int,
    bits: int,
    groups: int,
    zero_point: int,
) -> None:
    row, t, total = k.program(0), k.program(1), k.accumulator("sum")
    size = BLOCK // groups
    for b in k.lanes(blocks):
        for g in range(groups):
            scale = k.gather(scales, row // ROWS, b, g, row % ROWS)
            if zero_point < 0:
                minimum = k.gather(minima, row // ROWS, b, g, row % ROWS)
            else:
                minimum = scale * float(-zero_point)
            for j in range(g * size, (g + 1) * size):
                weight = k.fma(_code_at(k, codes, row, b, j, bits).to(f32), scale, minimum)
                total += weight * k.gather(x, t, b * BLOCK + j)
    out[t, row] = k.lanes_sum(total)
