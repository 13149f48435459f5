"""The kernel of sample: a program per row finds what top_k, top_p and min_p keep and draws from it.

Filters apply in the order of transformers' warpers, each to the tokens that the one before left. The draw is an exponential
race, which is equivalent to Gumbel-max: token i has the time e_i / w_i, e_i = -ln(1 - v_i) of a hash v_i of (seed, step, i), and
the shortest time wins.
Nothing depends on the lane count: counts and top_p's masses are sums of integers, and ties go to the smaller index.
"""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.dtypes import i32, u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops.sample.kept import (
    HIGHEST,
    KeptTokens,
    Masked,
    Row,
    first_equal,
    fixed_point,
    keep_top_k,
    keep_top_p,
    list_blocks,
    row_of,
)
from camshaft.ops.sample.uniform import exponential, keys, noise

NAN_TOKEN = -1  # the result for a row with a NaN
MOST_TOKENS = 1 << 18


@kernel
def one_row_per_program(
    k: Tracer,
    logits: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    min_p: Array,
    seed: Array,
    weights: Array,
    out: Array,
    *,
    n: int,
    block: int,
) -> None:
    # w = exp((x - max x) / temperature) over the kept; y = argmin_i e_i / w_i, so that P(y = i) = w_i / sum(w)
    _draw(k, row_of(k, logits, n, block), (temperature, top_k, top_p, min_p, seed), weights, out)


@kernel
def one_masked_row_per_program(
    k: Tracer,
    logits: Array,
    mask: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    min_p: Array,
    seed: Array,
    weights: Array,
    out: Array,
    *,
    n: int,
    block: int,
) -> None:
    # x[i] = the lowest finite number where bit i % 32 of mask[r, i // 32] is 0; then as above
    _draw(k, row_of(k, logits, n, block, mask), (temperature, top_k, top_p, min_p, seed), weights, out)


def _draw(k: Tracer, found: tuple[Row, Value, Value], settings: Sequence[Array], weights: Array, out: Array) -> None:
    this, top, nan = found
    temperature, top_k, top_p, min_p, seed = settings
    row, n = this.row, this.n
    temperature_ = k.select(temperature[row] > 0, temperature[row], 0.0)
    with k.when(nan > 0):
        out[row] = NAN_TOKEN
    with k.when((nan == 0) & (temperature_ <= 0)):
        out[row] = first_equal(this, top)
    with k.when((nan == 0) & (temperature_ > 0)):
        wanted = k.select((top_k[row] > 0) & (top_k[row] < n), top_k[row], n)
        list_blocks(this, wanted, top)
        best = keep_top_k(this, wanted)
        inverse = 1.0 / temperature_

        def weight(c: Value) -> Value:
            x = this.value(c)
            return k.exp(k.select(x == top, 0.0, (x - top) * inverse))

        heavy = keep_top_p(this, best, weight, weights, top_p[row])
        least = k.select(min_p[row] > 0, k.select(min_p[row] < 1, min_p[row], 1.0), 0.0)
        hash_keys = keys(seed[row, 0], seed[row, 1], seed[row, 2])
        out[row] = _race(this, best, heavy, weight, least, hash_keys)


def _race(
    this: Row, best: KeptTokens, heavy: KeptTokens, weight: Masked, least: Value, hash_keys: tuple[Value, Value]
) -> Value:
    """Draws a token from those that top_k and top_p keep and whose weight is at least `least`."""
    k, shortest, winner = this.k, this.k.var(HIGHEST), this.k.var(0, i32)
    for c in this.columns():
        w = weight(c)
        with k.when(best.holds(this.value(c), c) & heavy.holds(fixed_point(k, w), c) & (w >= least)):
            time = exponential(k, noise(c.to(u32), *hash_keys)) / w
            sooner = time < shortest.value
            shortest.set(k.select(sooner, time, shortest.value))
            winner.set(k.select(sooner, c.to(i32), winner.value))
    first = k.lanes_min(shortest)
    return k.lanes_min(k.select(shortest.value == first, winner.value, this.n))
