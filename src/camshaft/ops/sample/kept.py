"""The parts of the kernels that draw: a row of logits, and which of its tokens top_k and top_p keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from camshaft.dtypes import f32, i32, i64, u32
from camshaft.lang import Array, Tracer, Value, Variable

Masked = Callable[[Value], Value]
WORD = 32  # tokens of a word of a mask, and the fewest columns of a block
LOWEST, HIGHEST = -3.4028234663852886e38, 3.4028234663852886e38
# top_p uses weights in fixed point, 2^-28 of the likeliest token's; two halves of 14 bits let sums over 2^18 tokens fit u32.
WEIGHT_BITS, HALF_BITS = 28, 14


@dataclass(frozen=True)
class Row:
    """One row of logits, the list of the `n_listed` blocks of it that may have a kept token, and the largest logit of each block
    of all. With a mask u32 [R, ceil(n / 32)], tokens whose bit is 0 have the lowest finite number in place of their logit."""

    k: Tracer
    logits: Array
    row: Value
    n: int
    block: int
    listed: Array
    n_listed: Variable
    peaks: Array
    mask: Array | None = None

    def all_blocks(self) -> int:
        return -(-self.n // self.block)

    def columns(self) -> Iterator[Value]:
        """The columns of the listed blocks, over the lanes."""
        for j in self.k.range(self.n_listed.value):
            first = self.listed[j].to(i64) * self.block
            yield from self.k.lanes(first, self.k.minimum(first + self.block, self.n))

    def value(self, c: Value) -> Value:
        """Loads a logit; NaN and -inf become the lowest finite number."""
        x = self.logits[self.row, c]
        stays = x > LOWEST
        if self.mask is not None:
            stays = stays & _has_bit(self.k.gather(self.mask, self.row, c // WORD), c % WORD)
        return self.k.select(stays, x, LOWEST)

    def count(self, holds: Masked) -> Value:
        """Counts the columns of listed blocks for which a condition is true."""
        total = self.k.accumulator("sum", i32)
        for c in self.columns():
            total += holds(c).to(i32)
        return self.k.lanes_sum(total)


@dataclass(frozen=True)
class KeptTokens:
    """The kept tokens: those with keys above `least`, and those with keys equal to it and indexes up to `last`."""

    least: Variable
    last: Variable

    def holds(self, key: Value, c: Value) -> Value:
        return (key > self.least.value) | ((key == self.least.value) & (c.to(i32) <= self.last.value))


def row_of(k: Tracer, logits: Array, n: int, block: int, mask: Array | None = None) -> tuple[Row, Value, Value]:
    """Returns the program's row with its peaks and no block listed, its largest logit, and 1 if a logit is NaN, else 0."""
    n_blocks = -(-n // block)
    scratch = k.scratch(i32, n_blocks), k.var(0, i64), k.scratch(f32, n_blocks)
    this = Row(k, logits, k.program(0), n, block, *scratch, mask)
    return this, *_find_peaks(this)


def _has_bit(word: Value, i: Value) -> Value:
    return (word >> i.to(u32)) & 1 == 1


def _stretches(this: Row, block: Value) -> Iterator[tuple[Value, Value, Value | None]]:
    """The first column of a block, the one after its last, and no word; with a mask, those of each word that has a 1."""
    k, first = this.k, block * this.block
    if this.mask is None:
        yield first, k.minimum(first + this.block, this.n), None
        return
    for i in range(this.block // WORD):
        begin = first + i * WORD
        word = this.mask[this.row, k.minimum(begin, this.n - 1) // WORD]
        with k.when(word != 0):
            yield begin, k.minimum(begin + WORD, this.n), word


def _find_peaks(this: Row) -> tuple[Value, Value]:
    """Stores the peaks; returns the largest of them, and whether a logit is NaN."""
    k, nans = this.k, this.k.accumulator("max", i32)
    for b in k.range(this.all_blocks()):
        peak = k.var(LOWEST)
        for first, end, word in _stretches(this, b):
            for c in k.lanes(first, end):
                x = this.logits[this.row, c]
                x = x if word is None else k.select(_has_bit(word, c - first), x, LOWEST)
                peak.set(k.select(x > peak.value, x, peak.value))
                nans.combine(k.isnan(x).to(i32))
        this.peaks[b] = k.lanes_max(peak)
    k.barrier()
    top = k.var(LOWEST)
    for b in k.lanes(this.all_blocks()):
        top.set(k.select(this.peaks[b] > top.value, this.peaks[b], top.value))
    return k.lanes_max(top), k.maximum(k.lanes_max(nans), 0)  # 0 too where a mask let no logit be read


def first_equal(this: Row, top: Value) -> Value:
    """Returns the smallest index of a value equal to `top`: in the first block with this peak."""
    k = this.k
    block, where = k.accumulator("min", i32), k.accumulator("min", i32)
    for b in k.lanes(this.all_blocks()):
        block.combine(k.select(this.peaks[b] == top, b.to(i32), this.all_blocks()))
    first = k.lanes_min(block).to(i64) * this.block
    for c in k.lanes(first, k.minimum(first + this.block, this.n)):
        where.combine(k.select(this.value(c) == top, c.to(i32), this.n))
    return k.lanes_min(where)


def bisect(k: Tracer, bits: int, holds: Masked) -> Value:
    """Returns the largest integer below 2^bits for which a monotonic condition is true; 0 if there is none."""
    found, bit = k.var(0, u32), k.var(1 << (bits - 1), u32)
    for _ in k.range(bits):
        trial = found.value | bit.value
        with k.when(holds(trial)):
            found.set(trial)
        bit.set(bit.value >> 1)
    return found.value


def _ordered_float(k: Tracer, rank: Value) -> Value:
    """Returns the float of a rank: u32 in the order of floats. Ranks below that of the lowest finite float give that float."""
    rank = k.maximum(rank, 0x00800000)
    negative = rank < 0x80000000
    return k.bitcast(k.select(negative, rank ^ 0xFFFFFFFF, rank ^ 0x80000000), f32)


def list_blocks(this: Row, wanted: Value, top: Value) -> None:
    """Lists the blocks that may contain one of the `wanted` largest: their peak is at least the wanted-th largest peak.

    Blocks whose tokens all have the lowest number (removed ones) are left out, unless that is the largest, `top`, too.
    """
    k, floor = this.k, this.k.var(LOWEST)

    def enough(rank: Value) -> Value:
        total, bound = k.accumulator("sum", i32), _ordered_float(k, rank)
        for b in k.lanes(this.all_blocks()):
            total += (this.peaks[b] >= bound).to(i32)
        return k.lanes_sum(total) >= wanted

    with k.when(wanted <= this.all_blocks()):
        floor.set(_ordered_float(k, bisect(k, 32, enough)))
    for b in k.range(this.all_blocks()):
        with k.when((this.peaks[b] >= floor.value) & ((this.peaks[b] > LOWEST) | (top <= LOWEST))):
            this.listed[this.n_listed.value] = b.to(i32)
            this.n_listed.set(this.n_listed.value + 1)
    k.barrier()


def _cut_ties(this: Row, kept: KeptTokens, equal: Masked, wanted: Value) -> None:
    """Keeps only the first `wanted` of the columns with the least kept key."""
    k = this.k
    with k.when(this.count(equal) > wanted):
        # the largest t with fewer than `wanted` such columns before t is the index of the wanted-th
        last = bisect(k, this.n.bit_length(), lambda t: this.count(lambda c: equal(c) & (c.to(u32) < t)) < wanted)
        kept.last.set(last.to(i32))


def keep_top_k(this: Row, wanted: Value) -> KeptTokens:
    """Keeps the `wanted` largest logits; of those equal to the smallest, the ones with smaller indexes."""
    k = this.k
    kept = KeptTokens(k.var(LOWEST), k.var(this.n, i32))
    with k.when(wanted < this.n):

        def enough(rank: Value) -> Value:
            bound = _ordered_float(k, rank)
            return this.count(lambda c: this.value(c) >= bound) >= wanted

        least = _ordered_float(k, bisect(k, 32, enough))
        kept.least.set(least)
        above = this.count(lambda c: this.value(c) > least)
        _cut_ties(this, kept, lambda c: this.value(c) == least, wanted - above)
    return kept


def fixed_point(k: Tracer, weight: Value) -> Value:
    """Converts a weight from 0 to 1 to an integer of WEIGHT_BITS bits."""
    return k.minimum((weight * float(1 << WEIGHT_BITS)).to(u32), (1 << WEIGHT_BITS) - 1)


def mass(this: Row, counted: Masked) -> Value:
    """Returns the sum of integers below 2^WEIGHT_BITS over the columns, divided by 2^HALF_BITS and rounded once."""
    k, mask = this.k, (1 << HALF_BITS) - 1
    high, low = k.accumulator("sum", u32), k.accumulator("sum", u32)
    for c in this.columns():
        number = counted(c)
        high += number >> HALF_BITS
        low += number & mask
    carry = k.lanes_sum(low)
    total = k.lanes_sum(high) + (carry >> HALF_BITS)
    return k.fma((carry & mask).to(f32), 2.0**-HALF_BITS, total.to(f32))


def _mass_from(this: Row, weights: Array, least: Value) -> Value:
    """Returns the mass of the weights that are at least `least`."""

    def counted(c: Value) -> Value:
        weight = weights[this.row, c]
        return this.k.select(weight >= least, weight, 0)

    return mass(this, counted)


def keep_top_p(this: Row, best: KeptTokens, weight: Masked, weights: Array, share: Value) -> KeptTokens:
    """Keeps the fewest tokens of `best`, by descending weight, that have `share` of their mass. Keys are fixed-point weights."""
    k = this.k
    kept = KeptTokens(k.var(0, u32), k.var(this.n, i32))
    with k.when(share < 1):
        for c in this.columns():
            kept_weight = k.select(best.holds(this.value(c), c), weight(c), 0.0)
            weights[this.row, c] = fixed_point(k, kept_weight)
        k.barrier()
        goal = _mass_from(this, weights, k.const(1, u32)) * share
        least = bisect(k, WEIGHT_BITS, lambda t: _mass_from(this, weights, t) >= goal)
        kept.least.set(least)
        missing = (goal - _mass_from(this, weights, least + 1)) / (least.to(f32) * 2.0**-HALF_BITS)
        wanted = k.maximum((-k.floor(-missing)).to(i32), 1)
        _cut_ties(this, kept, lambda c: weights[this.row, c] == least, wanted)
    return kept
