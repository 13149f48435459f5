"""exp, log and tanh in LLVM for f32 and f64: polynomials, with the constants of each dtype in one row.

Their accuracy is stated in lang/instructions.py and held there by tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial

from camshaft.dtypes import DType, i32, i64
from camshaft.emit.llvm.typed import Typed
from camshaft.emit.llvm.values import vector_type

_MOST_BITS = 512


def scaled(t: Typed, p: str, n: str) -> str:
    """p 2^n for whole n, rounded once; a vector of more than a register's bits in pieces. For targets that have it."""
    count = min(t.n, _MOST_BITS // t.dtype.bits)
    pieces = [_piece(t, count, *(_slice(t, x, start, count) for x in (p, n))) for start in range(0, t.n, count)]
    while len(pieces) > 1:
        pieces = [_joined(t, count, a, b) for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
        count *= 2
    return pieces[0]


def _piece(t: Typed, count: int, p: str, n: str) -> str:
    bits, typ = count * t.dtype.bits, vector_type(t.dtype, count)
    name = f"llvm.x86.avx512.mask.scalef.{'ps' if t.dtype.bits == 32 else 'pd'}.{bits}"
    mask = f"i{max(count, 8)}"
    rounding = ", i32" if bits == _MOST_BITS else ""
    t.declare(name, f"declare {typ} @{name}({typ}, {typ}, {typ}, {mask}{rounding})")
    current = ", i32 4" if rounding else ""
    return t.line(f"call {typ} @{name}({typ} {p}, {typ} {n}, {typ} zeroinitializer, {mask} -1{current})")


def _slice(t: Typed, x: str, start: int, count: int) -> str:
    if count == t.n:
        return x
    order = ", ".join(f"i32 {i}" for i in range(start, start + count))
    return t.line(f"shufflevector {t.type_of()} {x}, {t.type_of()} poison, <{count} x i32> <{order}>")


def _joined(t: Typed, count: int, a: str, b: str) -> str:
    order = ", ".join(f"i32 {i}" for i in range(2 * count))
    typ = vector_type(t.dtype, count)
    return t.line(f"shufflevector {typ} {a}, {typ} {b}, <{2 * count} x i32> <{order}>")


@dataclass(frozen=True)
class FloatForm:
    """A float dtype's layout and its constants. ln 2 = high + low, high short enough that n * high is exact. What is added to
    `shifter` is rounded to a whole number, in its low bits; `exp` approximates e^r, |r| <= ln 2 / 2, highest power first.
    """

    integer: DType
    mantissa_bits: int
    bias: int
    sqrt_half_bits: int
    smallest_normal: float
    exp_low: float
    exp_high: float
    ln2_high: float
    ln2_low: float
    shifter: float
    exp: tuple[float, ...]
    log_terms: int
    # tanh x = x + x z P(z) / Q(z), z = x^2, for |x| < 0.625 (Cephes, S. Moshier)
    tanh_p: tuple[float, ...]
    tanh_q: tuple[float, ...]


FORMS: dict[str, FloatForm] = {
    "f32": FloatForm(
        integer=i32,
        mantissa_bits=23,
        bias=127,
        sqrt_half_bits=0x3F3504F3,
        smallest_normal=2.0**-126,
        exp_low=-104.0,
        exp_high=89.0,
        ln2_high=0.693145751953125,
        ln2_low=1.42860682030941723212e-6,
        shifter=1.5 * 2.0**23,
        # the least greatest relative error with 1 + r exact, 3.1e-9 (by reweighted least squares)
        exp=(
            0.0013814583653584123,
            0.008368724025785923,
            0.04166838899254799,
            0.1666652113199234,
            0.4999999403953552,
            1,
            1,
        ),
        log_terms=5,
        tanh_p=(-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1),
        tanh_q=(),
    ),
    "f64": FloatForm(
        integer=i64,
        mantissa_bits=52,
        bias=1023,
        sqrt_half_bits=0x3FE6A09E667F3BCD,
        smallest_normal=2.0**-1022,
        exp_low=-746.0,
        exp_high=710.0,
        ln2_high=6.93147180369123816490e-01,
        ln2_low=1.90821492927058770002e-10,
        shifter=1.5 * 2.0**52,
        exp=tuple(1 / factorial(i) for i in range(13, -1, -1)),
        log_terms=11,
        tanh_p=(-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3),
        tanh_q=(1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3),
    ),
}


def _polynomial(t: Typed, x: str, coefficients: tuple[float, ...]) -> str:
    """Horner's rule, highest power first."""
    result = t.const(coefficients[0])
    for c in coefficients[1:]:
        result = t.call("llvm.fma", result, x, t.const(c))
    return result


def _compare(t: Typed, predicate: str, a: str, b: str) -> str:
    return t.line(f"fcmp {predicate} {t.type_of()} {a}, {b}")


def _bits(t: Typed, x: str, ints: Typed) -> str:
    return t.line(f"bitcast {t.type_of()} {x} to {ints.type_of()}")


def _power_of_two(t: Typed, ints: Typed, form: FloatForm, exponent: str) -> str:
    """2 ** exponent for exponents of normal numbers, by the float's bits."""
    biased = ints.op("add", exponent, ints.const(form.bias))
    shifted = ints.op("shl", biased, ints.const(form.mantissa_bits))
    return t.line(f"bitcast {ints.type_of()} {shifted} to {t.type_of()}")


def _clamp(t: Typed, x: str, low: str, high: str) -> str:
    """x within low..high; NaN stays NaN."""
    above = t.select(_compare(t, "olt", x, low), low, x)
    return t.select(_compare(t, "ogt", above, high), high, above)


def exp(t: Typed, x: str) -> str:
    """e^x: x = n ln 2 + r, a polynomial in r, times 2^n."""
    form = FORMS[t.dtype.name]
    clamped = _clamp(t, x, t.const(form.exp_low), t.const(form.exp_high))
    shifted = t.call("llvm.fma", clamped, t.const(1.4426950408889634), t.const(form.shifter))
    n = t.op("fsub", shifted, t.const(form.shifter))
    r = t.call("llvm.fma", n, t.const(-form.ln2_high), clamped)
    r = t.call("llvm.fma", n, t.const(-form.ln2_low), r)
    p = _polynomial(t, r, form.exp)
    if t.target.has_scale and t.n * t.dtype.bits >= 128:
        return scaled(t, p, n)
    return _times_power(t, form, p, shifted)


def _times_power(t: Typed, form: FloatForm, p: str, shifted: str) -> str:
    """p 2^n in two factors, so that subnormal results are right; n in the low bits of `shifted`. Any bits go with a p of NaN."""
    ints = t.as_dtype(form.integer)
    whole = ints.op("sub", _bits(t, shifted, ints), _bits(t, t.const(form.shifter), ints))
    half = ints.op("ashr", whole, ints.const(1))
    product = t.op("fmul", p, _power_of_two(t, ints, form, half))
    return t.op("fmul", product, _power_of_two(t, ints, form, ints.op("sub", whole, half)))


def log(t: Typed, x: str) -> str:
    """ln x: x = 2^k m with m from sqrt(1/2) to sqrt(2); ln m = 2 atanh(s), s = (m - 1) / (m + 1), by its odd series."""
    form = FORMS[t.dtype.name]
    ints = t.as_dtype(form.integer)
    tiny = _compare(t, "olt", x, t.const(form.smallest_normal))
    up = form.mantissa_bits + 1
    normal = t.select(tiny, t.op("fmul", x, t.const(2.0**up)), x)
    bits = _bits(t, normal, ints)
    # subtracting sqrt(1/2)'s bits puts the exponent's step where the mantissa passes it
    shifted = ints.op("sub", bits, ints.const(form.sqrt_half_bits))
    k = ints.op("ashr", shifted, ints.const(form.mantissa_bits))
    mantissa_bits = ints.op("sub", bits, ints.op("shl", k, ints.const(form.mantissa_bits)))
    m = t.line(f"bitcast {ints.type_of()} {mantissa_bits} to {t.type_of()}")
    exponent = t.line(f"sitofp {ints.type_of()} {k} to {t.type_of()}")
    exponent = t.op("fsub", exponent, t.select(tiny, t.const(float(up)), t.const(0.0)))
    f = t.op("fsub", m, t.const(1.0))
    return _log_limits(t, x, _log_sum(t, form, exponent, f))


def _log_sum(t: Typed, form: FloatForm, exponent: str, f: str) -> str:
    """exponent * ln 2 + ln(1 + f)."""
    s = t.op("fdiv", f, t.op("fadd", f, t.const(2.0)))
    z = t.op("fmul", s, s)
    series = _polynomial(t, z, tuple(2 / (2 * i + 1) for i in range(form.log_terms, 0, -1)))
    # ln m = f - s (f - z series): keeps the rounding of f out of the small term
    tail = t.op("fmul", s, t.op("fsub", f, t.op("fmul", z, series)))
    low = t.call("llvm.fma", exponent, t.const(form.ln2_low), t.op("fneg", tail))
    return t.call("llvm.fma", exponent, t.const(form.ln2_high), t.op("fadd", f, low))


def _log_limits(t: Typed, x: str, result: str) -> str:
    """ln 0 = -inf, ln inf = inf; NaN below 0 and of NaN."""
    zero, infinity = t.const(0.0), t.const(float("inf"))
    result = t.select(_compare(t, "oeq", x, zero), t.const(float("-inf")), result)
    result = t.select(_compare(t, "oeq", x, infinity), x, result)
    return t.select(_compare(t, "ult", x, zero), t.const(float("nan")), result)


def tanh(t: Typed, x: str) -> str:
    """tanh |x| = (1 - u) / (1 + u), u = e^(-2|x|); below 0.625 x + x z P(z) / Q(z), z = x^2."""
    form = FORMS[t.dtype.name]
    magnitude = t.call("llvm.fabs", x)
    u = exp(t, t.op("fmul", magnitude, t.const(-2.0)))
    large = t.op("fdiv", t.op("fsub", t.const(1.0), u), t.op("fadd", t.const(1.0), u))
    z = t.op("fmul", x, x)
    p = _polynomial(t, z, form.tanh_p)
    if form.tanh_q:
        p = t.op("fdiv", p, _polynomial(t, z, form.tanh_q))
    small = t.call("llvm.fma", t.op("fmul", p, z), x, x)
    result = t.select(_compare(t, "olt", magnitude, t.const(0.625)), small, large)
    return t.call("llvm.copysign", result, x)
