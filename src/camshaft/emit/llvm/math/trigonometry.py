"""sin and cos in LLVM for f32 and f64: x is cut to within a quarter of pi of 0, then polynomials.

Both dtypes are computed in f64. Up to 2^27 the cut subtracts multiples of pi / 2 in parts; beyond, where that would need a pi of
a thousand digits, lanes go one by one through a function that multiplies with the digits of 2 / pi that matter (Payne and Hanek).
Accuracy is stated in lang/instructions.py.
"""

from __future__ import annotations

from math import pi

from camshaft.dtypes import DType, f64, i64
from camshaft.emit.llvm.math.payne_hanek import HALF_PI, replace_far
from camshaft.emit.llvm.typed import Typed

LARGE = 2.0**27
_MAGIC = 1.5 * 2.0**52  # added to a number, it leaves the nearest integer in the low bits
# pi / 2 in parts of 25 bits, whose products with 28 bits are exact
_SHORT = (1.5707963109016418, 1.5893254712295857e-08, 6.123233995736766e-17)
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
    return replace_far(t, far, x, turns, r, low)


def _cut_long(t: Typed, x: str, n: str) -> tuple[str, str]:
    """x - n pi / 2 as the sum of two: the first product is exact together with its subtraction."""
    first, second, third = (t.const(part) for part in HALF_PI)
    r = t.call("llvm.fma", t.op("fneg", n), first, x)
    w = t.op("fmul", n, second)
    w_lost = t.call("llvm.fma", n, second, t.op("fneg", w))
    y = t.op("fsub", r, w)
    back = t.op("fsub", y, r)
    lost = t.op("fsub", t.op("fsub", r, t.op("fsub", y, back)), t.op("fadd", w, back))
    return y, t.op("fsub", lost, t.call("llvm.fma", n, third, w_lost))
