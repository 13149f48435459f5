"""Kernel expressions of `power`, `floor_divide` and `remainder`, for floats and integers.

power of floats is e^(y ln |x|) with ln |x| as the sum of two f64 (60 bits and more), so f32 is within 1 ulp
and f64 within 2 ulp; it needs 64-bit floats, which WGSL and Metal lack. Remainders of floats are exact for any quotient where
the target's fma rounds once; WGSL drivers' does not.
"""

from __future__ import annotations

from camshaft.dtypes import f64, i64, u64
from camshaft.lang import Tracer, ir

_SQRT_HALF, _MANTISSA = 0x3FE6A09E667F3BCD, 52
_LN2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10)
_THIRD = (2 / 3, 3.700743415417188e-17)
# dtype -> (bits of the quotient that one step reduces, steps from the largest to the smallest number)
_STEPS = {"f32": (23, 13), "f64": (52, 41)}


# --- remainders ---------------------------------------------------------------------------------------------------------
def _step(k: Tracer, r: ir.Value, by: ir.Value) -> ir.Value:
    """r mod by, both above 0, for quotients below 2^24 (f64: 2^53). Exact, because the quotient is off by at most one."""
    rest = k.fma(-k.trunc(r / by), by, r)
    rest = k.select(rest < 0.0, rest + by, rest)
    return k.select(rest >= by, rest - by, rest)


def _modulo(k: Tracer, a: ir.Value, b: ir.Value) -> ir.Value:
    """|a| mod |b|; NaN for an infinite a and for b = 0."""
    bits, steps = _STEPS[a.dtype.name]
    size, by = k.abs(a), k.abs(b)
    r = k.var(size, a.dtype)
    with k.when(size > by * 2.0**bits):
        multiples = [by]
        for _ in range(steps):
            multiples.append(multiples[-1] * 2.0**bits)
        for multiple in reversed(multiples[1:]):
            r.set(k.select(multiple < float("inf"), _step(k, r.value, multiple), r.value))
    infinite = by == float("inf")
    return k.select(infinite & (size < float("inf")), size, _step(k, r.value, by))


def _divided(k: Tracer, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """floor(a / b) and the remainder with b's sign, both as NumPy has them step by step: first a mod b with a's sign."""
    rest = _modulo(k, a, b)
    signed = k.select(a < 0.0, -rest, rest)
    quotient = (a - signed) / b
    below, adjusts = b < 0.0, (rest != 0.0) & ((a < 0.0) ^ (b < 0.0))
    quotient = k.select(adjusts, quotient - 1.0, quotient)
    floor, zero = k.floor(quotient), k.const(0.0, a.dtype)
    nearest = k.select(quotient - floor > 0.5, floor + 1.0, floor)
    # zeros: of the quotient with the sign of a / b, of the remainder with b's
    whole = k.select(quotient == 0.0, a / b * 0.0, nearest)
    return whole, k.select(adjusts, signed + b, k.select(rest == 0.0, k.select(below, -zero, zero), signed))


def remainder(k: Tracer, a: ir.Value, b: ir.Value) -> ir.Value:
    """a - floor(a / b) b of floats, with b's sign."""
    return _divided(k, a, b)[1]


def floor_divide(k: Tracer, a: ir.Value, b: ir.Value) -> ir.Value:
    """floor(a / b) of floats; a / 0 as in a division."""
    return k.select(b == 0.0, a / b, _divided(k, a, b)[0])


# --- powers -------------------------------------------------------------------------------------------------------------
def power(k: Tracer, x: ir.Value, y: ir.Value) -> ir.Value:
    """x^y. Integers by squaring, wrapping; to a negative power 0, but for 1 and -1."""
    if x.dtype.is_float:
        return _float_power(k, x.to(f64), y.to(f64)).to(x.dtype)
    wide = x.dtype == i64
    base, exponent = (k.bitcast(v, u64) if wide else v for v in (x, y))
    result = k.select((exponent & 1) == 1, base, 1)
    for bit in range(1, x.dtype.bits - (x.dtype.kind == "i")):
        base = base * base
        result = k.select(((exponent >> bit) & 1) == 1, result * base, result)
    result = k.bitcast(result, i64) if wide else result
    if x.dtype.kind == "u":
        return result
    to_negative = k.select((y & 1) == 1, x, x * x)
    return k.select(y >= 0, result, k.select((x == 1) | (x == -1), to_negative, 0))


def _float_power(k: Tracer, x: ir.Value, y: ir.Value) -> ir.Value:
    size = k.abs(x)
    inf = float("inf")
    finite = (size > 0.0) & (size < inf) & (k.abs(y) < inf)
    high, low = _log(k, k.select(finite, size, 1.0))
    # y (high + low) as the sum of two f64, clamped where the result overflows or underflows anyway
    clamped = k.minimum(k.maximum(k.select(finite, y, 1.0), -1e22), 1e22)
    product = clamped * high
    product = k.minimum(k.maximum(product, -1500.0), 1500.0)
    rest = k.fma(clamped, low, k.fma(clamped, high, -product))
    rest = k.select(k.abs(product) < 1500.0, rest, 0.0)
    power_ = k.exp(product)
    result = k.select(power_ < inf, k.fma(power_, rest, power_), power_)
    result = k.select(finite, result, k.exp(y * k.log(size)))
    return _with_sign(k, x, y, result)


def _with_sign(k: Tracer, x: ir.Value, y: ir.Value, result: ir.Value) -> ir.Value:
    """x^y from |x|^y: negative for odd y and x below 0, NaN for fractional y and x below 0; 1 for y = 0 and for x = 1."""
    inf = float("inf")
    integer = k.trunc(y) == y
    odd = integer & (k.trunc(y * 0.5) != y * 0.5) & (k.abs(y) < inf)
    below = k.bitcast(x, i64) < 0
    result = k.select(below & odd, -result, result)
    fraction = (k.trunc(y) != y) & (x < 0.0) & (x > -inf) & (k.abs(y) < inf)
    result = k.select(fraction, float("nan"), result)
    result = k.select((k.abs(x) == 1.0) & (k.abs(y) == inf), 1.0, result)
    return k.select((y == 0.0) | (x == 1.0), 1.0, result)


def _log(k: Tracer, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """ln x of a finite x above 0 as the sum of two f64: x = 2^n m, ln m = 2 s + 2 s^3 / 3 + .., s = (m - 1) / (m + 1)."""
    tiny = x < 2.0**-1022
    bits = k.bitcast(k.select(tiny, x * 2.0**53, x), u64)
    n = (k.bitcast(bits, i64) - _SQRT_HALF) >> _MANTISSA
    m = k.bitcast(k.bitcast(bits, i64) - (n << _MANTISSA), f64)
    exponent = n.to(f64)
    exponent = k.select(tiny, exponent - 53.0, exponent)
    f = m - 1.0
    g = m + 1.0  # rounded; g_low is the error
    g_low = f - (g - 2.0)
    s = f / g
    s_low = (k.fma(-s, g, f) - s * g_low) / g
    z = s * s
    series = z * (2 / 25) + 2 / 23
    for i in range(21, 3, -2):
        series = k.fma(series, z, 2 / i)
    cube = z * s
    cube_low = k.fma(z, s, -cube) + k.fma(s, s, -z) * s + 3.0 * z * s_low
    # 2 s^3 / 3 as the sum of two
    third = cube * _THIRD[0]
    third_low = k.fma(cube, _THIRD[0], -third) + cube * _THIRD[1] + cube_low * _THIRD[0]
    rest = series * z * cube
    tail = 2.0 * s_low + third_low + rest
    first, first_low = _two_sum(2.0 * s, third)
    total, total_low = _two_sum(exponent * _LN2[0], first)
    low = total_low + first_low + tail + exponent * _LN2[1]
    return _two_sum(total, low)


def _two_sum(a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """a + b and its rounding error."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)
