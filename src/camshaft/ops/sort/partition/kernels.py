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
    k: Tracer, x: Array, bounds: Array, keys: Array, pieces: Array, places: Array, counts: Array, *, dtype: str,
    descending: bool, gives: str, inner: int, dim: int, chunk: int, chunks: int, levels: int, buckets: int, programs: int,
    slot: int, width: int,
) -> None:  # fmt: skip
    # pieces[r, places[r, c, b] + i], i < counts[r, c, b]: the words of chunk c in bucket b
    row, program = k.program(0) * inner + k.program(1), k.program(2)
    words, area, own = _words(dtype, descending, gives), Area(k, keys, row, width), program * (2 * slot)
    at, beside, number = (k.scratch(i64, 2 * MOST_BUCKETS) for _ in range(3))
    for turn in k.range((chunks - program + (programs - 1)) // programs):
        c = program + turn * programs
        first = c * chunk
        at[1], beside[1], number[1] = own, own + slot, k.minimum(k.number(dim, i64) - first, chunk)
        for i in k.lanes(number[1]):
            keys[row, own + i] = words.word(k, x[row, first + i], first + i)
        k.barrier()
        for level in k.range(levels):
            for j in k.range(k.const(1, i64) << level):
                node = (k.const(1, i64) << level) + j
                pivot = bounds[row, (2 * j + 1) << (k.number(levels, i64) - 1 - level)]
                below = area.split(at[node], beside[node], number[node], pivot)
                rest = number[node] - below
                at[2 * node], beside[2 * node], number[2 * node] = at[node], beside[node] + rest, below
                at[2 * node + 1], beside[2 * node + 1], number[2 * node + 1] = beside[node], at[node] + below, rest
            k.barrier()
        to = k.var(first, i64)
        for b in k.range(buckets):
            source, n = at[buckets + b], number[buckets + b]
            places[row, c, b], counts[row, c, b] = to.value, n.to(i32)
            for i in k.lanes(n):
                pieces[row, to.value + i] = keys[row, source + i]
            to.set(to.value + n)
        k.barrier()


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


def _sort(
    k: Tracer, words: Words, keys: Array, out: Array, row: ir.Value, at: ir.Value, n: ir.Value, room: ir.Operand,
    to: ir.Value, width: int,
) -> None:  # fmt: skip
    """Sorts n words of keys[row] from `at` on, with room from at + room on, into out[row] from `to` on."""

    def put(place: ir.Value, word: ir.Value, rest: ir.Value) -> None:
        value = words.index(word).to(out.dtype) if words.indexed else words.bits(k, word)
        if rest.op == "const":
            out[row, to + place + k.lane()] = value
        else:
            with k.when(k.lane() < rest):
                out[row, to + place + k.lane()] = value

    sort_segment(Area(k, keys, row, width), words, at, at + room, n, put)


@kernel
def sort_buckets(
    k: Tracer, pieces: Array, places: Array, counts: Array, starts: Array, keys: Array, out: Array, *, dtype: str,
    descending: bool, gives: str, inner: int, chunks: int, buckets: int, programs: int, slot: int, room: int, width: int,
) -> None:  # fmt: skip
    # y[r, starts[r, b] + i]: the element of the word of bucket b that i others of it precede, or its index
    row, program, pad = k.program(0) * inner + k.program(1), k.program(2), LEAVES[0] * width
    words = _words(dtype, descending, gives)
    for turn in k.range((buckets - program + (programs - 1)) // programs):
        b = program + turn * programs
        to = starts[row, b]
        n = starts[row, b + 1] - to
        fits = n <= slot - pad
        first = k.select(fits, program * (2 * slot), to + b * pad + programs * (2 * slot))
        end = k.var(first, i64)
        for c in k.range(chunks):
            at, number = places[row, c, b], counts[row, c, b].to(i64)
            for i in k.lanes(number):
                keys[row, end.value + i] = pieces[row, at + i]
            end.set(end.value + number)
        k.barrier()
        _sort(k, words, keys, out, row, first, n, k.select(fits, k.number(slot, i64), room), to, width)


@kernel
def sort_row(
    k: Tracer, x: Array, keys: Array, out: Array, *, dtype: str, descending: bool, gives: str, inner: int, dim: int, room: int,
    width: int,
) -> None:  # fmt: skip
    # y[r, i] = the element that i others precede, or its index
    row, words, zero = k.program(0) * inner + k.program(1), _words(dtype, descending, gives), k.const(0, i64)
    for c in k.lanes(dim):
        keys[row, c] = words.word(k, x[row, c], c)
    k.barrier()
    _sort(k, words, keys, out, row, zero, k.number(dim, i64), room, zero, width)
