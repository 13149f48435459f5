"""Kernels that sort a long row: blocks of runs, each sorted by a network with a run per lane, then merges of two runs.

Runs are merged a vector at a time: the carried vector and the next one, from the run whose next element is less, are a bitonic
sequence of 2 vectors once one is reversed; its lesser half is stored, its greater carried on. A program merges STREAMS parts of
two runs' result at once, so that their operations overlap; where in the runs a part begins is found by halving. After every run
are as many of the greatest word as a vector has lanes, so that a vector may be read at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from camshaft.dtypes import i64
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.lang.tracing.tracer import Variable
from camshaft.ops.sort.keys import keys_of
from camshaft.ops.sort.lanes import transpose
from camshaft.ops.sort.network import BLOCK, Network, Words

# Parts that a program merges at once.
STREAMS = 1
Put = Callable[[ir.Value, ir.Value], None]


@dataclass(frozen=True)
class Runs:
    """Two neighbouring runs of `keys[row, half]`: the first elements, and the ends, where the greatest words begin."""

    k: Tracer
    keys: Array
    row: ir.Value
    half: ir.Operand
    width: int
    part: int
    starts: tuple[ir.Value, ir.Value]
    ends: tuple[ir.Value, ir.Value]

    def _at(self, place: ir.Value) -> ir.Value:
        return self.keys[self.row, self.half, place]

    def _vector(self, place: ir.Value) -> ir.Value:
        return self.keys[self.row, self.half, place + self.k.lane()]

    def _split(self, place: ir.Value, steps: ir.Operand) -> tuple[Variable, Variable]:
        """The places in both runs that the result's element `place` begins at."""
        k, (a, b) = self.k, self.starts
        low = k.var(k.maximum(place - (self.ends[1] - b), 0), i64)
        high = k.var(k.minimum(place, self.ends[0] - a), i64)
        for _ in k.range(steps):
            middle = (low.value + high.value) >> 1
            is_first = self._at(a + middle) <= self._at(b + place - 1 - middle)
            searching = low.value < high.value
            low.set(k.select(searching & is_first, middle + 1, low.value))
            high.set(k.select(is_first, high.value, k.minimum(middle, high.value)))
        return k.var(a + low.value, i64), k.var(b + place - low.value, i64)

    def _ordered(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The lesser and the greater half of two sorted vectors, each sorted.

        The pairs at distances of half a vector, a quarter and so on are ordered. Each step brings those of both vectors into
        the same lanes of two, so that in the end the even ranks are in one vector and the odd ones in the other.
        """
        k, lane, width = self.k, self.k.lane(), self.width
        b = k.shuffle(b, (width - 1) - lane)
        low, high = k.minimum(a, b), k.maximum(a, b)
        distance = width >> 1
        while distance:
            clear, other = (lane & distance) < 1, lane ^ distance
            first = k.select(clear, low, k.shuffle(high, other))
            second = k.select(clear, k.shuffle(low, other), high)
            low, high = k.minimum(first, second), k.maximum(first, second)
            distance >>= 1
        even = (lane & 1) < 1
        halves = [
            k.select(even, k.shuffle(low, at + (lane >> 1)), k.shuffle(high, at + (lane >> 1)))
            for at in (0, width // 2)
        ]
        return halves[0], halves[1]

    def merge(self, first: ir.Value, steps: ir.Operand, put: Put) -> None:
        """Calls put(place, vector) for STREAMS parts of the result from `first` on."""
        k, width = self.k, self.width
        firsts = [first + i * self.part for i in range(STREAMS)]
        nexts = [self._split(place, steps) for place in firsts]
        carried = []
        for place, (a, b) in zip(firsts, nexts, strict=True):
            low, high = self._ordered(self._vector(a.value), self._vector(b.value))
            put(place, low)
            carried.append(k.var(high, high.dtype))
            for at, end in zip((a, b), self.ends, strict=True):
                at.set(k.minimum(at.value + width, end))
        for i in k.range(1, self.part // width):
            for place, (a, b), greater in zip(firsts, nexts, carried, strict=True):
                is_first = self._at(a.value) <= self._at(b.value)
                low, high = self._ordered(greater.value, self._vector(k.select(is_first, a.value, b.value)))
                put(place + i * width, low)
                greater.set(high)
                further = k.minimum(a.value + width, self.ends[0])
                b.set(k.select(is_first, b.value, k.minimum(b.value + width, self.ends[1])))
                a.set(k.select(is_first, further, a.value))


def _merged(
    k: Tracer, keys: Array, row: ir.Value, half: ir.Operand, width: int, part: int, words: Words, pair: ir.Value,
    first: ir.Value, length: ir.Value, stride: ir.Value, total: ir.Value, steps: ir.Operand,
) -> None:  # fmt: skip
    """Merges the elements from `first` on of the runs 2 pair and 2 pair + 1 of `length` elements every `stride`, of which there
    are `total`, into a run of the other half. The second run may be shorter, or empty."""
    start = pair * 2 * stride
    here = k.minimum(total - pair * 2 * length, 2 * length)
    first_end = start + k.minimum(here, length)
    second = k.select(here > length, start + stride, first_end)
    second_end = second + k.maximum(here - length, 0)
    runs = Runs(k, keys, row, half, width, part, (start, second), (first_end, second_end))

    def put(place: ir.Value, vector: ir.Value) -> None:
        keys[row, 1 - half, start + place + k.lane()] = vector

    with k.when(first < here):
        runs.merge(first, steps, put)
        with k.when(first + STREAMS * part >= here):
            keys[row, 1 - half, start + here + k.lane()] = k.const(words.greatest, words.dtype)


def _sort_tile(
    k: Tracer, x: Array, keys: Array, row: ir.Value, base: ir.Value, to: ir.Value, dim: ir.Value, words: Words, columns: Array,
    length: int, width: int,
) -> None:  # fmt: skip
    """Sorts `width` runs of `length` elements of x[row] from `base` on, those past `dim` the greatest words; a run per lane."""
    greatest = k.const(words.greatest, words.dtype)
    whole = k.minimum(k.maximum(dim - base, 0) // width, length)
    for i in k.range(whole):
        at = base + i * width + k.lane()
        columns[i, k.lane()] = words.word(k, x[row, at], at)
    for i in k.range(whole, length):
        at, word = base + i * width + k.lane(), k.var(greatest, words.dtype)
        with k.when(at < dim):
            word.set(words.word(k, x[row, at], at))
        columns[i, k.lane()] = word.value
    Network(k, columns, k.var(length, i64)).sort((length // BLOCK).bit_length() - 1, 0)
    transpose(k, columns, k.number(length, i64), width)
    stride = length + width
    for i in k.range(width):
        for tile in k.range(length // width):
            keys[row, 0, to + i * stride + tile * width + k.lane()] = columns[tile * width + i, k.lane()]
        keys[row, 0, to + i * stride + length + k.lane()] = greatest


@kernel
def sort_blocks(
    k: Tracer, x: Array, keys: Array, *, dtype: str, descending: bool, gives: str, inner: int, dim: int, length: int, tiles: int,
    width: int, part: int,
) -> None:  # fmt: skip
    # keys[r, half]: sorted blocks of `tiles` times `width` runs of `length` words, half the parity of the levels
    row, block = k.program(0) * inner + k.program(1), k.program(2)
    words = Words(keys_of(dtype, descending, "places" in gives), "places" in gives)
    columns = k.scratch(words.dtype, length, width)
    count, stride = tiles * width, length + width
    begins, block_pairs = block * (count * stride), count >> 1
    for tile in k.range(tiles):
        base = (block * tiles + tile) * (width * length)
        _sort_tile(
            k, x, keys, row, base, begins + tile * (width * stride), k.number(dim, i64), words, columns, length, width
        )
    for level in k.range(count.bit_length() - 1):
        k.barrier()  # a lane reads what others wrote
        run = k.const(length, i64) << level
        for i in k.range(count * length // (STREAMS * part)):
            first = i * (STREAMS * part)
            pair = first >> (level + length.bit_length())
            _merged(
                k, keys, row, level & 1, width, part, words, (k.const(block_pairs, i64) >> level) * block + pair,
                first - pair * 2 * run, run, k.const(stride, i64) << level, (block + 1) * (count * length),
                level + length.bit_length(),
            )  # fmt: skip


@kernel
def merge_runs(
    k: Tracer, keys: Array, *, inner: int, dtype: str, descending: bool, gives: str, width: int, part: int, half: int,
    length: int, stride: int, total: int, steps: int,
) -> None:  # fmt: skip
    # a level of merges: runs of `length` in one half to runs of twice as much in the other
    row, first = k.program(0) * inner + k.program(1), k.program(2) * (STREAMS * part)
    words = Words(keys_of(dtype, descending, "places" in gives), "places" in gives)
    run = k.number(length, i64)
    pair = first // (2 * run)
    _merged(
        k, keys, row, half, width, part, words, pair, first - pair * 2 * run, run, k.number(stride, i64),
        k.number(total, i64), steps,
    )  # fmt: skip


@kernel
def put_sorted(
    k: Tracer, keys: Array, out: Array, *, inner: int, dtype: str, descending: bool, gives: str, half: int,
    dim: int, block: int,
) -> None:  # fmt: skip
    # y[r, i] = the element of the word that i others precede, or its index
    row, first = k.program(0) * inner + k.program(1), k.program(2) * block
    words = Words(keys_of(dtype, descending, "places" in gives), "places" in gives)
    for c in k.lanes(first, k.minimum(first + block, k.number(dim, i64))):
        word = keys[row, half, c]
        out[row, c] = words.index(word).to(out.dtype) if words.indexed else words.bits(k, word)
