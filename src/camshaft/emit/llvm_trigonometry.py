"""sin and cos in LLVM for f32 and f64: x is cut to within a quarter of pi of 0, then polynomials. Used by emit/llvm_math.py.

Both dtypes are computed in f64. Up to 2^27 the cut subtracts multiples of pi / 2 in parts; beyond, where that would need a pi of
a thousand digits, lanes go one by one through a function that multiplies with the digits of 2 / pi that matter (Payne and Hanek).
Accuracy is stated in lang/instructions.py.
"""

from __future__ import annotations

from math import pi

from camshaft.dtypes import DType, f64, i64
from camshaft.emit.llvm_typed import Typed
from camshaft.emit.llvm_values import literal, vector_type

# The digits of 2 / pi after the point, 64 a word, after a word of zeros: what ends where the greatest f64 begins to lack them.
TWO_OVER_PI = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41,
    0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
)  # fmt: skip
LARGE = 2.0**27
_MAGIC = 1.5 * 2.0**52  # added to a number, it leaves the nearest integer in the low bits
# pi / 2 in parts: of 25 bits, whose products with 28 bits are exact; and of 53
_SHORT = (1.5707963109016418, 1.5893254712295857e-08, 6.123233995736766e-17)
_LONG = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
# sin r = r + r z S(z) and cos r = 1 - z / 2 + z^2 C(z), z = r^2, |r| up to pi / 4, highest power first: interpolated at
# Chebyshev's nodes, relative error 2e-11 and 1e-17
SIN = {
    "f32": (2.7249864655139584e-06, -0.0001984008626375544, 0.008333331873887037, -0.16666666663853044),
    "f64": (
        1.5918101230274121e-10, -2.5051131455427948e-08, 2.755731610068303e-06, -0.0001984126983675497,
        0.008333333333330946, -0.16666666666666666,
    ),
}  # fmt: skip
COS = {
    "f32": (-2.730090816799654e-07, 2.480059998353171e-05, -0.0013888887671288109, 0.04166666666431933),
    "f64": (
        -1.1382614868556325e-11, 2.0876146024689747e-09, -2.7557317270560324e-07, 2.4801587298763433e-05,
        -0.0013888888888887396, 0.041666666666666664,
    ),
}  # fmt: skip


def sin(t: Typed, x: str) -> str:
    """sin x: its own sign below 2^-27, where it is x."""
    size = t.call("llvm.fabs", x)
    tiny = t.line(f"fcmp olt {t.type_of()} {size}, {t.const(2.0**-27)}")
    return t.select(tiny, x, _of_turn(t, x, 0))


def cos(t: Typed, x: str) -> str:
    """cos x = sin(x + pi / 2)."""
    return _of_turn(t, x, 1)


def _of_turn(t: Typed, x: str, ahead: int) -> str:
    """sin(x + ahead pi / 2); NaN for infinities."""
    wide, name = t.as_dtype(f64), t.dtype.name
    given = x if t.dtype == f64 else t.line(f"fpext {t.type_of()} {x} to {wide.type_of()}")
    turns, r, low = _cut(wide, given, t.dtype)
    turns = wide.as_dtype(i64).op("add", turns, wide.const(ahead, i64))
    z = wide.op("fmul", r, r)
    sine, cosine = _sine(wide, r, low, z, SIN[name]), _cosine(wide, r, low, z, COS[name])
    ints = wide.as_dtype(i64)
    odd = ints.line(f"icmp ne {ints.type_of()} {ints.op('and', turns, ints.const(1))}, {ints.const(0)}")
    sign = ints.op("shl", ints.op("and", turns, ints.const(2)), ints.const(62))
    bits = ints.op("xor", wide.bitcast(wide.select(odd, cosine, sine), i64), sign)
    y = ints.bitcast(bits, f64)
    return y if t.dtype == f64 else t.line(f"fptrunc {wide.type_of()} {y} to {t.type_of()}")


def _polynomial(t: Typed, z: str, coefficients: tuple[float, ...], low: str | None) -> str:
    """Horner's rule. Without `low` multiply and add may stay apart: an f32 is 29 bits short of an f64."""
    result = t.const(coefficients[0])
    for c in coefficients[1:]:
        if low is None:
            result = t.op("fadd contract", t.op("fmul contract", result, z), t.const(c))
        else:
            result = t.call("llvm.fma", result, z, t.const(c))
    return result


def _sine(t: Typed, r: str, low: str | None, z: str, coefficients: tuple[float, ...]) -> str:
    """r + (r z S(z) + low (1 - z / 2))."""
    s = t.op("fmul", t.op("fmul", r, z), _polynomial(t, z, coefficients, low))
    if low is not None:
        s = t.op("fadd", s, t.op("fmul", low, t.op("fsub", t.const(1.0), t.op("fmul", z, t.const(0.5)))))
    return t.op("fadd", r, s)


def _cosine(t: Typed, r: str, low: str | None, z: str, coefficients: tuple[float, ...]) -> str:
    """1 - z / 2 + (z^2 C(z) - r low), with what rounding 1 - z / 2 lost."""
    half = t.op("fmul", z, t.const(0.5))
    head = t.op("fsub", t.const(1.0), half)
    tail = t.op("fmul", t.op("fmul", z, z), _polynomial(t, z, coefficients, low))
    if low is not None:
        lost = t.op("fsub", t.op("fsub", t.const(1.0), head), half)
        tail = t.op("fadd", lost, t.op("fsub", tail, t.op("fmul", r, low)))
    return t.op("fadd", head, tail)


def _cut(t: Typed, x: str, source: DType) -> tuple[str, str, str | None]:
    """(whole multiples of pi / 2, the rest, and the rest's low part where the source is f64)."""
    shifted = t.op("fadd", t.op("fmul", x, t.const(2 / pi)), t.const(_MAGIC))
    turns, n = t.bitcast(shifted, i64), t.op("fsub", shifted, t.const(_MAGIC))
    low = None
    if source == f64:
        r, low = _cut_long(t, x, n)
    else:
        r = x
        for part in _SHORT:
            r = t.op("fsub", r, t.op("fmul", n, t.const(part)))
    far = t.line(f"fcmp ugt {t.type_of()} {t.call('llvm.fabs', x)}, {t.const(LARGE)}")
    return _far(t, far, x, turns, r, low)


def _cut_long(t: Typed, x: str, n: str) -> tuple[str, str]:
    """x - n pi / 2 as the sum of two: the first product is exact together with its subtraction."""
    first, second, third = (t.const(part) for part in _LONG)
    r = t.call("llvm.fma", t.op("fneg", n), first, x)
    w = t.op("fmul", n, second)
    w_lost = t.call("llvm.fma", n, second, t.op("fneg", w))
    y = t.op("fsub", r, w)
    back = t.op("fsub", y, r)
    lost = t.op("fsub", t.op("fsub", r, t.op("fsub", y, back)), t.op("fadd", w, back))
    return y, t.op("fsub", lost, t.call("llvm.fma", n, third, w_lost))


# --- beyond 2^27 --------------------------------------------------------------------------------------------------------------
def _far(t: Typed, far: str, x: str, turns: str, r: str, low: str | None) -> tuple[str, str, str | None]:
    """The cut with the lanes replaced that are far from 0."""
    one = f"camshaft_cut_far_{'f32' if low is None else 'f64'}"
    t.declare("camshaft_two_over_pi", _table())
    t.declare(one, _one_far(one, precise=low is not None))
    t.declare("llvm.fshl.i64", "declare i64 @llvm.fshl.i64(i64, i64, i64)")
    t.declare("llvm.ctlz.i128", "declare i128 @llvm.ctlz.i128(i128, i1)")
    if low is not None:
        t.declare("llvm.fma.f64", "declare double @llvm.fma.f64(double, double, double)")
    name, given = f"{one}_all{t.n}", low if low is not None else t.const(0.0)
    t.declare(name, _all_far(name, one, t.n))
    typ, ints = t.type_of(), t.type_of(i64)
    result = f"{{ {ints}, {typ}, {typ} }}"
    mask = f"<{t.n} x i1>" if t.n > 1 else "i1"
    arguments = f"{mask} {far}, {typ} {x}, {ints} {turns}, {typ} {r}, {typ} {given}"
    called = t.line(f"call {result} @{name}({arguments})")
    parts = [t.line(f"extractvalue {result} {called}, {i}") for i in range(3)]
    return parts[0], parts[1], None if low is None else parts[2]


def _table() -> str:
    words = ", ".join(f"i64 {w - (w >> 63 << 64)}" for w in TWO_OVER_PI)
    return f"@camshaft_two_over_pi = private unnamed_addr constant [{len(TWO_OVER_PI)} x i64] [{words}]"


def _all_far(name: str, one: str, n: int) -> str:
    """Lane by lane where any lane is far; what is inlined is one branch."""
    typ, ints = vector_type(f64, n), vector_type(i64, n)
    result, single = f"{{ {ints}, {typ}, {typ} }}", "{ i64, double, double }"
    if n <= 1:
        return f"""define private {result} @{name}(i1 %far, double %x, i64 %turns, double %r, double %low) alwaysinline {{
entry:
  %t0 = insertvalue {result} poison, i64 %turns, 0
  %t1 = insertvalue {result} %t0, double %r, 1
  %near = insertvalue {result} %t1, double %low, 2
  br i1 %far, label %slow, label %done
slow:
  %found = call {single} @{one}(double %x)
  br label %done
done:
  %all = phi {result} [ %near, %entry ], [ %found, %slow ]
  ret {result} %all
}}"""
    return f"""define private {result} @{name}(<{n} x i1> %far, {typ} %x, {ints} %turns, {typ} %r, {typ} %low) alwaysinline {{
entry:
  %bits = bitcast <{n} x i1> %far to i{n}
  %some = icmp ne i{n} %bits, 0
  br i1 %some, label %slow, label %done
slow:
  %i = phi i64 [ 0, %entry ], [ %next, %after ]
  %turns0 = phi {ints} [ %turns, %entry ], [ %turns2, %after ]
  %r0 = phi {typ} [ %r, %entry ], [ %r2, %after ]
  %low0 = phi {typ} [ %low, %entry ], [ %low2, %after ]
  %is_far = extractelement <{n} x i1> %far, i64 %i
  br i1 %is_far, label %work, label %after
work:
  %lane = extractelement {typ} %x, i64 %i
  %found = call {single} @{one}(double %lane)
  %f0 = extractvalue {single} %found, 0
  %f1 = extractvalue {single} %found, 1
  %f2 = extractvalue {single} %found, 2
  %turns1 = insertelement {ints} %turns0, i64 %f0, i64 %i
  %r1 = insertelement {typ} %r0, double %f1, i64 %i
  %low1 = insertelement {typ} %low0, double %f2, i64 %i
  br label %after
after:
  %turns2 = phi {ints} [ %turns0, %slow ], [ %turns1, %work ]
  %r2 = phi {typ} [ %r0, %slow ], [ %r1, %work ]
  %low2 = phi {typ} [ %low0, %slow ], [ %low1, %work ]
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {n}
  br i1 %more, label %slow, label %done
done:
  %turns3 = phi {ints} [ %turns, %entry ], [ %turns2, %after ]
  %r3 = phi {typ} [ %r, %entry ], [ %r2, %after ]
  %low3 = phi {typ} [ %low, %entry ], [ %low2, %after ]
  %s0 = insertvalue {result} poison, {ints} %turns3, 0
  %s1 = insertvalue {result} %s0, {typ} %r3, 1
  %s2 = insertvalue {result} %s1, {typ} %low3, 2
  ret {result} %s2
}}"""


def _one_far(name: str, precise: bool) -> str:
    """x = m 2^e: of m 2 / pi only the bits from the quarter turn's on are made, 192 of them; the top two count the quarters."""
    head, tail = literal(_LONG[0], f64), literal(_LONG[1], f64)
    low = f"""  %p_neg = fneg double %p
  %p_lost = call double @llvm.fma.f64(double %dh, double {head}, double %p_neg)
  %q1 = fmul double %dh, {tail}
  %q2 = fmul double %dl, {head}
  %q3 = fadd double %q1, %q2
  %q4 = fadd double %p_lost, %q3
  %r_size = fadd double %p, %q4
  %r_back = fsub double %p, %r_size
  %low_size = fadd double %r_back, %q4"""
    single = f"""  %q2 = fmul double %dl, {head}
  %r_size = fadd double %p, %q2
  %low_size = fadd double 0.0, 0.0"""
    return f"""define private {{ i64, double, double }} @{name}(double %x) noinline {{
  %signed = bitcast double %x to i64
  %bits = and i64 %signed, {(1 << 63) - 1}
  %e = lshr i64 %bits, 52
  %m0 = and i64 %bits, {(1 << 52) - 1}
  %m = or i64 %m0, {1 << 52}
  %at = sub i64 %e, 1013
  %word = lshr i64 %at, 6
  %shift = and i64 %at, 63
  %a0 = getelementptr i64, ptr @camshaft_two_over_pi, i64 %word
  %a1 = getelementptr i64, ptr %a0, i64 1
  %a2 = getelementptr i64, ptr %a0, i64 2
  %a3 = getelementptr i64, ptr %a0, i64 3
  %w0 = load i64, ptr %a0
  %w1 = load i64, ptr %a1
  %w2 = load i64, ptr %a2
  %w3 = load i64, ptr %a3
  %h0 = call i64 @llvm.fshl.i64(i64 %w0, i64 %w1, i64 %shift)
  %h1 = call i64 @llvm.fshl.i64(i64 %w1, i64 %w2, i64 %shift)
  %h2 = call i64 @llvm.fshl.i64(i64 %w2, i64 %w3, i64 %shift)
  %wm = zext i64 %m to i128
  %p2w = zext i64 %h2 to i128
  %p1w = zext i64 %h1 to i128
  %m2 = mul i128 %p2w, %wm
  %m1 = mul i128 %p1w, %wm
  %m0w = mul i64 %h0, %m
  %carry = lshr i128 %m2, 64
  %mid = add i128 %m1, %carry
  %top = zext i64 %m0w to i128
  %top_up = shl i128 %top, 64
  %turned = add i128 %mid, %top_up
  %quarters = lshr i128 %turned, 126
  %count = trunc i128 %quarters to i64
  %last = trunc i128 %m2 to i64
  %last_bits = lshr i64 %last, 62
  %last_wide = zext i64 %last_bits to i128
  %left = shl i128 %turned, 2
  %part = or i128 %left, %last_wide
  %above = icmp slt i128 %part, 0
  %one = zext i1 %above to i64
  %near = add i64 %count, %one
  %minus = sub i128 0, %part
  %size = select i1 %above, i128 %minus, i128 %part
  %zeros = call i128 @llvm.ctlz.i128(i128 %size, i1 false)
  %full = shl i128 %size, %zeros
  %up = lshr i128 %full, 64
  %hi = trunc i128 %up to i64
  %lo = trunc i128 %full to i64
  %hi_top = and i64 %hi, -2048
  %hi_rest = shl i64 %hi, 53
  %lo_top = lshr i64 %lo, 11
  %rest = or i64 %hi_rest, %lo_top
  %th = uitofp i64 %hi_top to double
  %tl = uitofp i64 %rest to double
  %z = trunc i128 %zeros to i64
  %exponent = sub i64 {1023 - 64}, %z
  %exponent_bits = shl i64 %exponent, 52
  %scale = bitcast i64 %exponent_bits to double
  %dh = fmul double %th, %scale
  %tls = fmul double %tl, {literal(2.0**-53, f64)}
  %dl = fmul double %tls, %scale
  %p = fmul double %dh, {head}
{low if precise else single}
  %negative = icmp slt i64 %signed, 0
  %turn_back = xor i1 %negative, %above
  %r_minus = fneg double %r_size
  %low_minus = fneg double %low_size
  %r_real = select i1 %turn_back, double %r_minus, double %r_size
  %low_real = select i1 %turn_back, double %low_minus, double %low_size
  %near_minus = sub i64 0, %near
  %turns = select i1 %negative, i64 %near_minus, i64 %near
  %finite = icmp ult i64 %e, 2047
  %r = select i1 %finite, double %r_real, double {literal(float("nan"), f64)}
  %result0 = insertvalue {{ i64, double, double }} poison, i64 %turns, 0
  %result1 = insertvalue {{ i64, double, double }} %result0, double %r, 1
  %result2 = insertvalue {{ i64, double, double }} %result1, double %low_real, 2
  ret {{ i64, double, double }} %result2
}}"""
