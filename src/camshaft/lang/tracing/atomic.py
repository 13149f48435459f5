"""Atomic words: read, change and write of one element that no other lane or program comes between."""

from __future__ import annotations

from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.tracing.handles import Array
from camshaft.lang.tracing.memory import MemoryWords
from camshaft.lang.tracing.recorder import Number


class AtomicWords(MemoryWords):
    """Atomics on arrays and scratch of i32 or u32 (atomic_add: f32 as well). Each gives the element's old value.

    Inside k.lanes, under a mask, or with an operand that varies, every active lane does one; else the program does one. They
    order nothing but their own element, and it must not be read or stored otherwise until a barrier. Which lane comes first
    is not told, so what an atomic gives may differ from run to run.
    """

    def _atomic(self, kind: str, array: Array, operands: tuple[Number, ...], indices: tuple[Number, ...]) -> ir.Value:
        target = array.ir
        if not target.writable:
            raise self.fail(f"{target.name} is not writable")
        if target.dtype.kind not in ATOMICS[kind].kinds or target.dtype.nbytes != 4:
            wanted = ", ".join(f"{k}32" for k in ATOMICS[kind].kinds)
            raise self.fail(f"atomic_{kind} on {target.name} of {target.dtype}: wanted {wanted}")
        values = tuple(self.as_value(v, target.dtype) for v in operands)
        if any(v.dtype != target.dtype for v in values):
            raise self.fail(f"atomic_{kind} of {values[0].dtype} on {target.name} of {target.dtype}")
        at = self.indices(target, indices)
        return self.record("atomic", target.dtype, (*values, *at), attr=(target, kind))

    def atomic_add(self, array: Array, value: Number, *indices: Number) -> ir.Value:
        """array[indices] += value. Floats: the order, and with it the rounding, differs from run to run; integers are exact."""
        return self._atomic("add", array, (value,), indices)

    def atomic_min(self, array: Array, value: Number, *indices: Number) -> ir.Value:
        return self._atomic("min", array, (value,), indices)

    def atomic_max(self, array: Array, value: Number, *indices: Number) -> ir.Value:
        return self._atomic("max", array, (value,), indices)

    def atomic_and(self, array: Array, value: Number, *indices: Number) -> ir.Value:
        return self._atomic("and", array, (value,), indices)

    def atomic_or(self, array: Array, value: Number, *indices: Number) -> ir.Value:
        return self._atomic("or", array, (value,), indices)

    def atomic_xor(self, array: Array, value: Number, *indices: Number) -> ir.Value:
        return self._atomic("xor", array, (value,), indices)

    def atomic_exchange(self, array: Array, value: Number, *indices: Number) -> ir.Value:
        """array[indices] = value."""
        return self._atomic("exchange", array, (value,), indices)

    def compare_exchange(self, array: Array, expected: Number, value: Number, *indices: Number) -> ir.Value:
        """array[indices] = value if it was `expected`; it never fails without cause."""
        return self._atomic("compare_exchange", array, (expected, value), indices)
