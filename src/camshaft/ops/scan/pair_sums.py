"""Sums along a row of floats by pairs of neighbours, in f32 within a group and in f64 from group to group.

The error is that of quads.py with four times the greatest running sum: one rounding to a pair, one to four, four in the steps,
four from there on. Sums within a group may overflow where the running sum does not, and the running sum where that at the next
element does not. So where the sum of a part or that before one of its pairs is not finite, its results are made once more, one
after the other in f64.
"""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.dtypes import DType, boolean, f32, f64
from camshaft.lang import ir
from camshaft.lang.tracing.tracer import Variable
from camshaft.ops.scan.pairs import Group, PairScan


@dataclass(frozen=True)
class PairSum(PairScan):
    """As a PairScan. A check becomes NaN where a sum is not finite."""

    @property
    def identity(self) -> float:
        return 0.0

    @property
    def start(self) -> ir.Value:
        return self.k.const(0.0, f64)

    @property
    def dtype(self) -> DType:
        return f32

    def note(self, noted: Variable, carry: ir.Value) -> None:
        noted.set(self.k.fma(carry, 0.0, noted.value))

    def fails(self, check: Variable, carry: ir.Value) -> ir.Value:
        return self._is_not_zero(self.k.lanes_sum(check) + self._zero_of(carry))

    def spoils(self, check: Variable, total: ir.Value) -> ir.Value:
        return self._is_not_zero(self._zero_of(total))

    def pairs(self, at: ir.Value, stop: ir.Operand | None, check: Variable) -> ir.Value:
        """Each second element with the one before it, loaded once more from one column before."""
        k, step = self.k, 1 if self.reverse else -1
        x, has = self._loaded(at, stop), (k.lane() & 1) == (0 if self.reverse else 1)
        sums = k.var(x)
        with k.when(has if stop is None else has & self._has(at + step, stop)):
            sums.set(self.fold(self.x[self.row, at + k.lane() + step], x))
        return k.rounded(sums.value)

    def fold(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a + b, by a multiply-add: on a Zen 4 it has pipes that shuffles and additions do not have."""
        return self.k.fma(a, self.k.rounded(1.0), b)

    def put(self, at: ir.Value, stop: ir.Operand | None, group: Group, before: ir.Value, check: Variable) -> None:
        first = self.fold(before, group.first)
        check.set(self.k.fma(first, 0.0, check.value))
        for i, near in enumerate(group.near):
            # an addition: a Zen 4 takes longer for multiply-adds beside stores
            self.store(at + i * self.lanes, stop, self.k.rounded(self.spread(before, first, i) + near))

    def advance(self, carry: Variable, last: ir.Value) -> None:
        carry.set(carry.value + last.to(f64))

    def _zero_of(self, value: ir.Value) -> ir.Value:
        """0, or NaN where a value is not finite."""
        return (value * 0.0).to(f32)

    def _is_not_zero(self, value: ir.Value) -> ir.Value:
        return (value <= 0.0) ^ self.k.const(1, boolean)
