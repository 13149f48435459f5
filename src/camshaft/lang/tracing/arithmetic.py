"""Tracer methods that compute: one per arithmetic instruction, and casts."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.dtypes import DType, f32, i32, u32
from camshaft.lang import ir
from camshaft.lang.tracing.recorder import Number, Recorder


class Arithmetic(Recorder):
    """Functions of values; operators are methods of ir.Value."""

    # --- arithmetic ------------------------------------------------------------------------------------------------
    def cast(self, value: ir.Value, dtype: DType) -> ir.Value:
        """Convert by value; floats to integers truncate towards zero."""
        return value if value.dtype == dtype else self.record("cast", dtype, (value,), value.width)

    def number(self, value: Number, dtype: DType) -> ir.Value:
        """A size, which is a Python number or a run-time scalar, as a value of the dtype."""
        return self.cast(self.as_value(value, dtype), dtype)

    def bitcast(self, value: ir.Value, dtype: DType) -> ir.Value:
        """Reinterpret the bits as another dtype of the same size."""
        if value.dtype.nbytes != dtype.nbytes:
            raise self.fail(f"bitcast of {value.dtype} to {dtype}: sizes differ")
        return self.record("bitcast", dtype, (value,), value.width)

    def minimum(self, a: Number, b: Number) -> ir.Value:
        return self.apply("minimum", a, b)

    def maximum(self, a: Number, b: Number) -> ir.Value:
        return self.apply("maximum", a, b)

    def select(self, condition: ir.Value, a: Number, b: Number) -> ir.Value:
        """Return a where the condition is true, else b."""
        return self.apply("select", condition, a, b)

    def fma(self, a: Number, b: Number, c: Number) -> ir.Value:
        """a * b + c, rounded once."""
        return self.apply("fma", a, b, c)

    def exp(self, x: Number) -> ir.Value:
        return self.apply("exp", x)

    def log(self, x: Number) -> ir.Value:
        return self.apply("log", x)

    def tanh(self, x: Number) -> ir.Value:
        return self.apply("tanh", x)

    def sqrt(self, x: Number) -> ir.Value:
        return self.apply("sqrt", x)

    def rsqrt(self, x: Number) -> ir.Value:
        return self.apply("rsqrt", x)

    def floor(self, x: Number) -> ir.Value:
        return self.apply("floor", x)

    def round(self, x: Number) -> ir.Value:
        """Round to the nearest integer, ties to even."""
        return self.apply("round", x)

    def rounded(self, x: Number) -> ir.Value:
        """Return x, rounded: on CPUs and PTX, an operation that uses x cannot fuse with the one that made it."""
        return self.apply("rounded", x)

    def ceil(self, x: Number) -> ir.Value:
        return self.apply("ceil", x)

    def trunc(self, x: Number) -> ir.Value:
        """Round towards 0."""
        return self.apply("trunc", x)

    def erf(self, x: Number) -> ir.Value:
        return self.apply("erf", x)

    def sin(self, x: Number) -> ir.Value:
        return self.apply("sin", x)

    def cos(self, x: Number) -> ir.Value:
        return self.apply("cos", x)

    def isnan(self, x: Number) -> ir.Value:
        """Return whether x is NaN, as a boolean."""
        return self.apply("isnan", x)

    def abs(self, x: Number) -> ir.Value:
        return self.apply("abs", x)

    def dot4(self, acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """acc + the sum over 4 bytes of u8(a) * s8(b), in each 32-bit word: acc i32, a and b u32."""
        if acc.dtype != i32 or a.dtype.name != "u32" or b.dtype.name != "u32":
            raise self.fail(f"dot4 of {acc.dtype}, {a.dtype}, {b.dtype}: wanted i32, u32, u32")
        return self.apply("dot4", acc, a, b)

    def dot2(self, acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """acc + the product of the high halves of a and b, then + the product of the low halves. a and b are u32.

        acc f32: the halves are bf16; each sum is rounded once, as in fma; subnormal operands and results may flush to 0.
        acc i32: the halves are signed 16-bit integers; sums wrap.
        """
        if acc.dtype not in (f32, i32) or a.dtype != u32 or b.dtype != u32:
            raise self.fail(f"dot2 of {acc.dtype}, {a.dtype}, {b.dtype}: wanted f32 or i32, u32, u32")
        return self.apply("dot2", acc, a, b)

    def byte_pairs(self, acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """acc + the products u8(a) * s8(b) of bytes 0 and 1 in the low half of each u32 word, of bytes 2 and 3 in the high half.

        The sum of two products must fit 16 bits; the sum with acc wraps.
        """
        return self._of_words("byte_pairs", acc, a, b)

    def byte_signs(self, a: ir.Value, by: ir.Value) -> ir.Value:
        """Each byte of a, signed, times the sign of the same byte of `by`: a, 0 or -a, where --128 is -128. Both are u32."""
        return self._of_words("byte_signs", a, by)

    def _of_words(self, name: str, *words: ir.Value) -> ir.Value:
        if any(word.dtype != u32 for word in words):
            raise self.fail(f"{name} of {', '.join(str(word.dtype) for word in words)}: wanted u32")
        return self.apply(name, *words)

    def byte_lookup(self, indexes: ir.Value, table: Sequence[int]) -> ir.Value:
        """Look up bytes by 4-bit indexes: table[b & 15] for each byte b of a u32 word. `table`: 16 numbers from -128 to 255."""
        if indexes.dtype != u32:
            raise self.fail(f"byte_lookup by {indexes.dtype}: wanted u32")
        if len(table) != 16 or not all(-128 <= entry <= 255 for entry in table):
            raise self.fail(f"byte_lookup in {len(table)} numbers: wanted 16 from -128 to 255")
        octets = bytes(entry & 255 for entry in table)
        words = [self.const(int.from_bytes(octets[i : i + 4], "little"), u32) for i in range(0, 16, 4)]
        return self.apply("byte_lookup", indexes, *words)
