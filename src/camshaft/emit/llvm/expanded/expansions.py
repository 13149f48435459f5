"""Emit the instructions that the table marks "expand:NAME", and conversions between dtypes, in LLVM IR.

Each expansion takes a Typed writer and the operands' names, all of one LLVM type, and returns the result's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from camshaft.dtypes import DType, bf16, f16, f32, f64, i16, i32
from camshaft.emit.llvm.context import Typed
from camshaft.emit.llvm.expanded.byte_pairs import byte_pairs, byte_signs
from camshaft.emit.llvm.expanded.dots import byte_lookup, dot2, dot4, dp4a, prmt
from camshaft.emit.llvm.values import suffix, vector_type


def rsqrt(t: Typed, x: str) -> str:
    return t.op("fdiv", t.const(1.0), t.call("llvm.sqrt", x))


def isnan(t: Typed, x: str) -> str:
    return t.line(f"fcmp uno {t.typ} {x}, {x}")


def rounded_ptx(t: Typed, x: str) -> str:
    """x + -0.0 with an explicit rounding. ptxas fuses a product with a sum if neither states its rounding, whatever LLVM says."""
    typ = t.typ
    return t.ctx.call(f"llvm.nvvm.add.rn.{'d' if t.dtype == f64 else 'f'}", typ, (typ, x), (typ, t.const(-0.0)))


def negate(t: Typed, x: str) -> str:
    return t.op("sub", t.const(0), x)


def floor_divide(t: Typed, a: str, b: str) -> str:
    """Rounds towards minus infinity, as Python does."""
    quotient = t.op("sdiv", a, b)
    return t.select(_inexact_and_opposite(t, a, b), t.op("sub", quotient, t.const(1)), quotient)


def remainder(t: Typed, a: str, b: str) -> str:
    """Takes the sign of b, as Python's does."""
    rest = t.op("srem", a, b)
    return t.select(_inexact_and_opposite(t, a, b), t.op("add", rest, b), rest)


def _inexact_and_opposite(t: Typed, a: str, b: str) -> str:
    rest = t.op("srem", a, b)
    opposite = t.line(f"icmp slt {t.typ} {t.op('xor', a, b)}, {t.const(0)}")
    inexact = t.line(f"icmp ne {t.typ} {rest}, {t.const(0)}")
    return t.line(f"and {t.mask_type} {opposite}, {inexact}")


# --- p 2^n by AVX-512's instruction ----------------------------------------------------------------------------------

_LEAST_BITS, _MOST_BITS = 128, 512


def scale(t: Typed, p: str, n: str) -> str:
    """p 2^n for integer n, rounded once. Wider vectors than a register are split, narrower ones take its first elements."""
    if t.n <= 1:
        typ = vector_type(t.dtype, 2)
        p, n = (t.line(f"insertelement {typ} poison, {t.typ} {x}, i64 0") for x in (p, n))
        return t.line(f"extractelement {typ} {_scale_vector(t, 2, p, n)}, i64 0")
    return _scale_vector(t, t.n, p, n)


def _scale_vector(t: Typed, total: int, p: str, n: str) -> str:
    count = min(max(total, _LEAST_BITS // t.dtype.bits), _MOST_BITS // t.dtype.bits)
    starts = range(0, total, count)
    pieces = [
        _scale_piece(t, count, *(_picked(t, total, x, x, range(at, at + count)) for x in (p, n))) for at in starts
    ]
    while len(pieces) > 1:
        pairs = zip(pieces[::2], pieces[1::2], strict=True)
        pieces = [_picked(t, count, a, b, range(2 * count)) for a, b in pairs]
        count *= 2
    return _picked(t, count, pieces[0], pieces[0], range(total))


def _scale_piece(t: Typed, count: int, p: str, n: str) -> str:
    bits, typ = count * t.dtype.bits, vector_type(t.dtype, count)
    name = f"llvm.x86.avx512.mask.scalef.{'ps' if t.dtype.bits == 32 else 'pd'}.{bits}"
    rounding = [("i32", "4")] if bits == _MOST_BITS else []  # the current rounding mode
    masked = (typ, "zeroinitializer"), (f"i{max(count, 8)}", "-1")
    return t.ctx.call(name, typ, (typ, p), (typ, n), *masked, *rounding)


def _picked(t: Typed, n: int, a: str, b: str, elements: Iterable[int]) -> str:
    """Elements of two vectors of n, one after the other; numbers past their end start again."""
    order = [i % (2 * n) for i in elements]
    return a if order == list(range(n)) else t.ctx.shuffled(vector_type(t.dtype, n), a, order, b)


EXPANSIONS: dict[str, Callable[..., str]] = {
    "scale": scale,
    "isnan": isnan,
    "rsqrt": rsqrt,
    "rounded_ptx": rounded_ptx,
    "negate": negate,
    "floor_divide": floor_divide,
    "remainder": remainder,
    "dot2": dot2,
    "dot4": dot4,
    "dp4a": dp4a,
    "byte_lookup": byte_lookup,
    "byte_pairs": byte_pairs,
    "byte_signs": byte_signs,
    "prmt": prmt,
}


# --- conversions -----------------------------------------------------------------------------------------------------


def cast(t: Typed, x: str, to: DType) -> str:
    """Convert to another dtype by value. Floats to integers truncate and saturate (NaN to 0). f16 and bf16 go through f32."""
    if t.dtype == to:
        return x
    if f32 not in (t.dtype, to) and (t.dtype in (f16, bf16) or to in (f16, bf16)):
        return cast(t.as_dtype(f32), cast(t, x, f32), to)
    source, result = t.typ, t.type_of(to)
    if to.kind == "b":
        return t.line(f"{'fcmp une' if t.dtype.is_float else 'icmp ne'} {source} {x}, {t.const(0)}")
    if t.dtype.is_float and to.is_float:
        return _float_to_float(t, x, to)
    if t.dtype.is_float:
        n = t.n if t.n > 1 else 0
        name = f"llvm.fpto{'s' if to.kind == 'i' else 'u'}i.sat.{suffix(to, n)}.{suffix(t.dtype, n)}"
        return t.ctx.call(name, result, (source, x))
    if to.is_float:
        return t.line(f"{'sitofp' if t.dtype.kind == 'i' else 'uitofp'} {source} {x} to {result}")
    if t.dtype.kind == "b" or to.bits > t.dtype.bits:
        return t.line(f"{'sext' if t.dtype.kind == 'i' else 'zext'} {source} {x} to {result}")
    return x if to.bits == t.dtype.bits else t.line(f"trunc {source} {x} to {result}")


def _float_to_float(t: Typed, x: str, to: DType) -> str:
    if to == bf16 and not t.target.has_bf16:
        return _narrow_bf16(t, x)
    if to == bf16 and t.target.flushes_bf16:
        return _narrow_subnormal_bf16(t, x)
    if t.dtype == bf16:
        return _widen_bf16(t, x)
    if f16 in (t.dtype, to) and not t.target.has_f16:
        return _widen_f16(t, x) if to == f32 else _narrow_f16(t, x)
    return t.line(f"{'fpext' if to.nbytes > t.dtype.nbytes else 'fptrunc'} {t.typ} {x} to {t.type_of(to)}")


# --- f16 and bf16 by their bits, for CPUs without instructions for them: LLVM would call functions that no C library has ----
# Rounding is to nearest, ties to even; subnormals, infinities and NaN are preserved.


def _bits_of(t: Typed, x: str) -> str:
    """The 16 bits of an f16 or bf16 as i32."""
    return t.line(f"zext {t.type_of(i16)} {t.bitcast(x, i16)} to {t.type_of(i32)}")


def _widen_bf16(t: Typed, x: str) -> str:
    ints = t.as_dtype(i32)
    return ints.bitcast(ints.op("shl", _bits_of(t, x), ints.const(16)), f32)


def _widen_f16(t: Typed, x: str) -> str:
    """The 15 low bits as those of an f32, times 2^112, which makes the exponent right and subnormals normal."""
    ints, floats = t.as_dtype(i32), t.as_dtype(f32)
    bits = _bits_of(t, x)
    sign = ints.op("shl", ints.op("and", bits, ints.const(0x8000)), ints.const(16))
    low = ints.op("and", bits, ints.const(0x7FFF))
    moved = ints.bitcast(ints.op("shl", low, ints.const(13)), f32)
    finite = floats.bitcast(floats.op("fmul", moved, floats.const(2.0**112)), i32)
    special = ints.op("or", finite, ints.const(0x7F800000))
    chosen = ints.select(_compare(ints, "ugt", low, 0x7BFF), special, finite)
    return ints.bitcast(ints.op("or", chosen, sign), f32)


def _narrow_f16(t: Typed, x: str) -> str:
    """Below 2^-14, adding 0.5 leaves the rounded result in the low bits; above, the carry rounds."""
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


def _narrow_bf16(t: Typed, x: str) -> str:
    ints, floats = t.as_dtype(i32), t.as_dtype(f32)
    bits = floats.bitcast(x, i32)
    odd = ints.op("and", ints.op("lshr", bits, ints.const(16)), ints.const(1))
    rounded = ints.op("add", bits, ints.op("add", odd, ints.const(0x7FFF)))
    quiet = ints.op("or", bits, ints.const(0x400000))
    ordered = t.line(f"fcmp ord {floats.typ} {x}, {x}")
    return _low_word(ints, ints.op("lshr", ints.select(ordered, rounded, quiet), ints.const(16)), bf16)


def _narrow_subnormal_bf16(t: Typed, x: str) -> str:
    """Exponent 0 becomes 1 for the instruction, which rounds the mantissa as it is, and 0 again in the result.

    Three instructions more: on one core (Zen 4) an add of 2^20 bf16 takes 1.3 times as long, with _narrow_bf16 1.6; a cast or a
    matmul of depth 512 1.02.
    """
    ints, shorts = t.as_dtype(i32), t.as_dtype(i16)
    bits = t.bitcast(x, i32)
    low = _compare(ints, "eq", ints.op("and", bits, ints.const(0x7F800000)), 0)
    raised = ints.bitcast(ints.select(low, ints.op("or", bits, ints.const(0x800000)), bits), f32)
    rounded = t.as_dtype(bf16).bitcast(t.line(f"fptrunc {t.typ} {raised} to {t.type_of(bf16)}"), i16)
    return shorts.bitcast(shorts.select(low, shorts.op("sub", rounded, shorts.const(0x80)), rounded), bf16)


def _low_word(t: Typed, x: str, dtype: DType) -> str:
    words = t.line(f"trunc {t.typ} {x} to {t.type_of(i16)}")
    return t.as_dtype(i16).bitcast(words, dtype)


def _compare(t: Typed, predicate: str, x: str, bound: int) -> str:
    return t.line(f"icmp {predicate} {t.typ} {x}, {t.const(bound)}")
