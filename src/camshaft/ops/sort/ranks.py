"""Kernels of sorts that count, for each element, those before it: of short rows, and of the few greatest of a long one.

The few greatest: the count-th least of the blocks' least keys bounds the count-th least key. Where no more than MARGIN others
are within the bound, all of these are ranked. Else the blocks below it are searched for the count-th least key, by halves, and
its equals are taken in order until there are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from camshaft.dtypes import i32, i64
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.lang.tracing.tracer import Variable
from camshaft.ops.sort.keys import Keys, keys_of

# Elements whose number of predecessors is counted one against the other.
MOST = 512
# Keys that are ranked beside the wanted ones, rather than searched for the last one wanted.
MARGIN = 64


def put_by_rank(
    k: Tracer, made: Keys, x: Array, row: ir.Value, keys: Array, places: Array, n: int | ir.Value, outs: tuple[Array, ...],
    count: int, gives: str,
) -> None:  # fmt: skip
    """Stores the first `count` of n elements in the order of keys, then of their numbers. `gives`: 'values', 'places' or both."""
    width = k.lane_count()
    for b in k.range((n + (width - 1)) // width):
        j, before, mine = b * width + k.lane(), k.var(0, i32), k.var(0, keys.dtype)
        with k.when(j < n):
            mine.set(keys[j])
        for i in k.range(n):
            other = keys[i]
            earlier = (other < mine.value) | ((other == mine.value) & (j > i))
            before.set(before.value + earlier.to(i32))
        with k.when((j < n) & (before.value < count)):
            rank, place = before.value.to(i64), places[j].to(i64)
            if "values" in gives:  # alone from the key, as a sort by digits does
                value = made.bits(k, mine.value) if gives == "values" else k.gather(x, row, place)
                k.scatter(outs[0], value, row, rank)
            if "places" in gives:
                k.scatter(outs[-1], place.to(outs[-1].dtype), row, rank)


@kernel
def rank_row(
    k: Tracer, x: Array, *results: Array, dtype: str, descending: bool, gives: str, inner: int, dim: int, count: int, outputs: int
) -> None:  # fmt: skip
    # y[rank(c)] = x[c] or c, rank(c) = the number of elements before x[c]
    row, made = k.program(0) * inner + k.program(1), keys_of(dtype, descending, "places" in gives)
    keys, places = k.scratch(made.word, dim), k.scratch(i32, dim)
    for c in k.lanes(dim):
        keys[c] = made.key(k, x[row, c])
        places[c] = c.to(i32)
    k.barrier()
    put_by_rank(k, made, x, row, keys, places, dim, results[:outputs], count, gives)


@dataclass(frozen=True)
class Blocks:
    """A row's blocks: the least key of each, and the `n_listed` that may have one of the wanted."""

    k: Tracer
    x: Array
    row: ir.Value
    made: Keys
    dim: int
    block: int
    peaks: Array
    listed: Array
    n_listed: Variable

    @property
    def count(self) -> int:
        return -(-self.dim // self.block)

    def bounds(self, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The first column of a block, and the one after its last."""
        return b * self.block, self.k.minimum(b * self.block + self.block, self.dim)

    def key(self, c: ir.Value) -> ir.Value:
        return self.made.key(self.k, self.x[self.row, c])

    def find_peaks(self) -> None:
        k = self.k
        for b in k.range(self.count):
            least = k.accumulator("min", self.made.word)
            for c in k.lanes(*self.bounds(b)):
                least.combine(self.key(c))
            self.peaks[b] = k.lanes_min(least)
        k.barrier()

    def columns(self) -> Iterator[ir.Value]:
        """The columns of the listed blocks, over the lanes."""
        for j in self.k.range(self.n_listed.value):
            yield from self.k.lanes(*self.bounds(self.listed[j].to(i64)))

    def count_of(self, holds: Callable[[ir.Value], ir.Value]) -> ir.Value:
        total = self.k.accumulator("sum", i32)
        for c in self.columns():
            total += holds(self.key(c)).to(i32)
        return self.k.lanes_sum(total)


def _greatest(k: Tracer, made: Keys, few: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """The greatest key for which a condition is true that is true of all smaller ones; 0 if there is none."""
    found, bit = k.var(0, made.word), k.var(made.sign, made.word)
    for _ in k.range(made.dtype.bits):
        trial = found.value | bit.value
        with k.when(few(trial)):
            found.set(trial)
        bit.set(bit.value >> 1)
    return found.value


@kernel
def few_of_row(
    k: Tracer, x: Array, *results: Array, dtype: str, descending: bool, gives: str, inner: int, dim: int, count: int,
    outputs: int, block: int,
) -> None:  # fmt: skip
    # as rank_row, for a few elements of a long row
    row, made, n_blocks = k.program(0) * inner + k.program(1), keys_of(dtype, descending, True), -(-dim // block)
    peaks, listed = k.scratch(made.word, n_blocks), k.scratch(i32, n_blocks)
    this = Blocks(k, x, row, made, dim, block, peaks, listed, k.var(0, i64))
    this.find_peaks()

    def few_peaks(trial: ir.Value) -> ir.Value:
        below = k.accumulator("sum", i32)
        for b in k.lanes(n_blocks):
            below += (peaks[b] < trial).to(i32)
        return k.lanes_sum(below) < count

    bound = k.var(made.ones, made.word)
    if count < n_blocks:
        bound.set(_greatest(k, made, few_peaks))
    for b in k.range(n_blocks):
        with k.when(peaks[b] <= bound.value):
            listed[this.n_listed.value] = b.to(i32)
            this.n_listed.set(this.n_listed.value + 1)
    k.barrier()
    room = count + MARGIN
    keys, places = k.scratch(made.word, room), k.scratch(i32, room)
    last, found = k.var(bound.value, made.word), k.var(this.count_of(lambda key: key <= bound.value), i32)
    with k.when(found.value > room):
        last.set(_greatest(k, made, lambda trial: this.count_of(lambda key: key < trial) < count))
        found.set(count)
    _collect(this, last.value, keys, places, found.value)
    put_by_rank(k, made, x, row, keys, places, found.value.to(i64), results[:outputs], count, gives)


def _collect(this: Blocks, last: ir.Value, keys: Array, places: Array, count: ir.Value) -> None:
    """Stores `count` keys: those below `last`, and the first of those equal to it, in order."""
    k, found = this.k, this.k.var(0, i64)
    equals = k.var(count - this.count_of(lambda key: key < last), i32)
    for j in k.range(this.n_listed.value):
        block = this.listed[j].to(i64)
        with k.when(this.peaks[block] <= last):
            first, stop = this.bounds(block)
            for c in k.range(first, stop):
                key = this.key(c)
                with k.when((key < last) | ((key == last) & (equals.value > 0))):
                    keys[found.value], places[found.value] = key, c.to(i32)
                    found.set(found.value + 1)
                    equals.set(equals.value - (key == last).to(i32))
    k.barrier()
