"""Quarter turns in a number far from 0, for sin and cos in LLVM: text of helper functions.

What is inlined is one branch, taken where any lane is far; then lanes go one by one (Payne and Hanek's reduction).
"""

from __future__ import annotations

from camshaft.dtypes import f64, i64
from camshaft.emit.llvm.typed import Typed
from camshaft.emit.llvm.values import literal, vector_type

# The digits of 2 / pi after the point, 64 a word, after a word of zeros: what ends where the greatest f64 begins to lack them.
TWO_OVER_PI = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41,
    0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
)  # fmt: skip
# pi / 2 in parts of 53 bits
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)


def replace_far(t: Typed, far: str, x: str, turns: str, r: str, low: str | None) -> tuple[str, str, str | None]:
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
    head, tail = literal(HALF_PI[0], f64), literal(HALF_PI[1], f64)
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
