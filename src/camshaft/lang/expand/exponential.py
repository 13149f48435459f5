"""exp, log, tanh and scale in Kernel IR for f32 and f64: polynomials, with the constants of each dtype in one row.

Their accuracy is stated in lang/instructions.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial

from camshaft.dtypes import DType, i32, i64, u32, u64
from camshaft.lang import ir
from camshaft.lang.expand.expander import Expander


@dataclass(frozen=True)
class FloatForm:
    """The bit layout and the constants of a float dtype.

    ln 2 = high + low, with high short enough that n * high is exact. x + `shifter` rounds x to an integer, which is in the low
    bits of the sum. `exp` approximates e^r, |r| <= ln 2 / 2, highest power first.
    """

    signed: DType
    unsigned: DType
    mantissa_bits: int
    bias: int
    sqrt_half_bits: int
    exp_low: float
    exp_high: float
    ln2_high: float
    ln2_low: float
    exp: tuple[float, ...]
    log_terms: int
    # tanh x = x + x z P(z) / Q(z), z = x^2, for |x| < 0.625 (Cephes, S. Moshier)
    tanh_p: tuple[float, ...]
    tanh_q: tuple[float, ...]

    @property
    def shifter(self) -> float:
        return 1.5 * 2.0**self.mantissa_bits

    @property
    def shifter_bits(self) -> int:
        return (self.bias + self.mantissa_bits << self.mantissa_bits) + (1 << self.mantissa_bits - 1)


FORMS: dict[str, FloatForm] = {
    "f32": FloatForm(
        signed=i32,
        unsigned=u32,
        mantissa_bits=23,
        bias=127,
        sqrt_half_bits=0x3F3504F3,
        exp_low=-104.0,
        exp_high=89.0,
        ln2_high=0.693145751953125,
        ln2_low=1.42860682030941723212e-6,
        # minimax relative error with 1 + r exact: 3.1e-9 (by reweighted least squares)
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
        signed=i64,
        unsigned=u64,
        mantissa_bits=52,
        bias=1023,
        sqrt_half_bits=0x3FE6A09E667F3BCD,
        exp_low=-746.0,
        exp_high=710.0,
        ln2_high=6.93147180369123816490e-01,
        ln2_low=1.90821492927058770002e-10,
        exp=tuple(1 / factorial(i) for i in range(13, -1, -1)),
        log_terms=11,
        tanh_p=(-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3),
        tanh_q=(1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3),
    ),
}


def exp(k: Expander, x: ir.Value) -> ir.Value:
    """e^x: x = n ln 2 + r, a polynomial in r, times 2^n."""
    form = FORMS[x.dtype.name]
    clamped = k.select(x < form.exp_low, form.exp_low, x)
    clamped = k.select(clamped > form.exp_high, form.exp_high, clamped)
    shifted = k.fma(clamped, 1.4426950408889634, form.shifter)
    n = shifted - form.shifter
    r = k.fma(n, -form.ln2_high, clamped)
    r = k.fma(n, -form.ln2_low, r)
    p = k.polynomial(r, form.exp)
    return _times_power(k, p, shifted) if "scale" in k.expansions else k.apply("scale", p, n)


def scale(k: Expander, p: ir.Value, n: ir.Value) -> ir.Value:
    """p 2^n for integer n."""
    return _times_power(k, p, n + FORMS[p.dtype.name].shifter)


def _times_power(k: Expander, p: ir.Value, shifted: ir.Value) -> ir.Value:
    """p 2^n in two factors, so that subnormal results are correct. n is in the low bits of `shifted`, arbitrary for NaN p."""
    form = FORMS[p.dtype.name]
    whole = k.bitcast(shifted, form.unsigned) - form.shifter_bits
    half = k.bitcast(k.bitcast(whole, form.signed) >> 1, form.unsigned)
    return p * _power_of_two(k, p.dtype, half) * _power_of_two(k, p.dtype, whole - half)


def _power_of_two(k: Expander, dtype: DType, exponent: ir.Value) -> ir.Value:
    """2^exponent, built from the bits; the result must be a normal number."""
    form = FORMS[dtype.name]
    return k.bitcast((exponent + form.bias) << form.mantissa_bits, dtype)


def log(k: Expander, x: ir.Value) -> ir.Value:
    """ln x: x = 2^e m with m from sqrt(1/2) to sqrt(2); ln m = 2 atanh(s), s = (m - 1) / (m + 1), by its odd series."""
    form = FORMS[x.dtype.name]
    tiny, up = x < 2.0 ** (1 - form.bias), form.mantissa_bits + 1
    bits = k.bitcast(k.select(tiny, x * 2.0**up, x), form.unsigned)
    # subtracting the bits of sqrt(1/2) makes the exponent change where the mantissa crosses sqrt(1/2)
    e = k.bitcast(bits - form.sqrt_half_bits, form.signed) >> form.mantissa_bits
    m = k.bitcast(bits - (k.bitcast(e, form.unsigned) << form.mantissa_bits), x.dtype)
    exponent = e.to(x.dtype) - k.select(tiny, k.const(float(up), x.dtype), 0.0)
    result = _log_sum(k, exponent, m - 1.0)
    infinity = float("inf")
    result = k.select(x == 0.0, -infinity, result)
    result = k.select(x == infinity, x, result)
    return k.select(x >= 0.0, result, float("nan"))


def _log_sum(k: Expander, exponent: ir.Value, f: ir.Value) -> ir.Value:
    """exponent * ln 2 + ln(1 + f)."""
    form = FORMS[f.dtype.name]
    s = f / (f + 2.0)
    z = s * s
    series = k.polynomial(z, tuple(2 / (2 * i + 1) for i in range(form.log_terms, 0, -1)))
    # ln m = f - s (f - z series): keeps the rounding of f out of the small term
    tail = s * (f - z * series)
    low = k.fma(exponent, form.ln2_low, -tail)
    return k.fma(exponent, form.ln2_high, f + low)


def tanh(k: Expander, x: ir.Value) -> ir.Value:
    """tanh |x| = (1 - u) / (1 + u), u = e^(-2|x|); below 0.625 x + x z P(z) / Q(z), z = x^2."""
    form, size = FORMS[x.dtype.name], k.abs(x)
    u = k.exp(size * -2.0)
    large = (1.0 - u) / (1.0 + u)
    z = x * x
    ratio = k.polynomial(z, form.tanh_p)
    if form.tanh_q:
        ratio = ratio / k.polynomial(z, form.tanh_q)
    return with_sign(k, k.select(size < 0.625, k.fma(ratio * z, x, x), large), x)


def with_sign(k: Expander, size: ir.Value, x: ir.Value) -> ir.Value:
    """`size` with the sign of x."""
    word, sign = FORMS[x.dtype.name].unsigned, 1 << x.dtype.bits - 1
    return k.bitcast((k.bitcast(size, word) & sign - 1) | (k.bitcast(x, word) & sign), x.dtype)
