"""Tracer methods for memory: scratch, loads, stores, vectors, prefetch and atomics."""

from __future__ import annotations

from typing import Any

from camshaft.dtypes import DType, i64
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.tracing.arithmetic import Arithmetic
from camshaft.lang.tracing.recorder import Array, Number


class MemoryMethods(Arithmetic):
    """Reads and writes of arrays. Every index is i64; an f16 or bf16 load yields f32."""

    # --- memory ----------------------------------------------------------------------------------------------------
    def scratch(self, dtype: DType, *shape: int) -> Array:
        """Allocate workgroup memory of this program, uninitialized."""
        array = ir.Array(f"scratch{len(self.scratches)}", dtype, shape, writable=True, scratch=True, line=self.line())
        self.scratches.append(array)
        return Array(array)

    def indices(self, array: ir.Array, indices: tuple[Number, ...]) -> tuple[ir.Value, ...]:
        if len(indices) != len(array.shape):
            raise self.fail(f"{array.name} has {len(array.shape)} dimensions, indexed with {len(indices)}")
        values = [self.as_value(i, i64) for i in indices]
        return tuple(v if v.dtype == i64 else self.cast(v, i64) for v in values)

    def load(
        self, array: Array, indices: tuple[Number, ...], width: int = 0, gather: bool = False, count: Any = None
    ) -> ir.Value:
        target = array.ir
        at = self.indices(target, array.in_ir(indices))
        if count is not None:
            at = (*at, self.as_value(count, i64))
        return self.record("load", ir.arithmetic_dtype(target.dtype), at, width, (target, gather, count is not None))

    def store(
        self,
        array: Array,
        indices: tuple[Number, ...],
        value: Number,
        scattered: bool = False,
        count: Any = None,
        streamed: bool = False,
    ) -> None:
        target = array.ir
        if not target.writable:
            raise self.fail(f"{target.name} is not writable")
        wanted = ir.arithmetic_dtype(target.dtype)
        stored = self.as_value(value, wanted)
        if stored.dtype != wanted:
            raise self.fail(f"a {stored.dtype} stored into {target.name} of {target.dtype}: wanted {wanted}")
        length = None if count is None else self.as_value(count, i64)
        at = self.indices(target, array.in_ir(indices))
        self.append(ir.Store(self.line(), target, at, stored, scattered, length, streamed))

    def gather(self, array: Array, *indices: Number) -> ir.Value:
        """Load array[indices] at arbitrary lane indices (slower than a contiguous load, so it must be explicit)."""
        return self.load(array, indices, gather=True)

    def scatter(self, array: Array, value: Number, *indices: Number) -> None:
        """Store to arbitrary lane indices; no two lanes may store to the same element."""
        self.store(array, indices, value, scattered=True)

    def stream(self, array: Array, value: Number, *indices: Number) -> None:
        """Store to an array that is too large to stay in a cache until it is read.

        A CPU may use nontemporal stores, which do not read the overwritten lines first.
        """
        self.store(array, indices, value, streamed=True)

    def load_vector(self, array: Array, *indices: Number, width: int, count: Number | None = None) -> ir.Value:
        """Load `width` consecutive elements from array[indices] on; with `count`, only that many (the rest are 0)."""
        return self.load(array, indices, width, count=count)

    def store_vector(
        self, array: Array, value: ir.Value, *indices: Number, count: Number | None = None, streamed: bool = False
    ) -> None:
        """Store an explicit vector to array[indices], [.. + 1], ...; with `count`, only that many elements.

        `streamed` is as in `stream`; the store of half a cache line is followed by that of the other half.
        """
        if not value.width:
            raise self.fail("store_vector wants an explicit vector")
        self.store(array, indices, value, count=count, streamed=streamed)

    def prefetch(self, array: Array, *indices: Number, near: bool = True) -> None:
        """Hint that array[indices] will be read soon (L1 cache) or, without `near`, later (L2 cache)."""
        self.append(ir.Prefetch(self.line(), array.ir, self.indices(array.ir, array.in_ir(indices)), near))


class AtomicMethods(MemoryMethods):
    """Atomics on arrays and scratch of i32 or u32 (atomic_add: f32 as well). Each returns the element's old value.

    Inside k.lanes, under a varying mask, or with a varying operand, every active lane executes one; else the program executes
    one. Atomics are relaxed: they order only accesses to their own element, which must not be loaded or stored otherwise until
    a barrier. The order of lanes is unspecified, so the returned values may differ from run to run.
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
        at = self.indices(target, array.in_ir(indices))
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
        """array[indices] = value if the element equals `expected`; it does not fail spuriously."""
        return self._atomic("compare_exchange", array, (expected, value), indices)
