"""Kernels that sort a long row: chunks of it are split at common words into pieces, whose buckets are sorted by a program each.

The common words are every so many of a sorted sample. A chunk is split at the middle one, its parts at the middle ones of theirs
and so on, so that its pieces lie in the order of buckets.
"""

from __future__ import annotations

from camshaft.dtypes import i32, i64
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops.sort.keys import keys_of
from camshaft.ops.sort.network import Words
from camshaft.ops.sort.partition.segments import Put, sort_row, sort_segment, split_elements
from camshaft.ops.sort.partition.splits import Area, Elements

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
    words = _words(dtype, descending, gives)
    area, first = Area(k, pieces, row, width, words.dtype), c * chunk
    at, number = (k.scratch(i64, 2 * MOST_BUCKETS) for _ in range(2))
    at[1], number[1] = first, k.minimum(k.number(dim, i64) - first, chunk)
    for level in k.range(levels):
        for j in k.range(k.const(1, i64) << level):
            node = (k.const(1, i64) << level) + j
            pivot, below = bounds[row, (2 * j + 1) << (k.number(levels, i64) - 1 - level)], k.var(0, i64)
            with k.when(level < 1):
                below.set(split_elements(area, Elements(k, words, x, row, first, width), first, number[node], pivot))
            with k.when(level > 0):
                below.set(area.split(at[node], number[node], pivot))
            at[2 * node], number[2 * node] = at[node], below.value
            at[2 * node + 1], number[2 * node + 1] = at[node] + below.value, number[node] - below.value
        k.barrier()
    for b in k.range(buckets):
        places[row, c, b], counts[row, c, b] = at[buckets + b], number[buckets + b].to(i32)


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


def _put(k: Tracer, words: Words, out: Array, row: ir.Value) -> Put:
    """Puts vectors of sorted words into out[row]: as they are indexes, or the elements' bits."""

    def put(place: ir.Value, word: ir.Value, rest: ir.Value) -> None:
        value = words.index(word).to(out.dtype) if words.indexed else k.bitcast(words.bits(k, word), word.dtype)
        value = value if value.dtype == ir.arithmetic_dtype(out.dtype) else value.to(ir.arithmetic_dtype(out.dtype))
        if rest.op == "const":
            out[row, place + k.lane()] = value
        else:
            with k.when(k.lane().to(i32) < rest.to(i32)):
                out[row, place + k.lane()] = value

    return put


@kernel
def sort_buckets(
    k: Tracer, pieces: Array, places: Array, counts: Array, starts: Array, keys: Array, *out: Array, dtype: str,
    descending: bool, gives: str, inner: int, chunks: int, width: int, in_keys: bool,
) -> None:  # fmt: skip
    # y[r, starts[r, b] + i]: the element of the word of bucket b that i others of it precede, or its index; y is the keys
    # themselves if `in_keys`
    row, b, words = k.program(0) * inner + k.program(1), k.program(2), _words(dtype, descending, gives)
    first = starts[row, b]
    area, end = Area(k, keys, row, width, words.dtype), k.var(first, i64)
    pieces_of_row = Area(k, pieces, row, width, words.dtype)
    for c in k.range(chunks):
        number = counts[row, c, b].to(i64)
        area.copy(end.value, pieces_of_row, places[row, c, b], number)
        end.set(end.value + number)
    sort_segment(area, words, first, end.value - first, _put(k, words, keys if in_keys else out[0], row))


@kernel
def sort_rows(
    k: Tracer, x: Array, keys: Array, *out: Array, dtype: str, descending: bool, gives: str, inner: int, dim: int, width: int,
    in_keys: bool,
) -> None:  # fmt: skip
    # y[r, i] = the element that i others precede, or its index; y is the keys themselves if `in_keys`
    row, words, zero = k.program(0) * inner + k.program(1), _words(dtype, descending, gives), k.const(0, i64)
    area = Area(k, keys, row, width, words.dtype)
    x_of_row = Elements(k, words, x, row, zero, width)
    sort_row(area, words, x_of_row, k.number(dim, i64), _put(k, words, keys if in_keys else out[0], row))
