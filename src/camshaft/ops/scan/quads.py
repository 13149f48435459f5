"""Sums along a row of floats on CPUs: in f32 within a group of elements, in f64 from group to group.

The running sums of every EACH neighbours come first, then those of their totals, by steps that add the sum of a half to the half
after it. The sum of all groups before, rounded to f32, is added to the totals' sums, and they to the neighbours'.

A result differs from the exact sum by at most 2^-24 times (6 times the sum of the elements' magnitudes + 3 times the greatest
running sum in its group): six roundings from an element to the total of 64, three from there on. NumPy rounds once an element.

Sums of large elements may overflow within a group where the running sum does not. So where squares of a part's elements overflow,
or an element is NaN, its sums are made once more, one after the other in f64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from camshaft.dtypes import boolean, f32, f64, i32
from camshaft.lang import Array, Tracer, ir
from camshaft.lang.tracing.tracer import Variable

# Neighbours whose sums come first.
EACH = 4
_GREATEST = 3.4028234663852886e38


@dataclass(frozen=True)
class QuadScan:
    """Sums row `row` of x into `out` from a carry in f64. `lanes`: the elements of a group. Other fields as of RowScan."""

    k: Tracer
    x: Array
    out: Array
    row: ir.Value
    carry: Variable
    reverse: bool
    lanes: int
    streams: bool = False

    @property
    def group(self) -> int:
        """Elements of a group."""
        return self.lanes

    @property
    def folds(self) -> int:
        """Totals of a group that the steps combine."""
        return self.group // EACH

    def part(self, first: ir.Operand, stop: ir.Operand, total: Variable | None = None) -> None:
        """Sums the columns from `first` to `stop`; adds their sum to `total`."""
        self._sum(first, stop, (self.carry,) if total is None else (self.carry, total), writes=True)

    def total(self, first: ir.Value, stop: ir.Value) -> ir.Value:
        """The sum of the columns from `first` to `stop`, as `part` adds it to a total of 0."""
        total = self.k.var(0.0, f64)
        self._sum(first, stop, (total,), writes=False)
        return total.value

    def _sum(self, first: ir.Operand, stop: ir.Operand, sums: tuple[Variable, ...], writes: bool) -> None:
        """Adds the columns to each sum; the results count from the first of these."""
        k = self.k
        before = [each.value for each in sums]
        squares = k.var(k.lane().to(f32) * 0.0)
        for at, end in self._groups(first, stop):
            x = self._loaded(at, end)
            squares.set(k.fma(x, x, squares.value))
            near, folds = self._prefixes(x)
            carry = sums[0].value.to(f32)
            last = k.broadcast(folds, 0 if self.reverse else self.folds - 1).to(f64)
            for each in sums:
                each.set(each.value + last)
            if writes:
                self.store(at, end, near + self._before(k.rounded(folds + carry), carry, k.lane() // EACH))
        with k.when((k.lanes_sum(squares) <= _GREATEST) ^ k.const(1, boolean)):
            for each, value in zip(sums, before, strict=True):
                each.set(value)
            self._in_order(first, stop, sums, writes)

    def _in_order(self, first: ir.Operand, stop: ir.Operand, sums: tuple[Variable, ...], writes: bool) -> None:
        k = self.k
        for j in k.range(first, stop):
            c = (stop - 1) - (j - first) if self.reverse else j
            for each in sums:
                each.set(each.value + self.x[self.row, c].to(f64))
            if writes:
                # one NaN: the sign of a sum of two depends on the order of operands
                value = sums[0].value.to(f32)
                self.out[self.row, c] = k.select(k.isnan(value), float("nan"), value)

    def _groups(self, first: ir.Operand, stop: ir.Operand) -> Iterator[tuple[ir.Value, ir.Operand | None]]:
        """The first column of each group in the order of the scan, and None, or `stop` where it ends within the group."""
        k = self.k
        whole = (stop - first) // self.group
        rest = first + whole * self.group
        for ends in (True, False) if self.reverse else (False, True):
            if ends:
                for at in k.range(rest, stop, self.group):
                    yield at, stop
                continue
            for j in k.range(whole):
                yield first + ((whole - 1 - j) if self.reverse else j) * self.group, None

    def _has(self, at: ir.Value, stop: ir.Operand) -> ir.Value:
        """Whether a lane's column is before `stop`; i32 takes half the registers of i64."""
        return self.k.lane().to(i32) < (stop - at).to(i32)

    def _loaded(self, at: ir.Value, stop: ir.Operand | None) -> ir.Value:
        column = at + self.k.lane()
        if stop is None:
            return self.x[self.row, column]
        value = self.k.var(0.0)
        with self.k.when(self._has(at, stop)):
            value.set(self.x[self.row, column])
        return value.value

    def store(self, at: ir.Value, stop: ir.Operand | None, value: ir.Value) -> None:
        column = at + self.k.lane()
        if stop is None:
            self.k.store(self.out, (self.row, column), value, streamed=self.streams)
            return
        with self.k.when(self._has(at, stop)):
            self.out[self.row, column] = value

    def _prefixes(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The running sums of EACH neighbours, and those of their totals: that of fold i in lanes i, i + self.folds and so on."""
        k, lane = self.k, self.k.lane()
        near = self._steps(x, EACH)
        totals = k.shuffle(near, lane % self.folds * EACH + (0 if self.reverse else EACH - 1))
        return near, self._steps(k.rounded(totals), self.folds)

    def _steps(self, value: ir.Value, size: int, done: int = 1) -> ir.Value:
        """The running sums of every `size` neighbours, of those of every `done`."""
        k, number = self.k, self._number()
        for step in (1 << i for i in range(done.bit_length() - 1, size.bit_length() - 1)):
            half = number // step
            has, last = ((half & 1) < 1, half * step + step) if self.reverse else ((half & 1) > 0, half * step - 1)
            near = k.shuffle(value, self._place(k.select(has, last, number)))
            # not merged with the next step's shuffle, which would take several moves for each
            value = self._step(has, near, value)
        return value

    def _step(self, has: ir.Value, near: ir.Value, value: ir.Value) -> ir.Value:
        return self.k.rounded(self.k.select(has, near, 0.0) + value)

    def _place(self, number: ir.Value) -> ir.Value:
        """The lane of a value, by its number in the order of a row."""
        return number

    def _number(self) -> ir.Value:
        """The number of the value in each lane."""
        return self.k.lane()

    def _before(self, folds: ir.Value, start: ir.Operand, at: ir.Value) -> ir.Value:
        """The running sum up to the fold before fold `at` of each lane; `start` for the first fold."""
        k = self.k
        has = at < self.folds - 1 if self.reverse else at >= 1
        other = k.select(has, at + (1 if self.reverse else -1), 0)
        return k.select(has, k.shuffle(folds, self._place(other)), start)


def width_for(dim: int, lanes: int) -> int:
    """Elements of a group: as many as EACH registers of `lanes` f32 have, or as few as hold a short row of `dim`."""
    return min(max(1 << (dim - 1).bit_length(), 2 * EACH), EACH * lanes)
