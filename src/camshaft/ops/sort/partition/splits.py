"""Splits words at a pivot in place: those below it come to the front of their place, the others to the back.

Words are read in groups of UNROLLED vectors, from the end with less room, so that no word is overwritten before it is read. A
group at each end is set aside first, which makes the room. A vector's words below the pivot are packed to the front of the
room; the others, in reverse, to its back: both stores are of the whole vector, and what is too much covers only room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from camshaft.dtypes import DType, boolean, i64
from camshaft.lang import Array, Tracer, ir
from camshaft.ops.sort.network import Words

# Vectors of a group. What it takes to know where the next group is from then overlaps with moving the one before.
UNROLLED = 8
# load(place, count): the vector of words from a place on, of which there are `count` (None: all).
Load = Callable[..., ir.Value]


@dataclass(frozen=True)
class Area:
    """The words of a row: keys[row, place]."""

    k: Tracer
    keys: Array
    row: ir.Value
    width: int
    dtype: DType

    @property
    def shift(self) -> int:
        """The logarithm of the width."""
        return self.width.bit_length() - 1

    def load(self, place: ir.Operand, count: ir.Operand | None = None) -> ir.Value:
        """The vector of words from a place on."""
        return self.k.load_vector(self.keys, self.row, place, width=self.width, count=count)

    def split(self, at: ir.Value, n: ir.Value, pivot: ir.Value) -> ir.Value:
        """Splits the n words from `at` on; returns how many are below the pivot."""
        k, group = self.k, UNROLLED * self.width
        room = k.scratch(self.dtype, 1, 3 * group + self.width)
        ends, held = Ends(self, at, n, pivot), Area(k, room, k.const(0, i64), self.width, self.dtype)
        has_groups = n >= 2 * group
        left, right = k.select(has_groups, (n & (group - 1)) + group, n), k.select(has_groups, k.const(group, i64), 0)
        held.copy(k.const(0, i64), self, at, left)
        first, last = k.var(at + left, i64), k.var(at + n - right, i64)
        held.copy(left, self, last.value, right)
        for _ in k.range((n - left - right) >> (group.bit_length() - 1)):
            from_front = first.value - ends.front.value <= ends.back.value - last.value
            place = k.select(from_front, first.value, last.value - group)
            first.set(k.select(from_front, first.value + group, first.value))
            last.set(k.select(from_front, last.value, last.value - group))
            for words in [self.load(place + i * self.width) for i in range(UNROLLED)]:
                ends.take(words)
        ends.take_all(held.load, left + right)
        return ends.front.value - at

    def copy(self, to: ir.Value, source: Area, at: ir.Value, n: ir.Value) -> None:
        """Copies n words of a source."""
        k, whole = self.k, n >> self.shift
        for i in k.range(whole):
            k.store_vector(self.keys, source.load(at + i * self.width), self.row, to + i * self.width)
        rest, done = n & (self.width - 1), whole << self.shift
        with k.when(rest > 0):
            k.store_vector(self.keys, source.load(at + done, rest), self.row, to + done, count=rest)


class Ends:
    """The room of n words from `at` on, which words fill from both ends."""

    def __init__(self, area: Area, at: ir.Value, n: ir.Value, pivot: ir.Value) -> None:
        self.k, self.area, self.width = area.k, area, area.width
        self.front, self.back = area.k.var(at, i64), area.k.var(at + n, i64)
        self.bound = area.k.splat(pivot, area.width, area.dtype)
        self.all = area.k.splat(1, area.width, boolean)

    def take(self, words: ir.Value) -> None:
        """Puts the words of a vector where they belong. There is room for two vectors."""
        k, area = self.k, self.area
        below = words < self.bound
        found = k.partition(words, below)
        k.store_vector(area.keys, found, area.row, self.front.value)
        k.store_vector(area.keys, found, area.row, self.back.value - self.width)
        self._move(k.count(below), self.width)

    def take_all(self, load: Load, n: ir.Value) -> None:
        """Puts the n words of a source where they belong. There is room for as many."""
        k, width = self.k, self.width
        whole = k.maximum(n - width, 0) >> self.area.shift
        steps = whole // UNROLLED
        for i in k.range(steps):
            for words in [load((i * UNROLLED + j) * width, None) for j in range(UNROLLED)]:
                self.take(words)
        for i in k.range(steps * UNROLLED, whole):
            self.take(load(i * width, None))
        done = whole << self.area.shift
        for place in (done, done + width):
            count = k.minimum(n - place, width)
            with k.when(count > 0):
                self._take_first(load(place, count), count)

    def _take_first(self, words: ir.Value, count: ir.Value) -> None:
        """Puts the first words of a vector where they belong. There is room for these alone."""
        k, area = self.k, self.area
        there = k.iota(self.width) < k.splat(count, self.width, i64)
        below = (words < self.bound) & there
        n = k.count(below)
        k.store_vector(area.keys, k.pack(words, below), area.row, self.front.value, count=n)
        others = k.pack(words, (below ^ self.all) & there)
        k.store_vector(area.keys, others, area.row, self.back.value - (count - n), count=count - n)
        self._move(n, count)

    def _move(self, n: ir.Value, count: ir.Operand) -> None:
        self.front.set(self.front.value + n)
        self.back.set(self.back.value - (count - n))


def near_median(k: Tracer, load: Callable[[ir.Value], ir.Value], n: ir.Value, width: int) -> ir.Value:
    """The median of three medians of three medians of three of n words, as far as a vector has so many; `load` gives the words
    from a place on, one for each lane."""
    lane = k.lane()
    middle = _middle(k, *(load((n * part) >> 2) for part in (1, 2, 3)))
    for steps in ((5, 10), (1, 3)):
        others = [k.shuffle(middle, (lane + step) & (width - 1)) for step in steps]
        middle = _middle(k, middle, *others)
    return k.broadcast(middle, 0)


def _middle(k: Tracer, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    return k.maximum(k.minimum(a, b), k.minimum(k.maximum(a, b), c))


@dataclass(frozen=True)
class Elements:
    """The elements of a row of x from `at` on, as words."""

    k: Tracer
    words: Words
    x: Array
    row: ir.Value
    at: ir.Value
    width: int

    def load(self, place: ir.Operand, count: ir.Operand | None = None) -> ir.Value:
        """The vector of words from a place on."""
        k, first = self.k, self.at + place
        bits = k.load_vector(self.x, self.row, first, width=self.width, count=count)
        return self.words.word(k, bits, k.splat(first, self.width, i64) + k.iota(self.width))

    def by_lane(self, place: ir.Value) -> ir.Value:
        """The word of each lane, from a place on."""
        at = self.at + place + self.k.lane()
        return self.words.word(self.k, self.x[self.row, at], at)
