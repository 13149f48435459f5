"""sin and cos in Kernel IR for f32 and f64: argument reduction to |r| <= pi / 4, then polynomials.

Both dtypes are computed in f64. For |x| up to 2^27 the reduction subtracts a multiple of pi / 2 in parts (Cody and Waite);
beyond, it multiplies by the significant digits of 2 / pi (payne_hanek.py). Accuracy is stated in lang/instructions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi

from camshaft.dtypes import DType, f64, u32, u64
from camshaft.lang import ir
from camshaft.lang.expand.expander import Expander
from camshaft.lang.expand.payne_hanek import HALF_PI, cut_far_f32, cut_far_f64

LARGE = 2.0**27
_MAGIC = 1.5 * 2.0**52  # adding it rounds to the nearest integer, in the low bits
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


def sin(k: Expander, x: ir.Value) -> ir.Value:
    """sin x; x itself for |x| < 2^-27, which keeps the sign of 0."""
    return k.select(k.abs(x) < 2.0**-27, x, _of_turn(k, x, 0))


def cos(k: Expander, x: ir.Value) -> ir.Value:
    """cos x = sin(x + pi / 2)."""
    return _of_turn(k, x, 1)


def _of_turn(k: Expander, x: ir.Value, ahead: int) -> ir.Value:
    """sin(x + ahead pi / 2); NaN for infinities."""
    turns, r, low = _cut(k, x)
    turns, z, name = turns + ahead, r * r, x.dtype.name
    sine, cosine = _sine(k, r, low, z, SIN[name]), _cosine(k, r, low, z, COS[name])
    y = k.select((turns & 1) != 0, cosine, sine)
    return k.cast(k.bitcast(k.bitcast(y, u64) ^ ((turns & 2) << 62), f64), x.dtype)


def _polynomial(k: Expander, z: ir.Value, coefficients: tuple[float, ...], low: ir.Value | None) -> ir.Value:
    """Horner's rule. Without `low` (an f32) multiply and add need not fuse: f64 has 29 bits to spare."""
    if low is not None:
        return k.polynomial(z, coefficients)
    result = k.const(coefficients[0], f64)
    for c in coefficients[1:]:
        result = k.multiply_add(result, z, k.const(c, f64))
    return result


def _sine(k: Expander, r: ir.Value, low: ir.Value | None, z: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    """r + (r z S(z) + low (1 - z / 2))."""
    s = r * z * _polynomial(k, z, coefficients, low)
    if low is not None:
        s = s + low * (1.0 - z * 0.5)
    return r + s


def _cosine(k: Expander, r: ir.Value, low: ir.Value | None, z: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    """1 - z / 2 + (z^2 C(z) - r low), with the rounding error of 1 - z / 2."""
    half = z * 0.5
    head = 1.0 - half
    tail = z * z * _polynomial(k, z, coefficients, low)
    if low is not None:
        tail = (1.0 - head - half) + (tail - r * low)
    return head + tail


def _cut(k: Expander, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """(whole multiples of pi / 2, the rest, and the rest's low part for an f64); shared by sin and cos of one x."""
    key = "cut", x
    if key not in k.known:
        k.known[key] = _cut_wide(k, k.cast(x, f64), x.dtype)
    parts = k.known[key]
    return parts[0], parts[1], parts[2] if x.dtype == f64 else None


def _cut_wide(k: Expander, x: ir.Value, source: DType) -> list[ir.Value]:
    shifted = x * (2 / pi) + _MAGIC
    turns, n = k.bitcast(shifted, u64), shifted - _MAGIC
    if source == f64:
        near = [turns, *_cut_long(k, x, n)]
    else:
        r = x
        for part in _SHORT:
            r = r - n * part
        near = [turns, r]
    return _replaced(k, x, near, cut_far_f64 if source == f64 else cut_far_f32)


def _replaced(
    k: Expander, x: ir.Value, near: list[ir.Value], cut: Callable[[Expander, ir.Value], tuple[ir.Value, ...]]
) -> list[ir.Value]:
    """Replace `near` by the result of `cut` where |x| > LARGE; a branch skips it if no element is that large."""
    far = k.abs(x) > LARGE
    parts = [k.var(part) for part in near]
    some = k.vector_max(k.select(far, k.const(1, u32), k.const(0, u32))) != 0 if far.width else far
    with k.when(some):
        given = k.select(far, x, 2 * LARGE) if far.width else x
        for part, old, new in zip(parts, near, cut(k, given), strict=True):
            part.set(k.select(far, new, old) if far.width else new)
    return [part.value for part in parts]


def _cut_long(k: Expander, x: ir.Value, n: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x - n pi / 2 as a sum of two f64; the first multiply-subtract is exact."""
    first, second, third = HALF_PI
    r = k.fma(-n, first, x)
    w = n * second
    w_lost = k.fma(n, second, -w)
    y = r - w
    back = y - r
    lost = (r - (y - back)) - (w + back)
    return y, lost - k.fma(n, third, w_lost)
