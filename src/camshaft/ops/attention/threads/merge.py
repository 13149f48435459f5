"""The kernel that merges the splits of attention for few tokens on GPUs: a workgroup per token and q head, a thread per column.

The order of every sum follows from shapes alone.
"""

from __future__ import annotations

from camshaft.dtypes import f32, i64
from camshaft.lang import Array, Tracer, Value, kernel, power_of_two
from camshaft.ops.attention.paged import LOWEST

AT_ONCE = 4  # splits that a thread reads before it waits


def power_up_to(n: int) -> int:
    """Returns the largest power of two up to n, which is above 0."""
    return 1 << (n.bit_length() - 1)


def pairwise_sum(values: list[Value]) -> Value:
    """Returns the sum, pairwise; the number of values is a power of two."""
    while len(values) > 1:
        values = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


@kernel
def merge_by_columns(
    k: Tracer, partial: Array, positions: Array, out: Array, *, head_dim: int, keys: int, threads: int
) -> None:
    # out = sum_i 2^(m_i - M) o_i / sum_i 2^(m_i - M) l_i for partial = (o, m, l), M = max m_i; thread (turn, column) adds
    # splits turn, turn + turns, ..
    token, head, n_splits = k.program(0), k.program(1), positions[k.program(0)].to(i64) // keys + 1
    turns = power_up_to(threads // head_dim)
    width = threads // turns
    column, turn = k.lane() % width, k.lane() // width
    peak, weight, total = k.var(LOWEST), k.var(0.0), k.var(0.0)
    for first in k.range(0, n_splits, AT_ONCE * turns):
        before, found = peak.value, []
        for number in (first + turn + i * turns for i in range(AT_ONCE)):
            at = token, head, k.minimum(number, n_splits - 1)
            columns = k.minimum(column, head_dim - 1), head_dim, head_dim + 1
            value, high, low = (k.gather(partial, *at, c) for c in columns)
            there = number < n_splits  # what is past the last is 0, not infinity times 0
            found.append(tuple(k.select(there, x, rest) for x, rest in ((high, LOWEST), (low, 0.0), (value, 0.0))))
        for high, _, _ in found:
            peak.set(k.maximum(peak.value, high))
        shrink = power_of_two(k, before - peak.value)
        weight.set(weight.value * shrink)
        total.set(total.value * shrink)
        for high, low, value in found:
            share = power_of_two(k, high - peak.value)
            weight.set(k.fma(share, low, weight.value))
            total.set(k.fma(share, value, total.value))
    of_turns = [k.scratch(f32, threads) for _ in range(3)]
    for array, variable in zip(of_turns, (peak, weight, total), strict=True):
        array[k.lane()] = variable.value
    k.barrier()
    with k.when(k.lane() < head_dim):
        peaks, weights, totals = ([k.gather(a, k.lane() + i * width) for i in range(turns)] for a in of_turns)
        greatest = peaks[0]
        for other in peaks[1:]:
            greatest = k.maximum(greatest, other)
        shares = [power_of_two(k, one - greatest) for one in peaks]
        above, below = (pairwise_sum([s * x for s, x in zip(shares, each, strict=True)]) for each in (totals, weights))
        k.scatter(out, above / below, token, head * head_dim + k.lane())
