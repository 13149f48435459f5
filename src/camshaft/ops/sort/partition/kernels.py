"""Kernels that sort a long row: chunks of it are split at common words into pieces, whose buckets are sorted by a program each.

The common words are every so many of a sorted sample. A chunk is split at the middle one, its parts at the middle ones of theirs
and so on, so that its pieces lie in the order of buckets.
"""

from __future__ import annotations

from camshaft.dtypes import i32, i64
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops.sort.keys import keys_of
from camshaft.ops.sort.network import Words
from camshaft.ops.sort.partition.segments import LEAVES, Area, sort_segment

# Words of the sample for each bucket, and the most buckets.
SAMPLED, MOST_BUCKETS = 16, 512


def _words(dtype: str, descending: bool, gives: str) -> Words:
    return Words(keys_of(dtype, descending, "places" in gives), "places" in gives)


@kernel
def sample_row(
    k: Tracer, x: Array, bounds: Array, *, dtype: str, descending: bool, gives: str, inner: int, dim: int, buckets: int
) -> None:
    # bounds[r, b]: the least word of bucket b, for b > 0
    row, words, width = k.program(0) * inner + k.program(1), _words(dtype, descending, gives), k.lane_count()
    drawn = k.scratch(words.dtype, SAMPLED * MOST_BUCKETS)
    n = k.number(buckets, i64) * SAMPLED
    for i in k.range(n):
        at = (i * dim + ((i * 40503) & 0xFFFF) * dim // 65536) // n  # somewhere in each n-th of the row
        drawn[i] = words.word(k, x[row, at], at)
    for block in k.range((n + (width - 1)) // width):
        own, before = block * width + k.lane(), k.var(0, i32)
        mine = k.var(0, words.dtype)
        with k.when(own < n):
            mine.set(drawn[own])
        for i in k.range(n):
            other = drawn[i]
            before.set(before.value + ((other < mine.value) | ((other == mine.value) & (i < own))).to(i32))
        with k.when((own < n) & ((before.value & (SAMPLED - 1)) < 1)):
            k.scatter(bounds, mine.value, row, (before.value >> (SAMPLED.bit_length() - 1)).to(i64))


@kernel
def split_chunks(
    k: Tracer, x: Array, bounds: Array, pieces: Array, places: Array, counts: Array, *, dtype: str, descending: bool,
    gives: str, inner: int, dim: int, chunk: int, levels: int, buckets: int, width: int,
) -> None:  # fmt: skip
    # pieces[r, places[r, c, b] + i], i < counts[r, c, b]: the words of chunk c in bucket b
    row, c = k.program(0) * inner + k.program(1), k.program(2)
    words, first = _words(dtype, descending, gives), c * chunk
    n = k.minimum(k.number(dim, i64) - first, chunk)
    for i in k.lanes(first, first + n):
        pieces[row, i] = words.word(k, x[row, i], i)
    k.barrier()
    area = Area(k, pieces, row, width)
    at, beside, number = (k.scratch(i64, 2 * MOST_BUCKETS) for _ in range(3))
    at[1], beside[1], number[1] = first, first + dim, n
    for level in k.range(levels):
        for j in k.range(k.const(1, i64) << level):
            node = (k.const(1, i64) << level) + j
            pivot = bounds[row, (2 * j + 1) << (k.number(levels, i64) - 1 - level)]
            below = area.split(at[node], beside[node], number[node], pivot)
            rest = number[node] - below
            at[2 * node], beside[2 * node], number[2 * node] = at[node], beside[node] + rest, below
            at[2 * node + 1], beside[2 * node + 1], number[2 * node + 1] = beside[node], at[node] + below, rest
        k.barrier()
    for b in k.lanes(buckets):
        places[row, c, b] = at[buckets + b]
        counts[row, c, b] = number[buckets + b].to(i32)


@kernel
def start_buckets(k: Tracer, counts: Array, starts: Array, *, inner: int, chunks: int, buckets: int) -> None:
    # starts[r, b]: the number of words in the buckets before b
    row = k.program(0) * inner + k.program(1)
    total = k.var(0, i64)
    for b in k.range(buckets):
        starts[row, b] = total.value
        for c in k.range(chunks):
            total.set(total.value + counts[row, c, b].to(i64))
    starts[row, k.number(buckets, i64)] = total.value


def _sort(k: Tracer, words: Words, keys: Array, out: Array, row: ir.Value, at: ir.Value, n: ir.Value, dim: ir.Operand, width: int) -> None:
    """Sorts n words of keys[row] from `at` on, with room from dim + at on, into out[row] from `at` on."""
    box = k.scratch(words.dtype, LEAVES[0] * width)

    def put(to: ir.Value, count: ir.Value) -> None:
        for c in k.lanes(count):
            word = box[c]
            out[row, at + to + c] = words.index(word).to(out.dtype) if words.indexed else words.bits(k, word)

    sort_segment(Area(k, keys, row, width), words, box, at, at + dim, n, put)


@kernel
def sort_buckets(
    k: Tracer, pieces: Array, places: Array, counts: Array, starts: Array, keys: Array, out: Array, *, dtype: str,
    descending: bool, gives: str, inner: int, dim: int, chunks: int, width: int,
) -> None:  # fmt: skip
    # y[r, starts[r, b] + i]: the element of the word of bucket b that i others of it precede, or its index
    row, b = k.program(0) * inner + k.program(1), k.program(2)
    first = starts[row, b]
    to = k.var(first, i64)
    for c in k.range(chunks):
        at, n = places[row, c, b], counts[row, c, b].to(i64)
        for i in k.lanes(n):
            keys[row, to.value + i] = pieces[row, at + i]
        to.set(to.value + n)
    _sort(k, _words(dtype, descending, gives), keys, out, row, first, to.value - first, dim, width)


@kernel
def sort_row(
    k: Tracer, x: Array, keys: Array, out: Array, *, dtype: str, descending: bool, gives: str, inner: int, dim: int, width: int
) -> None:  # fmt: skip
    # y[r, i] = the element that i others precede, or its index
    row, words = k.program(0) * inner + k.program(1), _words(dtype, descending, gives)
    for c in k.lanes(dim):
        keys[row, c] = words.word(k, x[row, c], c)
    _sort(k, words, keys, out, row, k.const(0, i64), k.number(dim, i64), dim, width)
