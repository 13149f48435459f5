"""The kernel of softmax_sample: several draws without replacement, and log-probabilities, from the parts of kept.py.

The exponential race goes on: the second token to arrive is the second draw, and so on. That is drawing without replacement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from camshaft.dtypes import i32, i64, u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops.sample.kept import (
    HALF_BITS,
    HIGHEST,
    LOWEST,
    WEIGHT_BITS,
    Masked,
    Row,
    fixed_point,
    keep_top_k,
    keep_top_p,
    list_blocks,
    mass,
    row_of,
)
from camshaft.ops.sample.kernel import NAN_TOKEN
from camshaft.ops.sample.uniform import exponential, keys, noise


@dataclass(frozen=True)
class Drawn:
    """Where the draws of a row go: tokens and their log-probabilities."""

    k: Tracer
    row: Value
    tokens: Array
    logprobs: Array

    def put(self, j: Value, token: Value, logprob: Value | float) -> None:
        """Stores draw number j."""
        self.tokens[self.row, j] = token
        self.logprobs[self.row, j] = logprob


@kernel
def several_per_row(
    k: Tracer, logits: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array, seed: Array, weights: Array,
    tokens: Array, logprobs: Array, *, n: int, block: int, draws: int,
) -> None:  # fmt: skip
    # y[j] = the j-th smallest of e_i / w_i over the kept; p[j] = ln(w_y / sum of w over the kept), of all if temperature is 0
    this, top, nan = row_of(k, logits, n, block)
    row = this.row
    drawn = Drawn(k, row, tokens, logprobs)
    temperature_ = k.select(temperature[row] > 0, temperature[row], 0.0)
    greedy = temperature_ <= 0
    with k.when(nan > 0):
        for j in k.range(draws):
            drawn.put(j, k.const(NAN_TOKEN, i32), float("nan"))
    with k.when(nan == 0):
        wanted = k.select((top_k[row] > 0) & (top_k[row] < n) & (temperature_ > 0), top_k[row], n)
        list_blocks(this, wanted, top)
        inverse = 1.0 / k.select(greedy, 1.0, temperature_)

        def exponent(c: Value) -> Value:
            x = this.value(c)
            return k.select(x == top, 0.0, (x - top) * inverse)

        def weight(c: Value) -> Value:
            return k.exp(exponent(c))

        best = keep_top_k(this, wanted)
        heavy = keep_top_p(this, best, weight, weights, k.select(greedy, 1.0, top_p[row]))
        least = k.select((min_p[row] > 0) & (temperature_ > 0), k.select(min_p[row] < 1, min_p[row], 1.0), 0.0)

        def kept(c: Value, w: Value) -> Value:
            return best.holds(this.value(c), c) & heavy.holds(fixed_point(k, w), c) & (w >= least)

        total = _log_of_mass(this, weight, kept)
        hash_keys = keys(seed[row, 0], seed[row, 1], seed[row, 2])

        def time(c: Value) -> Value:
            w = weight(c)
            raced = exponential(k, noise(c.to(u32), *hash_keys)) / w
            x = this.value(c)
            in_order = k.select(x == top, LOWEST, -x)
            return k.select(greedy, in_order, k.select(kept(c, w), raced, HIGHEST))

        _race_on(this, time, exponent, total, drawn, draws)


def _log_of_mass(this: Row, weight: Masked, kept: Callable[[Value, Value], Value]) -> Value:
    """ln of the sum of the kept weights; of integers, 2^-28 of the likeliest token's, so that lanes do not change it."""
    k = this.k

    def counted(c: Value) -> Value:
        w = weight(c)
        whole = k.minimum((w * float(1 << WEIGHT_BITS) + 0.5).to(u32), (1 << WEIGHT_BITS) - 1)
        return k.select(kept(c, w), whole, 0)

    return k.log(mass(this, counted) * 2.0 ** (HALF_BITS - WEIGHT_BITS))


def _race_on(this: Row, time: Masked, exponent: Masked, total: Value, drawn: Drawn, draws: int) -> None:
    """Stores the tokens in the order of their times; -1 and NaN once no other is kept."""
    k, last, token = this.k, this.k.var(LOWEST), this.k.var(-1, i32)
    for j in k.range(draws):
        shortest, winner = k.var(HIGHEST), k.var(0, i32)
        for c in this.columns():
            t = time(c)
            later = (t > last.value) | ((t == last.value) & (c.to(i32) > token.value))
            sooner = later & (t < shortest.value)
            shortest.set(k.select(sooner, t, shortest.value))
            winner.set(k.select(sooner, c.to(i32), winner.value))
        first = k.lanes_min(shortest)
        index = k.lanes_min(k.select(shortest.value == first, winner.value, this.n))
        found = first < HIGHEST
        last.set(first)
        token.set(k.select(found, index, this.n))
        logprob = k.select(found, exponent(index.to(i64)) - total, float("nan"))
        drawn.put(j, k.select(found, index, NAN_TOKEN), logprob)
