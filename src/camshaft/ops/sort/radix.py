"""The kernel of sorts: a program per row sorts keys digit by digit, from the lowest; stable, and the same bits everywhere.

A row is shared by `workers`, each with a contiguous chunk of it: one on a CPU, many on a GPU, where each is a lane. For each
digit they count their elements with each value of it, these counts are summed to the places where each worker's elements of a
value begin, and each worker moves its elements there in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from camshaft.dtypes import i32, i64
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops.sort.keys import Keys, keys_of


@dataclass(frozen=True)
class Digits:
    """How a row is sorted: `passes` over digits of `bits` each, by so many workers."""

    bits: int
    passes: int
    workers: int

    @property
    def counts(self) -> int:
        """Values of a digit, for all workers."""
        return self.workers << self.bits


@dataclass(frozen=True)
class Row:
    """A program's row: its keys, and where its elements were if `places` has an array; each in two halves of `dim`."""

    k: Tracer
    program: ir.Value
    dim: ir.Operand
    keys: Array
    places: tuple[Array, ...]
    counts: Array
    digits: Digits

    def sort(self) -> ir.Value:
        """Sorts by all digits; returns the half that has the result."""
        k, half, shift = self.k, self.k.var(0, i64), self.k.var(0, self.keys.dtype)
        for _ in k.range(self.digits.passes):
            self._count(half.value, shift.value)
            with k.when(self._differ(half.value, shift.value)):
                self._sum_counts()
                self._move(half.value, shift.value)
                half.set(1 - half.value)
            shift.set(shift.value + self.digits.bits)
        return half.value

    def _digit(self, key: ir.Value, shift: ir.Value) -> ir.Value:
        return ((key >> shift) & ((1 << self.digits.bits) - 1)).to(i64) * self.digits.workers

    def _differ(self, half: ir.Value, shift: ir.Value) -> ir.Value:
        """Whether not all digits are equal, as the high ones of small integers are."""
        k, equal = self.k, self.k.accumulator("sum", i32)
        first = self._digit(self.keys[self.program, half, 0], shift)
        for worker in k.lanes(self.digits.workers):
            equal += self.counts[first + worker]
        differ = k.lanes_sum(equal) < k.number(self.dim, i32)
        k.barrier()  # the next pass clears the counts
        return differ

    def _each(self, half: ir.Value, shift: ir.Value, then: Callable[[ir.Value, ir.Value, ir.Value], None]) -> None:
        """Calls `then(index, key, place in counts)` for every element; a worker's in order."""
        k, workers = self.k, self.digits.workers
        per = (self.dim + (workers - 1)) // workers if workers > 1 else self.dim
        for i in k.range(per):
            for worker in k.lanes(workers):
                index = worker * per + i
                with k.when(index < self.dim):
                    key = k.gather(self.keys, self.program, half, index)
                    then(index, key, self._digit(key, shift) + worker)

    def _count(self, half: ir.Value, shift: ir.Value) -> None:
        k = self.k
        for c in k.lanes(self.digits.counts):
            self.counts[c] = 0
        k.barrier()
        self._each(half, shift, lambda _, key, at: k.scatter(self.counts, k.gather(self.counts, at) + 1, at))
        k.barrier()

    def _sum_counts(self) -> None:
        """Replaces each count by the sum of those before it."""
        k, before = self.k, self.k.var(0, i32)
        width = k.lane_count()
        for j in k.range((self.digits.counts + (width - 1)) // width):
            at, count = j * width + k.lane(), k.var(0, i32)
            with k.when(at < self.digits.counts):
                count.set(self.counts[at])
            start = before.value + k.lanes_scan(count.value, exclusive=True)
            with k.when(at < self.digits.counts):
                self.counts[at] = start
            before.set(before.value + k.lanes_sum(count.value))
        k.barrier()

    def _move(self, half: ir.Value, shift: ir.Value) -> None:
        k = self.k

        def move(index: ir.Value, key: ir.Value, at: ir.Value) -> None:
            to = k.gather(self.counts, at)
            k.scatter(self.counts, to + 1, at)
            k.scatter(self.keys, key, self.program, 1 - half, to.to(i64))
            for array in self.places:
                k.scatter(array, k.gather(array, self.program, half, index), self.program, 1 - half, to.to(i64))

        self._each(half, shift, move)
        k.barrier()


def _sorted_row(
    k: Tracer, x: Array, keys: Array, places: tuple[Array, ...], made: Keys, inner: int, dim: int, columns: int,
    bits: int, passes: int, workers: int,
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:  # fmt: skip
    """Sorts the program's row; returns its program, row, column, and the half that has the result."""
    row, column = k.program(0) * inner + k.program(1), k.program(2)
    program = row * columns + column
    for c in k.lanes(dim):
        keys[program, 0, c] = made.key(k, x[row, c] if columns == 1 else k.gather(x, row, c, column))
        for array in places:
            array[program, 0, c] = c.to(i32)
    k.barrier()
    digits = Digits(bits, passes, workers)
    counts = k.scratch(i32, digits.counts)
    return program, row, column, Row(k, program, dim, keys, places, counts, digits).sort()


def _put(k: Tracer, out: Array, row: ir.Value, c: ir.Value, column: ir.Value, columns: int, value: ir.Value) -> None:
    """out[row, c, column] = value; a row of one column has two axes, so that a run-time size is not a stride."""
    if columns == 1:
        out[row, c] = value
    else:
        k.scatter(out, value, row, c, column)


@kernel
def sort_values(
    k: Tracer, x: Array, keys: Array, out: Array, *, dtype: str, descending: bool, inner: int, dim: int, columns: int,
    bits: int, passes: int, workers: int,
) -> None:  # fmt: skip
    # out[r, i, c] = the element of x[r, :, c] that i others precede
    made = keys_of(dtype, descending, False)
    program, row, column, half = _sorted_row(k, x, keys, (), made, inner, dim, columns, bits, passes, workers)
    for c in k.lanes(dim):
        _put(k, out, row, c, column, columns, made.bits(k, keys[program, half, c]))


@kernel
def sort_places(
    k: Tracer, x: Array, keys: Array, places: Array, *results: Array, dtype: str, descending: bool, inner: int, dim: int,
    columns: int, bits: int, passes: int, workers: int, count: int, outputs: int,
) -> None:  # fmt: skip
    # the last output: [r, i, c] = the index in x[r, :, c] of the element that i others precede, i < count; the first of two: it
    outs = results[:outputs]  # run-time extents follow them
    made = keys_of(dtype, descending, True)
    program, row, column, half = _sorted_row(k, x, keys, (places,), made, inner, dim, columns, bits, passes, workers)
    for c in k.lanes(count):
        place = places[program, half, c]
        _put(k, outs[-1], row, c, column, columns, place.to(outs[-1].dtype))
        if len(outs) == 2:
            source = (row, place.to(i64)) if columns == 1 else (row, place.to(i64), column)
            _put(k, outs[0], row, c, column, columns, k.gather(x, *source))
