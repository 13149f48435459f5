"""Sums along a row of floats, as quads.py makes them, with fewer moves between blocks of 128 bits.

A group is EACH registers. Their blocks of four lanes are transposed, by shuffles within 128 bits: register i then has element i
of every four neighbours, so that four additions make all neighbours' sums, and the totals are in one register. The steps over
these follow; the sum before each four is added to EACH registers, which are transposed back. Loads, steps and results of three
groups are interleaved: the steps alone take 35 cycles, one after the other.

The error is that of quads.py: two roundings to a total of four, four in the steps, three from there on. Sums within a group may
overflow where the running sum does not. So where a result of a part is not finite, its results are made once more, one after the
other in f64, and where its sum is not, that too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from camshaft.dtypes import boolean, f32, f64, i64
from camshaft.lang import ir
from camshaft.lang.tracing.tracer import Variable
from camshaft.ops.scan.quads import EACH, QuadScan


class _Put(Protocol):
    """`_put` of a group at a column that ends before `stop`."""

    def __call__(self, at: ir.Value, stop: ir.Operand | None, near: Sequence[ir.Value], folds: ir.Value) -> None: ...


@dataclass(frozen=True)
class TransposedScan(QuadScan):
    """As a QuadScan. `lanes`: those of a register."""

    @property
    def group(self) -> int:
        return EACH * self.lanes

    def part(self, first: ir.Operand, stop: ir.Operand, total: Variable | None = None) -> None:
        k, start = self.k, self.carry.value
        sums, finite = (self.carry,) if total is None else (self.carry, total), k.var(self._zero())
        put, whole = partial(self._put, sums, finite), k.number((stop - first) // self.group, i64)
        for ends in (True, False) if self.reverse else (False, True):
            if not ends:
                with k.when(whole >= 1):
                    self._three_at_once(first, whole, put)
                continue
            for at in k.range(first + whole * self.group, stop, self.group):
                near = self._near(at, stop)
                put(at, stop, near, self._totals(near))
        self._again(k.lanes_sum(finite) + _zero_of(self.carry), first, stop, self.carry, start, writes=True)
        if total is not None:
            self._again(_zero_of(total), first, stop, total, k.const(0.0, f64), writes=False)

    def total(self, first: ir.Value, stop: ir.Value) -> ir.Value:
        total = self.k.var(0.0, f64)
        for at, end in self._groups(first, stop):
            total.set(total.value + self._last(self._totals(self._near(at, end))))
        self._again(_zero_of(total), first, stop, total, self.k.const(0.0, f64), writes=False)
        return total.value

    def _three_at_once(self, first: ir.Operand, whole: ir.Value, put: _Put) -> None:
        """`whole` groups, one or more: the results of one, the steps of the next and the neighbours of that after it."""
        k, size = self.k, self.group
        start, turn = k.number(first, i64), size
        if self.reverse:
            start, turn = start + (whole - 1) * size, -size
        near, later = ([k.var(self._zero()) for _ in range(EACH)] for _ in range(2))
        folds = k.var(self._zero())

        def advance(at: ir.Value, coming: Sequence[ir.Value] | None) -> None:
            now, then = ([each.value for each in held] for held in (near, later))
            after = self._totals(then)
            put(at, None, now, folds.value)
            folds.set(after)
            _set(near, then)
            _set(later, then if coming is None else coming)

        _set(near, self._near(start, None))
        _set(later, self._near(start + k.minimum(whole - 1, 1) * turn, None))
        folds.set(self._totals([each.value for each in near]))
        loaded = k.maximum(whole - 2, 0)
        for j in k.range(loaded):
            at = start + j * turn
            advance(at, self._near(at + 2 * turn, None))
        for j in k.range(loaded, whole):
            advance(start + j * turn, None)

    def _put(
        self, sums: Sequence[Variable], finite: Variable, at: ir.Value, stop: ir.Operand | None,
        near: Sequence[ir.Value], folds: ir.Value,
    ) -> None:  # fmt: skip
        """Stores the results of a group, adds its sum to each of `sums`; `finite` becomes NaN where a result is not."""
        carry = self.carry.value.to(f32)
        for each in sums:
            each.set(each.value + self._last(folds))
        before = self._plus(self._before(folds, 0.0, self._number()), carry)
        results = [self._plus(value, before) for value in near]
        # the result after three of four neighbours: nothing else contains this sum, so its overflow shows here alone
        finite.set(self.k.fma(results[1 if self.reverse else 2], 0.0, finite.value))
        for i, value in enumerate(self._transposed(results)):
            self._store(at + i * self.lanes, stop, value)

    def _again(
        self, zero: ir.Value, first: ir.Operand, stop: ir.Operand, sum_: Variable, start: ir.Value, writes: bool
    ) -> None:
        """Adds the columns to `start` in order, unless `zero` is 0."""
        with self.k.when((zero <= 0.0) ^ self.k.const(1, boolean)):
            sum_.set(start)
            self._in_order(first, stop, (sum_,), writes)

    def _zero(self) -> ir.Value:
        return self.k.lane().to(f32) * 0.0

    def _last(self, folds: ir.Value) -> ir.Value:
        return self.k.broadcast(folds, 0 if self.reverse else self.lanes - 1).to(f64)

    def _near(self, at: ir.Value, stop: ir.Operand | None) -> list[ir.Value]:
        """The running sums of every EACH neighbours, a register for each of these."""
        x = self._transposed([self._loaded(at + i * self.lanes, stop) for i in range(EACH)])
        a, b, c, d = x[::-1] if self.reverse else x
        two, last = self._plus(a, b), self._plus(c, d)
        near = [a, two, self._plus(two, c), self._plus(two, last)]
        return near[::-1] if self.reverse else near

    def _totals(self, near: Sequence[ir.Value]) -> ir.Value:
        """The running sums of the totals of EACH neighbours."""
        return self._steps(near[0 if self.reverse else -1], self.folds)

    def _place(self, number: ir.Value) -> ir.Value:
        blocks = self.lanes // EACH
        return number % blocks * EACH + number // blocks

    def _number(self) -> ir.Value:
        lane = self.k.lane()
        return lane % EACH * (self.lanes // EACH) + lane // EACH

    def _transposed(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Lane j of each block of register i, in lane i of the block of register j."""
        at = self.k.lane() % EACH
        a, b, c, d = values
        ab, cd = (self._interleaved(*pair, at // 2, (at & 1) < 1) for pair in ((a, b), (c, d)))
        return [each for pair in zip(ab, cd, strict=True) for each in self._interleaved(*pair, at & 1, at < 2)]

    def _interleaved(self, a: ir.Value, b: ir.Value, at: ir.Value, of_a: ir.Value) -> list[ir.Value]:
        """Lanes `at` of every block of a or else of b; then those two lanes after. Not merged with other shuffles into more."""
        k, block = self.k, self.k.lane() // EACH * EACH
        lanes = [block + at + i for i in (0, 2)]
        return [k.rounded(k.select(of_a, k.shuffle(a, lane), k.shuffle(b, lane))) for lane in lanes]

    def _plus(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a + b, by a multiply-add: on a Zen 4 it has pipes that shuffles and additions do not have."""
        return self.k.fma(a, self.k.rounded(1.0), b)


def _zero_of(variable: Variable) -> ir.Value:
    """0, or NaN where the variable is not finite."""
    return (variable.value * 0.0).to(f32)


def _set(variables: Sequence[Variable], values: Sequence[ir.Value]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.set(value)
