"""f16 and bf16 in LLVM for CPUs without instructions for them: by bits, as LLVM would call functions that no C library has.

Rounding is to nearest, ties to even; subnormals, infinities and NaN are preserved.
"""

from __future__ import annotations

from camshaft.dtypes import DType, bf16, f16, f32, i16, i32
from camshaft.emit.llvm.typed import Typed


def widen_bf16(t: Typed, x: str) -> str:
    """bf16 to f32: the upper half of its bits."""
    ints = t.as_dtype(i32)
    bits = t.line(f"zext {t.type_of(i16)} {t.as_dtype(bf16).bitcast(x, i16)} to {ints.type_of()}")
    return ints.bitcast(ints.op("shl", bits, ints.const(16)), f32)


def widen_f16(t: Typed, x: str) -> str:
    """f16 to f32: its 15 low bits as those of an f32, times 2^112, which makes the exponent right and subnormals normal."""
    ints, floats = t.as_dtype(i32), t.as_dtype(f32)
    bits = t.line(f"zext {t.type_of(i16)} {t.as_dtype(f16).bitcast(x, i16)} to {ints.type_of()}")
    sign = ints.op("shl", ints.op("and", bits, ints.const(0x8000)), ints.const(16))
    low = ints.op("and", bits, ints.const(0x7FFF))
    moved = ints.bitcast(ints.op("shl", low, ints.const(13)), f32)
    finite = floats.bitcast(floats.op("fmul", moved, floats.const(2.0**112)), i32)
    special = ints.op("or", finite, ints.const(0x7F800000))
    chosen = ints.select(_compare(ints, "ugt", low, 0x7BFF), special, finite)
    return ints.bitcast(ints.op("or", chosen, sign), f32)


def narrow_f16(t: Typed, x: str) -> str:
    """f32 to f16. Below 2^-14 adding 0.5 leaves the rounded result in the low bits; above, the carry rounds."""
    ints, floats = t.as_dtype(i32), t.as_dtype(f32)
    bits = floats.bitcast(x, i32)
    sign = ints.op("and", ints.op("lshr", bits, ints.const(16)), ints.const(0x8000))
    size = ints.op("and", bits, ints.const(0x7FFFFFFF))
    shifted = floats.bitcast(floats.op("fadd", ints.bitcast(size, f32), floats.const(0.5)), i32)
    small = ints.op("sub", shifted, ints.const(0x3F000000))  # the bits of 0.5
    odd = ints.op("and", ints.op("lshr", size, ints.const(13)), ints.const(1))
    carried = ints.op("add", ints.op("sub", size, ints.const(0x38000000 - 0xFFF)), odd)
    finite = ints.select(_compare(ints, "ult", size, 0x38800000), small, ints.op("lshr", carried, ints.const(13)))
    special = ints.select(_compare(ints, "ugt", size, 0x7F800000), ints.const(0x7E00), ints.const(0x7C00))
    chosen = ints.select(_compare(ints, "uge", size, 0x47800000), special, finite)
    return _low_word(ints, ints.op("or", chosen, sign), f16)


def narrow_bf16(t: Typed, x: str) -> str:
    """f32 to bf16."""
    ints, floats = t.as_dtype(i32), t.as_dtype(f32)
    bits = floats.bitcast(x, i32)
    odd = ints.op("and", ints.op("lshr", bits, ints.const(16)), ints.const(1))
    rounded = ints.op("add", bits, ints.op("add", odd, ints.const(0x7FFF)))
    quiet = ints.op("or", bits, ints.const(0x400000))
    ordered = t.line(f"fcmp ord {floats.type_of()} {x}, {x}")
    return _low_word(ints, ints.op("lshr", ints.select(ordered, rounded, quiet), ints.const(16)), bf16)


def _low_word(t: Typed, x: str, dtype: DType) -> str:
    words = t.line(f"trunc {t.type_of()} {x} to {t.type_of(i16)}")
    return t.as_dtype(i16).bitcast(words, dtype)


def _compare(t: Typed, predicate: str, x: str, bound: int) -> str:
    return t.line(f"icmp {predicate} {t.type_of()} {x}, {t.const(bound)}")
