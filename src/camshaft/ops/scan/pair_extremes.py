"""Running maxima and minima of floats by pairs of neighbours, as integers in the order of floats.

The integers of NaN are beyond those of the infinities, above or below by its sign. So where an integer is, the part is scanned
once more, with one integer for every NaN, which takes longer to make.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from camshaft.dtypes import DType, i32
from camshaft.lang import ir
from camshaft.lang.tracing.tracer import Variable
from camshaft.ops.kernels.bits import ordered
from camshaft.ops.reduce.frame import combine, start_of
from camshaft.ops.scan.pairs import Group, PairScan, Results
from camshaft.ops.scan.row_scan import stored, wide

# The integers of the infinities.
_LEAST, _MOST = -0x7F800001, 0x7F800000


@dataclass(frozen=True)
class PairExtreme(PairScan):
    """As a PairScan, of `kind` max or min. A check is the fold of the other kind of all elements. `exact`: with one integer for
    every NaN."""

    kind: str = "max"
    exact: bool = False

    @property
    def identity(self) -> int:
        return _LEAST if self.kind == "max" else _MOST

    @property
    def start(self) -> ir.Value:
        return self.k.const(start_of(self.kind, i32), i32)

    @property
    def dtype(self) -> DType:
        return i32

    def note(self, noted: Variable, carry: ir.Value) -> None:
        self.advance(noted, carry)

    def fails(self, check: Variable, carry: ir.Value) -> ir.Value:
        if self.kind == "max":
            return (self.k.lanes_min(check) < _LEAST) | (carry > _MOST)
        return (self.k.lanes_max(check) > _MOST) | (carry < _LEAST)

    def pairs(self, at: ir.Value, stop: ir.Operand | None, check: Variable) -> ir.Value:
        k, lane, value = self.k, self.k.lane(), self._loaded(at, stop)
        check.set(combine(k, "min" if self.kind == "max" else "max", check.value, value))
        return self.fold(k.shuffle(value, lane | 1 if self.reverse else lane & -2), value)

    def fold(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return combine(self.k, self.kind, a, b)

    def put(self, at: ir.Value, stop: ir.Operand | None, group: Group, before: ir.Value, check: Variable) -> None:
        first = self.fold(before, group.first)
        for i, near in enumerate(group.near):
            self.store(at + i * self.lanes, stop, self.fold(self.spread(before, first, i), near))

    def store(self, at: ir.Value, stop: ir.Operand | None, value: ir.Value) -> None:
        super().store(at, stop, stored(self.k, value, self.out.dtype))

    def advance(self, carry: Variable, last: ir.Value) -> None:
        carry.set(self.fold(carry.value, last))

    def _step(self, has: ir.Value, near: ir.Value, value: ir.Value) -> ir.Value:
        # where there is nothing before a lane, `near` is the lane's own value
        return self.fold(near, value)

    def _loaded(self, at: ir.Value, stop: ir.Operand | None) -> ir.Value:
        if stop is None:
            return self._number_of(super()._loaded(at, None))
        value = self.k.var(self.identity, i32)
        with self.k.when(self._has(at, stop)):
            value.set(self._number_of(self.x[self.row, at + self.k.lane()]))
        return value.value

    def _number_of(self, x: ir.Value) -> ir.Value:
        return wide(self.k, x, i32, self.kind) if self.exact else ordered(self.k, x, i32)

    def _in_order(self, first: ir.Operand, stop: ir.Operand, sums: tuple[Variable, ...], writes: bool) -> None:
        exact = replace(self, exact=True)
        if writes:
            exact.one_by_one(first, stop, Results(exact, sums, self.zeros()))
            return
        for each in sums:
            exact.folded(first, stop, each, self.zeros())
