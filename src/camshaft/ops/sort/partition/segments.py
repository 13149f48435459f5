"""Sorts a segment of words by halves, as quicksort does, down to what registers hold.

A segment has room beside it for as many words. A vector's words below a pivot go to the front of the segment, the others to the
room; neither overtakes what is read. Then the rest of the room belongs to the first, the rest of the segment to the second, so
that no word is copied back. The pivot is near the median of 27 words; after a split that left more than 7/8 on one side it is
the middle of the words that are possible, so that the depth is bounded whatever the words are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from camshaft.dtypes import i64
from camshaft.lang import Array, Tracer, ir
from camshaft.lang.tracing.tracer import Variable
from camshaft.ops.sort.network import Words
from camshaft.ops.sort.partition.leaf import Leaf

# Vectors of the greatest and of the smaller leaves, and vectors that a step of the loop splits.
LEAVES, UNROLLED = (16, 8), 4
# The greater part of a split is pushed first, so 2^30 elements need less. Fields: at, beside, n, to, whether a bad split made it.
_DEPTH, _FIELDS = 32, 5
# Times the stack may outlast as many steps as good splits need: depth 250 at most, 4 steps for each leaf's words.
_ROUNDS = 128
Put = Callable[[ir.Value, ir.Value, ir.Value], None]


@dataclass(frozen=True)
class Segment:
    """Words from `at` on, room from `beside` on, the result's first place `to`, and the bounds of the words."""

    at: ir.Value
    beside: ir.Value
    n: ir.Value
    to: ir.Value
    bad: ir.Value
    low: ir.Value
    high: ir.Value


@dataclass(frozen=True)
class Area:
    """The words of a row: keys[row, place]. Past each sorted segment and its room are LEAVES[0] vectors of no meaning."""

    k: Tracer
    keys: Array
    row: ir.Value
    width: int

    def split(self, at: ir.Value, beside: ir.Value, n: ir.Value, pivot: ir.Value) -> ir.Value:
        """Moves the words below the pivot to the front and the others to the room; returns the number of the first."""
        k, width = self.k, self.width
        front, other = k.var(at, i64), k.var(beside, i64)
        bound, shift = k.splat(pivot, width, pivot.dtype), width.bit_length() - 1
        whole = n >> shift
        steps = whole // UNROLLED
        for i in k.range(steps):
            for j in range(UNROLLED):
                self._split_vector(at + (i * UNROLLED + j) * width, bound, front, other)
        for i in k.range(steps * UNROLLED, whole):
            self._split_vector(at + i * width, bound, front, other)
        rest = n & (width - 1)
        with k.when(rest > 0):
            self._split_rest(at + (whole << shift), rest, bound, front, other)
        return front.value - at

    def _split_vector(self, place: ir.Value, bound: ir.Value, front: Variable, other: Variable) -> None:
        k = self.k
        words = k.load_vector(self.keys, self.row, place, width=self.width)
        below = words < bound
        k.store_vector(self.keys, k.pack(words, below), self.row, front.value)
        k.store_vector(self.keys, k.pack(words, words >= bound), self.row, other.value)
        n = k.count(below)
        front.set(front.value + n)
        other.set(other.value + (self.width - n))

    def _split_rest(self, place: ir.Value, rest: ir.Value, bound: ir.Value, front: Variable, other: Variable) -> None:
        k = self.k
        there = k.iota(self.width) < k.splat(rest, self.width, i64)
        words = k.load_vector(self.keys, self.row, place, width=self.width, count=rest)
        below = (words < bound) & there
        n = k.count(below)
        k.store_vector(self.keys, k.pack(words, below), self.row, front.value, count=n)
        k.store_vector(self.keys, k.pack(words, (words >= bound) & there), self.row, other.value, count=rest - n)
        front.set(front.value + n)
        other.set(other.value + (rest - n))

    def near_median(self, at: ir.Value, n: ir.Value) -> ir.Value:
        """The median of three medians of three medians of three, as far as a vector has so many words."""
        k, lane = self.k, self.k.lane()
        words = [self.keys[self.row, at + ((n * part) >> 2) + lane] for part in (1, 2, 3)]
        middle = _middle(k, *words)
        for steps in ((5, 10), (1, 3)):
            others = [k.shuffle(middle, (lane + step) & (self.width - 1)) for step in steps]
            middle = _middle(k, middle, *others)
        return k.broadcast(middle, 0)


def _middle(k: Tracer, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    return k.maximum(k.minimum(a, b), k.minimum(k.maximum(a, b), c))


class Stack:
    """Segments that are still to be sorted."""

    def __init__(self, k: Tracer, words: Words) -> None:
        self.k = k
        self.numbers, self.bounds = k.scratch(i64, _DEPTH * _FIELDS), k.scratch(words.dtype, _DEPTH * 2)
        self.size = k.var(0, i64)

    def push(self, segment: Segment) -> None:
        """Adds a segment unless it is empty."""
        fields = segment.at, segment.beside, segment.n, segment.to, segment.bad
        with self.k.when(segment.n > 0):
            for i, field in enumerate(fields):
                self.numbers[self.size.value * _FIELDS + i] = field
            for i, word in enumerate((segment.low, segment.high)):
                self.bounds[self.size.value * 2 + i] = word
            self.size.set(self.size.value + 1)

    def pop(self) -> Segment:
        """Removes the last segment."""
        self.size.set(self.size.value - 1)
        top = self.size.value
        at, beside, n, to, bad = (self.numbers[top * _FIELDS + i] for i in range(_FIELDS))
        return Segment(at, beside, n, to, bad, self.bounds[top * 2], self.bounds[top * 2 + 1])

    @contextmanager
    def _some(self) -> Iterator[None]:
        with self.k.when(self.size.value > 0):
            yield

    def each(self, rounds: ir.Value, steps: ir.Value) -> Iterator[Segment]:
        """The last segment, again and again, until there is none."""
        k = self.k
        for _ in k.range(rounds):
            for _ in k.range(k.select(self.size.value > 0, steps, 0)):
                with self._some():
                    yield self.pop()


def sort_segment(area: Area, words: Words, at: ir.Value, beside: ir.Value, n: ir.Value, put: Put) -> None:
    """Sorts n words; calls put(place, vector, rest) with each vector of the result, of which the first `rest` words are of it."""
    k, stack = area.k, Stack(area.k, words)
    most = LEAVES[0] * area.width
    low, high = (k.const(bound, words.dtype) for bound in (words.least, words.greatest))
    stack.push(Segment(at, beside, n, k.const(0, i64), k.const(0, i64), low, high))
    rounds = k.select(n > most, k.const(_ROUNDS, i64), 1)
    for segment in stack.each(rounds, (n >> (most.bit_length() - 2)) * 2 + 4):
        k.barrier()  # a lane reads what others wrote
        differ = segment.low < segment.high
        with k.when((segment.n <= most) & differ):
            _sort_leaf(area, words, segment, put)
        with k.when((segment.n > most) & differ):
            _split_segment(area, stack, segment)
        with k.when(segment.low >= segment.high):
            for place in k.range((segment.n + (area.width - 1)) // area.width):
                put(segment.to + place * area.width, segment.low, segment.n - place * area.width)


def _sort_leaf(area: Area, words: Words, segment: Segment, put: Put) -> None:
    """Sorts what registers hold. Whole vectors are loaded: what lies past the segment counts as the greatest word."""
    k, width = area.k, area.width
    greatest = k.const(words.greatest, words.dtype)
    for i, rows in enumerate(LEAVES):
        least = LEAVES[i + 1] * width if i + 1 < len(LEAVES) else 0
        with k.when((segment.n <= rows * width) & (segment.n > least)):
            loaded = []
            for row in range(rows):
                place, word = row * width + k.lane(), area.keys[area.row, segment.at + row * width + k.lane()]
                loaded.append(word if row * width < least else k.select(place < segment.n, word, greatest))
            for row, word in enumerate(Leaf(k, rows, width).sorted(loaded)):
                rest = k.const(width, i64) if row * width < least else segment.n - row * width
                put(segment.to + row * width, word, rest)


def _split_segment(area: Area, stack: Stack, segment: Segment) -> None:
    k, low, high = area.k, segment.low, segment.high
    pivot = k.var(area.near_median(segment.at, segment.n), low.dtype)
    with k.when(segment.bad > 0):
        pivot.set((low & high) + ((low ^ high) >> 1))
    pivot.set(k.select(pivot.value == low, low + 1, pivot.value))
    k.barrier()  # lanes have read words that are moved now
    n = area.split(segment.at, segment.beside, segment.n, pivot.value)
    rest, limit = segment.n - n, segment.n - (segment.n >> 3)
    parts = (
        Segment(segment.at, segment.beside + rest, n, segment.to, (n > limit).to(i64), low, pivot.value - 1),
        Segment(segment.beside, segment.at + n, rest, segment.to + n, (rest > limit).to(i64), pivot.value, high),
    )
    first_is_less = n < rest

    def chosen(name: str, first: bool) -> ir.Value:
        a, b = (getattr(part, name) for part in (parts if first else parts[::-1]))
        return k.select(first_is_less, b, a)

    for first in (True, False):
        stack.push(Segment(**{name: chosen(name, first) for name in Segment.__dataclass_fields__}))
