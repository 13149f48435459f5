"""Kernels of loops, masks, variables, index patterns, grids and scratch, which the tests of every target run."""

import numpy as np

from camshaft.dtypes import boolean, f32, i32, i64
from camshaft.lang import kernel


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@kernel
def affine(k, x, out, *, n, start):
    for c in k.lanes(start, n):
        out[c] = x[c] * 2 + c.to(f32)


@kernel
def run_time_lanes(k, x, out, start, stop):
    for c in k.lanes(start, stop):
        out[c] = x[c] + 1


@kernel
def flat(k, x, out, n, *, block):
    for c in k.elements(n, block):
        out[c] = x[c] + x[c // 32 * 32]


@kernel
def stepped(k, x, out, *, start, stop, step):
    total = k.var(0, i64)
    for i in k.range(start, stop, step):
        out[i] = x[i] + total.value.to(f32)
        total.set(total.value + i)
    out[0] = total.value.to(f32)


@kernel
def branches(k, x, out, *, n):
    row = k.program(0)
    with k.when(row % 2 == 0):
        for c in k.lanes(n):
            with k.when(x[row, c] > 0), k.when(c % 64 < 40):
                out[row, c] = x[row, c]
    with k.when(row == 1):
        out[row, 0] = 5


@kernel
def set_under_mask(k, x, out, *, n):
    for c in k.lanes(n):
        kept = k.var(x[c])
        with k.when(x[c] < 0):
            kept.set(-x[c])
            with k.when(x[c] < -1):
                kept.set(1)
        out[c] = kept.value


@kernel
def reductions(k, x, y, sums, extremes, *, n):
    total, top, least = k.accumulator("sum"), k.accumulator("max"), k.accumulator("min")
    whole, high = k.accumulator("sum", i32), k.accumulator("max", i32)
    for c in k.lanes(n):
        total += x[c]
        top.combine(x[c])
        least.combine(x[c])
        whole += y[c]
        high.combine(y[c])
    sums[0] = k.lanes_sum(total)
    sums[1] = k.lanes_max(top)
    sums[2] = k.lanes_min(least)
    extremes[0] = k.lanes_sum(whole)
    extremes[1] = k.lanes_max(high)


@kernel
def blocked(k, x, scale, out, *, n, group):
    row = k.program(0)
    for c in k.lanes(n):
        out[row, c] = x[row, c % 64] * scale[row, c // group]


@kernel
def masked_blocks(k, scale, out, *, n, group, lowest):
    for c in k.lanes(n):
        with k.when(c % 4 == lowest):
            out[c] = scale[c // group]


@kernel
def permute(k, table, x, out, *, n):
    for c in k.lanes(n):
        k.scatter(out, k.gather(x, table[c].to(i64)), table[c].to(i64) + 0)


@kernel
def strided(k, x, out, *, n):
    for c in k.lanes(n):
        out[c] = k.gather(x, c * 3 + 1) + k.gather(x, c % 5, 1) if len(x.shape) == 2 else k.gather(x, c * 3 + 1)


@kernel
def floors(k, x, out, *, n, by):
    row = k.program(0)
    for c in k.lanes(n):
        out[row, c] = (row - 3) // by * 1000 + (row - 3) % by * 100 + k.gather(x, (c - 5) % 3) + (c - 5) // by


@kernel
def divide_loaded(k, x, y, out, *, n):
    for c in k.lanes(n):
        with k.when(y[c] != 0):
            out[c] = x[c] // y[c] + x[c] % y[c]


@kernel
def grids(k, x, out, rows, heads):
    token, head, part = k.program(0), k.program(1), k.program(2)
    for c in k.lanes(4):
        out[token, head, part * 4 + c] = x[token, head, part * 4 + c] + (token * 100 + head * 10 + part).to(f32)


@kernel
def row_sum(k, x, out, *, n):
    part, row, lane = k.scratch(f32, 64), k.program(0), k.lane()
    total, step = k.accumulator("sum"), k.var(k.lane_count() // 2)
    for c in k.lanes(n):
        total += x[row, c]
    part[lane] = total.value
    k.barrier()
    for _ in k.range(6):
        with k.when(lane < step.value):
            part[lane] = part[lane] + part[lane + step.value]
        k.barrier()
        step.set(step.value // 2)
    out[row] = part[0]


@kernel
def boolean_scratch(k, x, out, *, n):
    flags, words = k.scratch(boolean, 3, 80), k.scratch(i32, 80)
    for c in k.lanes(n):
        flags[1, c] = x[c] > 0
        words[c] = c.to(i32)
    k.barrier()
    for c in k.lanes(n):
        out[c] = k.select(flags[1, c], words[c], -1)


@kernel
def prefetching(k, x, out, *, n):
    for c in k.lanes(n):
        k.prefetch(x, c + 4096)
        k.prefetch(x, (x[c] * 0).to(i64))
        out[c] = x[c]


@kernel
def awkward_names(k, first, last, *, n):
    for c in k.lanes(n):
        last[c] = first[c]
