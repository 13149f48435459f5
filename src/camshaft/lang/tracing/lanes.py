"""Tracer methods that work across lanes (reductions, scans, shuffles), and explicit vectors."""

from __future__ import annotations

from camshaft.dtypes import DType, f32, i64
from camshaft.lang import ir
from camshaft.lang.instructions import COMBINERS
from camshaft.lang.tracing.arithmetic import Arithmetic
from camshaft.lang.tracing.recorder import Number, Variable


class LaneMethods(Arithmetic):
    """Reductions, scans and shuffles over the lanes; vectors of a given width."""

    # --- where am I ------------------------------------------------------------------------------------------------
    def program(self, axis: int) -> ir.Value:
        """This program's index along an axis of the grid."""
        return self.record("program", i64, attr=axis)

    def lane(self) -> ir.Value:
        """This lane's index (varying), 0 up to lane_count."""
        return self.record("lane", i64)

    def lane_count(self) -> ir.Value:
        """The number of lanes (uniform): a power of two that no kernel may assume."""
        return self.record("lane_count", i64)

    # --- collectives: every lane of the workgroup arrives, in uniform flow ---------------------------------------------
    def _collective(self, word: str, value: ir.Value | Variable) -> ir.Value:
        """Return the operand of a collective. KernelError where its result would depend on the lane count."""
        if self.in_lanes:
            raise self.fail(f"k.{word} inside k.lanes would depend on the lane count")
        return value.value if isinstance(value, Variable) else value

    def _reduce(self, kind: str, value: ir.Value | Variable) -> ir.Value:
        operand = self._collective(f"lanes_{kind}", value)
        return self.record("reduce", operand.dtype, (operand,), attr=kind)

    def lanes_sum(self, value: ir.Value | Variable) -> ir.Value:
        """Return the sum over all lanes (uniform)."""
        return self._reduce("sum", value)

    def lanes_max(self, value: ir.Value | Variable) -> ir.Value:
        """Return the maximum over all lanes (uniform)."""
        return self._reduce("max", value)

    def lanes_min(self, value: ir.Value | Variable) -> ir.Value:
        """Return the minimum over all lanes (uniform)."""
        return self._reduce("min", value)

    def lanes_scan(self, value: ir.Value | Variable, kind: str = "sum", exclusive: bool = False) -> ir.Value:
        """Prefix scan over the lanes: lane i's value combined with those of lower lanes.

        `exclusive` leaves out lane i's own value; lane 0 gets the identity.

        `kind` is 'sum', 'max' or 'min'; the target chooses the order of a float sum.
        """
        operand = self._collective("lanes_scan", value)
        if kind not in COMBINERS:
            raise self.fail(f"no scan {kind!r}; wanted one of {', '.join(COMBINERS)}")
        return self.record("scan", operand.dtype, (operand,), attr=(kind, exclusive))

    def shuffle(self, value: ir.Value | Variable, lane: Number) -> ir.Value:
        """Return the value of lane number `lane`, which must be in 0..lane_count; uniform if `lane` is."""
        operand = self._collective("shuffle", value)
        return self.record("shuffle", operand.dtype, (operand, self.as_value(lane, i64)))

    def broadcast(self, value: ir.Value | Variable, lane: Number) -> ir.Value:
        """Return the value of one lane (a number or a uniform value) in all lanes (uniform)."""
        return self.shuffle(value, lane)

    def shuffle_xor(self, value: ir.Value | Variable, n: int) -> ir.Value:
        """Return the value of lane ^ n; a lane keeps its own value if there is no such lane."""
        lane = self.lane()
        other = lane ^ n
        return self.shuffle(value, self.select(other < self.lane_count(), other, lane))

    def shuffle_up(self, value: ir.Value | Variable, n: int) -> ir.Value:
        """The value of the lane n below; the first n lanes keep their own."""
        lane = self.lane()
        return self.shuffle(value, self.select(lane < n, lane, lane - n))

    def shuffle_down(self, value: ir.Value | Variable, n: int) -> ir.Value:
        """The value of the lane n above; the last n lanes keep their own."""
        lane = self.lane()
        return self.shuffle(value, self.select(lane + n < self.lane_count(), lane + n, lane))

    def subgroup_lanes(self) -> ir.Value:
        """Return the number of lanes in a subgroup (uniform): a power of two that divides lane_count, chosen by the target."""
        return self.record("subgroup_lanes", i64)

    def _subgroup(self, kind: str, value: ir.Value | Variable) -> ir.Value:
        operand = self._collective(f"subgroup_{kind}", value)
        return self.record("subgroup_reduce", operand.dtype, (operand,), attr=kind)

    def subgroup_sum(self, value: ir.Value | Variable) -> ir.Value:
        """Return the sum over the lanes of this lane's subgroup."""
        return self._subgroup("sum", value)

    def subgroup_max(self, value: ir.Value | Variable) -> ir.Value:
        """Return the maximum over the lanes of this lane's subgroup."""
        return self._subgroup("max", value)

    def subgroup_min(self, value: ir.Value | Variable) -> ir.Value:
        """Return the minimum over the lanes of this lane's subgroup."""
        return self._subgroup("min", value)

    # --- explicit vectors ------------------------------------------------------------------------------------------
    def splat(self, value: Number, width: int, dtype: DType = f32) -> ir.Value:
        """Return a vector of equal elements."""
        operand = self.as_value(value, dtype)
        return self.record("splat", operand.dtype, (operand,), width)

    def iota(self, width: int, dtype: DType = i64) -> ir.Value:
        """The vector 0, 1, ..., width - 1."""
        return self.record("iota", dtype, (), width)

    def element(self, vector: ir.Value, index: int) -> ir.Value:
        """One element of an explicit vector."""
        return self.record("element", vector.dtype, (vector,), attr=index)

    def vector_sum(self, vector: ir.Value) -> ir.Value:
        """The sum of an explicit vector's elements, by halving."""
        return self.record("vector_sum", vector.dtype, (vector,))

    def vector_max(self, vector: ir.Value) -> ir.Value:
        """Return the maximum of an explicit vector's elements."""
        return self.record("vector_max", vector.dtype, (vector,))

    def pack(self, vector: ir.Value, mask: ir.Value) -> ir.Value:
        """Return the elements of an explicit vector where `mask` is true, in order from the first on, then zeros."""
        return self.record("pack", vector.dtype, (vector, mask), vector.width)

    def partition(self, vector: ir.Value, mask: ir.Value) -> ir.Value:
        """Return a vector's elements where `mask` is true, from the first place on, and the others from the last back."""
        return self.record("partition", vector.dtype, (vector, mask), vector.width)

    def reverse(self, vector: ir.Value) -> ir.Value:
        """Return the elements of an explicit vector from the last to the first."""
        return self.record("reverse", vector.dtype, (vector,), vector.width)

    def permute(self, vector: ir.Value, indexes: ir.Value) -> ir.Value:
        """Return element indexes[i], modulo their number, of an explicit vector of 32-bit elements, for each of as many i32."""
        return self.record("permute", vector.dtype, (vector, indexes), vector.width)

    def count(self, mask: ir.Value) -> ir.Value:
        """Return how many elements of an explicit vector of booleans are true, as i64."""
        return self.record("count", i64, (mask,))
