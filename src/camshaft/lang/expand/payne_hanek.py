"""Quarter turns in a number far from 0, for sin and cos: Payne and Hanek's reduction in 64-bit integers.

x = m 2^e. Only the bits of m 2 / pi from weight 2 down are computed; the top two are the quadrant. An f64 needs 192 bits,
because up to 62 bits of the fraction may be leading zeros; an f32 needs 66, of which up to 31 may be zeros.
"""

from __future__ import annotations

from itertools import pairwise

from camshaft.dtypes import f64, i64, u64
from camshaft.lang import ir
from camshaft.lang.expand.expander import Expander

# The binary digits of 2 / pi, 64 per word, after one word of zeros; enough digits for the largest f64.
TWO_OVER_PI = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41,
    0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
)  # fmt: skip
# pi / 2 in parts of 53 bits
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_AT_ZERO = 1013  # the biased exponent of an f64 whose digits begin with the table
_LOW_HALF, _ALL = (1 << 32) - 1, (1 << 64) - 1


def cut_far_f32(k: Expander, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(whole multiples of pi / 2 as u64, the rest as f64) of an f64 beyond 2^27 that was an f32."""
    bits = k.bitcast(x, u64)
    m = ((bits >> 29) & (1 << 23) - 1) | 1 << 23
    # m has 29 bits less than an f64's; its digits never begin in the word of zeros
    at = ((bits >> 52) & 2047) - (_AT_ZERO - 29 + 64)
    first, second = _digits(k, at, TWO_OVER_PI[1:], last=1, count=2)
    carry = ((second >> 32) * m + (((second & _LOW_HALF) * m) >> 32)) >> 32
    total = first * m + carry
    turns = (total + (1 << 61)) >> 62
    fraction = k.bitcast((total << 2) | ((second * m) >> 62), i64)
    rest = k.select(k.abs(x) < float("inf"), fraction.to(f64) * (HALF_PI[0] * 2.0**-64), float("nan"))
    negative = k.bitcast(x, i64) < 0
    return k.select(negative, 0 - turns, turns), k.select(negative, -rest, rest)


def cut_far_f64(k: Expander, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(whole multiples of pi / 2 as u64, the rest, the rest's low part) of an x beyond 2^27."""
    bits = k.bitcast(x, u64)
    e = (bits >> 52) & 2047
    m = (bits & (1 << 52) - 1) | 1 << 52
    quarters, high, low = _fraction(m, *_digits(k, e - _AT_ZERO, TWO_OVER_PI, last=16, count=3))
    # the remainder is signed
    above = high >= 1 << 63
    turns = quarters + above.to(u64)
    high = k.select(above, (high ^ _ALL) + (low == 0).to(u64), high)
    low = k.select(above, 0 - low, low)
    rest, rest_low = _times_half_pi(k, high, low)
    negative = k.bitcast(x, i64) < 0
    back = negative ^ above
    rest = k.select(k.abs(x) < float("inf"), k.select(back, -rest, rest), float("nan"))
    return k.select(negative, 0 - turns, turns), rest, k.select(back, -rest_low, rest_low)


def _digits(k: Expander, at: ir.Value, words: tuple[int, ...], *, last: int, count: int) -> list[ir.Value]:
    """Return `count` words from bit `at` of `words` on; that bit is in word `last` or an earlier one."""
    found = [k.const(word, u64) for word in words]
    for bit in reversed(range(last.bit_length())):
        step, is_set = 1 << bit, ((at >> 6) & 1 << bit) != 0
        found = [k.select(is_set, found[min(i + step, len(found) - 1)], found[i]) for i in range(step + count)]
    shift = at & 63
    # a shift count must be less than the width
    return [(a << shift) | ((b >> 1) >> (63 - shift)) for a, b in pairwise(found)]


def _fraction(m: ir.Value, *digits: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The top two bits of the low 192 of m digits, and the 128 after them."""
    top, (middle, low), (carry, last) = m * digits[0], _product(m, digits[1]), _product(m, digits[2])
    total = low + carry
    high = top + middle + (total < carry).to(u64)
    return high >> 62, (high << 2) | (total >> 62), (total << 2) | (last >> 62)


def _product(a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the high and the low word of a * b."""
    a0, a1, b0, b1 = a & _LOW_HALF, a >> 32, b & _LOW_HALF, b >> 32
    first, second, third = a0 * b0, a0 * b1, a1 * b0
    middle = (first >> 32) + (second & _LOW_HALF) + (third & _LOW_HALF)
    high = a1 * b1 + (second >> 32) + (third >> 32) + (middle >> 32)
    return high, (middle << 32) | (first & _LOW_HALF)


def _times_half_pi(k: Expander, high: ir.Value, low: ir.Value) -> tuple[ir.Value, ir.Value]:
    """pi / 2 times a fraction of 128 bits, as a sum of two f64. `high` is not 0: no f64 is that close to a multiple of pi / 2."""
    # without the bits below its first, `high` does not round up to a power of two
    exponent = k.bitcast((high & ((high >> 1) ^ _ALL)).to(f64), u64) >> 52
    zeros = 1023 + 63 - exponent
    high = (high << zeros) | ((low >> 1) >> (63 - zeros))
    low = low << zeros
    scale = k.bitcast((1023 - 64 - zeros) << 52, f64)
    d = (high & _ALL - 2047).to(f64) * scale
    d_low = ((high << 53) | (low >> 11)).to(f64) * 2.0**-53 * scale
    product = d * HALF_PI[0]
    lost = k.fma(d, HALF_PI[0], -product)
    lost = lost + (d * HALF_PI[1] + d_low * HALF_PI[0])
    rest = product + lost
    return rest, (product - rest) + lost
