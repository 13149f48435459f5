"""Sort keys: unsigned integers in the order of a dtype's numbers, made from their bits, so that order is the same everywhere.

Kernels read tensors as unsigned integers of their size. NaN is above all numbers, as in NumPy and torch; -0 equals 0 where
positions are sorted, so that equal elements stay in order, and is below 0 where only values are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from camshaft.dtypes import DTYPES, DType, as_dtype, u32, u64
from camshaft.lang import Tracer, ir
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec

# The bits of infinity, above which are NaNs.
_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}


@dataclass(frozen=True)
class Keys:
    """Keys of a dtype. `descending` turns the order round; `equal_zeros`: -0 and 0, and all NaNs, have one key."""

    dtype: DType
    descending: bool
    equal_zeros: bool

    @property
    def word(self) -> DType:
        """The dtype of keys in a kernel."""
        return u64 if self.dtype.bits == 64 else u32

    @property
    def sign(self) -> int:
        """The highest bit of a key."""
        return 1 << (self.dtype.bits - 1)

    @property
    def ones(self) -> int:
        """The greatest key."""
        return (1 << self.dtype.bits) - 1

    def key(self, k: Tracer, bits: ir.Value) -> ir.Value:
        """The key of an element's bits."""
        if self.dtype.is_float:
            bits = self._of_float(k, bits)
        elif self.dtype.kind == "i":
            bits = bits ^ self.sign
        return bits ^ self.ones if self.descending else bits

    def _of_float(self, k: Tracer, bits: ir.Value) -> ir.Value:
        magnitude = bits & (self.sign - 1)
        nan = magnitude > _INFINITY[self.dtype.name]
        if self.equal_zeros:
            bits = k.select(magnitude == 0, 0, bits)
        bits = k.select(nan, self.sign - 1 if self.equal_zeros else magnitude, bits)
        return bits ^ k.select(bits >= self.sign, k.const(self.ones, self.word), k.const(self.sign, self.word))

    def bits(self, k: Tracer, key: ir.Value) -> ir.Value:
        """The element's bits of a key made without `equal_zeros`; a NaN lost its sign."""
        key = key ^ self.ones if self.descending else key
        if self.dtype.kind == "i":
            return key ^ self.sign
        if not self.dtype.is_float:
            return key
        return key ^ k.select(key >= self.sign, k.const(self.sign, self.word), k.const(self.ones, self.word))


def keys_of(name: str, descending: bool, equal_zeros: bool) -> Keys:
    """The keys of a dtype by its name, as constants of kernels have it."""
    return Keys(DTYPES[name], descending, equal_zeros)


def as_bits(operand: ops.Operand, spec: TensorSpec) -> ops.Operand:
    """The operand of this spec as unsigned integers of its size."""
    return replace(operand, dtype=DTYPES[f"u{as_dtype(spec.dtype).bits}"])
