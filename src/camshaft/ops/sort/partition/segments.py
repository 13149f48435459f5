"""Sorts a segment of words by halves, as quicksort does, down to what registers hold.

A segment is split at a pivot near the median of 27 words (splits.py); after a split that left more than 7/8 on one side the next
is at the middle of the words that are possible, so that the depth is bounded whatever the words are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from camshaft.dtypes import boolean, i32, i64
from camshaft.lang import Number, Tracer, ir
from camshaft.ops.sort.network import Words
from camshaft.ops.sort.partition.leaf import Leaf
from camshaft.ops.sort.partition.splits import Area, Elements, Ends, near_median

# Vectors of the greatest and of the smaller leaves.
LEAVES = 16, 8
# Vectors of words from which two leaves that are merged take less time than a split: 512 words are seldom split in two leaves.
# So of each leaf but the smaller more than LEAVES[1] vectors are whole.
MERGED = 26
# The greater part of a split is pushed first, so 2^30 elements need less. Fields: at, n, whether a bad split made it.
_DEPTH, _FIELDS = 32, 3
# Times the stack may outlast as many steps as good splits need: depth 250 at most, 4 steps for each leaf's words. Two loops: one
# of 128 rounds without a segment takes 0.2 us.
_ROUNDS = 8, 16
Put = Callable[[ir.Value, ir.Value, ir.Value], None]


@dataclass(frozen=True)
class Segment:
    """n words from `at` on, and the bounds of the words."""

    at: ir.Value
    n: ir.Value
    bad: ir.Value
    low: ir.Value
    high: ir.Value


class Stack:
    """Segments that are still to be sorted."""

    def __init__(self, k: Tracer, words: Words) -> None:
        self.k = k
        self.numbers, self.bounds = k.scratch(i64, _DEPTH * _FIELDS), k.scratch(words.dtype, _DEPTH * 2)
        self.size = k.var(0, i64)

    def push(self, segment: Segment) -> None:
        """Adds a segment unless it is empty."""
        fields = segment.at, segment.n, segment.bad
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
        at, n, bad = (self.numbers[top * _FIELDS + i] for i in range(_FIELDS))
        return Segment(at, n, bad, self.bounds[top * 2], self.bounds[top * 2 + 1])

    @contextmanager
    def _some(self) -> Iterator[None]:
        with self.k.when(self.size.value > 0):
            yield

    def each(self, rounds: tuple[ir.Value, ir.Value], steps: ir.Value) -> Iterator[Segment]:
        """The last segment, again and again, until there is none."""
        k = self.k
        for _ in k.range(rounds[0]):
            for _ in k.range(k.select(self.size.value > 0, rounds[1], 0)):
                for _ in k.range(k.select(self.size.value > 0, steps, 0)):
                    with self._some():
                        yield self.pop()


def sort_row(area: Area, words: Words, x: Elements, n: ir.Value, put: Put) -> None:
    """Sorts the n elements of a row, which are split first from where they are; `put` as of `sort_segment`."""
    k, whole = area.k, _whole(area.k, words, area.k.const(0, i64), n)
    stack = Stack(k, words)
    is_split = _is_split(area, n)
    with k.when(is_split ^ k.const(True, boolean)):
        for c in k.lanes(n):
            area.keys[area.row, c] = words.word(k, x.x[x.row, c], c)
        stack.push(whole)
    with k.when(is_split):
        _split_segment(area, stack, whole, x)
    _sort(area, words, stack, n, put)


def sort_segment(area: Area, words: Words, at: ir.Value, n: ir.Value, put: Put) -> None:
    """Sorts n words; calls put(place, vector, rest) with each vector of the result, of which the first `rest` words are of it."""
    stack = Stack(area.k, words)
    stack.push(_whole(area.k, words, at, n))
    _sort(area, words, stack, n, put)


def _whole(k: Tracer, words: Words, at: ir.Value, n: ir.Value) -> Segment:
    low, high = (k.const(bound, words.dtype) for bound in (words.least, words.greatest))
    return Segment(at, n, k.const(0, i64), low, high)


def _sort(area: Area, words: Words, stack: Stack, n: ir.Value, put: Put) -> None:
    """Sorts the segments of a stack, of n words."""
    k, most = area.k, LEAVES[0] * area.width
    outer, inner = (k.select(n > most, k.const(rounds, i64), 1) for rounds in _ROUNDS)
    for segment in stack.each((outer, inner), (n >> (most.bit_length() - 2)) * 2 + 4):
        k.barrier()  # a lane reads what others wrote
        differ = segment.low < segment.high
        is_split = _is_split(area, segment.n)
        with k.when((is_split ^ k.const(True, boolean)) & differ):
            _sort_leaf(area, words, segment, put)
        with k.when(is_split & differ):
            _split_segment(area, stack, segment)
        with k.when(segment.low >= segment.high):
            for place in k.range((segment.n + (area.width - 1)) // area.width):
                put(segment.at + place * area.width, segment.low, segment.n - place * area.width)


def _is_split(area: Area, n: ir.Value) -> ir.Value:
    """Whether n words are split: more than a leaf has, but for what two leaves take."""
    most = LEAVES[0] * area.width
    return ((n > most) & (n <= MERGED * area.width)) | (n > 2 * most)


def _loaded(area: Area, words: Words, segment: Segment, start: Number, rows: int, full: int) -> list[ir.Value]:
    """Loads vectors of a segment from word `start` on, of which the first `full` are whole. Words past the segment count as the
    greatest."""
    k, found = area.k, []
    for row in range(rows):
        before = row * area.width + start
        if row < full:
            found.append(area.keys[area.row, segment.at + before + k.lane()])
            continue
        word = k.var(words.greatest, words.dtype)
        with k.when(k.lane().to(i32) < (segment.n - before).to(i32)):
            word.set(area.keys[area.row, segment.at + before + k.lane()])
        found.append(word.value)
    return found


def _sort_leaf(area: Area, words: Words, segment: Segment, put: Put) -> None:
    """Sorts what registers hold, or twice as much: two leaves in columns, then both halves."""
    k, width, (rows, few) = area.k, area.width, LEAVES
    size = rows * width
    with k.when(segment.n <= few * width):
        loaded = _loaded(area, words, segment, 0, few, 0)
        k.barrier()  # lanes have read words that are overwritten now
        for row, word in enumerate(Leaf(k, few, width).sorted(loaded)):
            put(segment.at + row * width, word, segment.n - row * width)
    leaf, kept = Leaf(k, rows, width), k.scratch(words.dtype, 2 * rows, width)

    def put_all(first: Number, found: list[ir.Value]) -> None:
        for row, word in enumerate(found):
            start = row * width + first
            put(segment.at + start, word, segment.n - start)

    # one loop for one leaf and two: twice the code takes 0.4 s more to compile
    for half in k.range(
        k.select(segment.n > size, k.const(2, i64), k.select(segment.n > few * width, k.const(1, i64), 0))
    ):
        for row, word in enumerate(leaf.in_columns(_loaded(area, words, segment, half * size, rows, few))):
            kept[half * rows + row, k.lane()] = word
    k.barrier()
    with k.when((segment.n > few * width) & (segment.n <= size)):
        put_all(0, leaf.transposed([kept[row, k.lane()] for row in range(rows)]))
    with k.when(segment.n > size):
        for row in range(rows // 2):
            ends = row, rows - 1 - row
            low, high = leaf.halved(*([kept[at + half, k.lane()] for at in ends] for half in (0, rows)))
            for at, one, two in zip(ends, low, high, strict=True):
                kept[at, k.lane()] = one
                kept[rows + at, k.lane()] = two
        k.barrier()
        for half in k.range(2):
            put_all(half * size, leaf.merged([kept[half * rows + row, k.lane()] for row in range(rows)]))


def split_elements(area: Area, x: Elements, at: ir.Value, n: ir.Value, pivot: ir.Value) -> ir.Value:
    """Splits n elements into the area from `at` on; returns how many words are below the pivot."""
    ends = Ends(area, at, n, pivot)
    ends.take_all(x.load, n)
    return ends.front.value - at


def _split_segment(area: Area, stack: Stack, segment: Segment, x: Elements | None = None) -> None:
    """Splits a segment, or, with `x`, the elements that it is to have."""
    k, low, high = area.k, segment.low, segment.high

    def by_lane(place: ir.Value) -> ir.Value:
        return area.keys[area.row, segment.at + place + k.lane()]

    pivot = k.var(near_median(k, x.by_lane if x else by_lane, segment.n, area.width), low.dtype)
    with k.when(segment.bad > 0):
        pivot.set((low & high) + ((low ^ high) >> 1))
    pivot.set(k.select(pivot.value == low, low + 1, pivot.value))
    k.barrier()  # lanes have read words that are moved now
    if x is None:
        n = area.split(segment.at, segment.n, pivot.value)
    else:
        n = split_elements(area, x, segment.at, segment.n, pivot.value)
    rest, limit = segment.n - n, segment.n - (segment.n >> 3)
    parts = (
        Segment(segment.at, n, (n > limit).to(i64), low, pivot.value - 1),
        Segment(segment.at + n, rest, (rest > limit).to(i64), pivot.value, high),
    )
    first_is_less = n < rest

    def chosen(name: str, first: bool) -> ir.Value:
        a, b = (getattr(part, name) for part in (parts if first else parts[::-1]))
        return k.select(first_is_less, b, a)

    for first in (True, False):
        stack.push(Segment(**{name: chosen(name, first) for name in Segment.__dataclass_fields__}))
