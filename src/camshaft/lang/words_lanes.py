"""Words between lanes, which all lanes reach together, and explicit vectors. Part of lang/tracer.py."""

from __future__ import annotations

from camshaft.dtypes import DType, f32, i64
from camshaft.lang import ir
from camshaft.lang.handles import Variable
from camshaft.lang.recorder import Number
from camshaft.lang.words_arithmetic import Arithmetic


class LaneWords(Arithmetic):
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

    # --- collectives and explicit vectors --------------------------------------------------------------------------
    def _reduce(self, kind: str, value: ir.Value | Variable) -> ir.Value:
        if self.in_lanes:
            raise self.fail(f"k.lanes_{kind} inside k.lanes would depend on the lane count")
        operand = value.value if isinstance(value, Variable) else value
        return self.record("reduce", operand.dtype, (operand,), attr=kind)

    def lanes_sum(self, value: ir.Value | Variable) -> ir.Value:
        """The sum over all lanes, uniform."""
        return self._reduce("sum", value)

    def lanes_max(self, value: ir.Value | Variable) -> ir.Value:
        """The greatest over all lanes, uniform."""
        return self._reduce("max", value)

    def lanes_min(self, value: ir.Value | Variable) -> ir.Value:
        """The least over all lanes, uniform."""
        return self._reduce("min", value)

    def splat(self, value: Number, width: int, dtype: DType = f32) -> ir.Value:
        """A vector of equal elements."""
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
        """The greatest of an explicit vector's elements."""
        return self.record("vector_max", vector.dtype, (vector,))
