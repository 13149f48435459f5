"""Code: the kinds of 2 to 8-bit codes, unsigned integers and small floats, and how kernels and NumPy read and write them.

Codes of a row are one stream of bits, lowest first, as MLX packs them: code c is bits [c bits, (c + 1) bits) of the row's bytes,
which an array has as u8 or, little-endian, as u32. A unit is the smallest number of codes that fills whole words of 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import ml_dtypes
import numpy as np

from camshaft.dtypes import f32, i32, u32
from camshaft.lang import Array, Tracer, Value
from camshaft.ops import op as ops

WORD = 32
_F32_MANTISSA, _F32_BIAS = 23, 127
_NAN_BITS, _INFINITY_BITS = 0x7FC00000, 0x7F800000


@dataclass(frozen=True)
class Code:
    """A kind of code. A float has a sign (none if `exponent` is all of its bits), then exponent, then mantissa; its value is
    2^(e - bias) (1 + m), and 2^(1 - bias) m for e = 0. `most` is the largest code of a finite number. Codes above it, without
    the sign, are NaN; with `infinite`, the first of them is infinity."""

    name: str
    bits: int
    exponent: int = 0
    mantissa: int = 0
    bias: int = 0
    most: int = 0
    infinite: bool = False

    @property
    def is_float(self) -> bool:
        return self.exponent > 0

    @property
    def is_signed(self) -> bool:
        return self.exponent + self.mantissa < self.bits and self.is_float

    @property
    def mask(self) -> int:
        """All bits of a code."""
        return (1 << self.bits) - 1

    @property
    def magnitude(self) -> int:
        """The bits of a code but its sign."""
        return self.mask >> 1 if self.is_signed else self.mask

    @property
    def unit(self) -> int:
        """The codes of a unit."""
        return WORD // gcd(self.bits, WORD)

    @property
    def unit_words(self) -> int:
        """The 32-bit words of a unit."""
        return self.bits // gcd(self.bits, WORD)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The dtype that a code's byte has in NumPy."""
        names = {"e8m0": "float8_e8m0fnu", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
        shorter = f"float{self.bits}_{self.name}fn"
        return np.dtype(getattr(ml_dtypes, names.get(self.name, shorter)) if self.is_float else np.uint8)


_INTEGERS = tuple(Code(f"u{bits}", bits) for bits in (2, 3, 4, 5, 6, 8))
_FLOATS = (
    Code("e2m1", 4, 2, 1, 1, most=7),
    Code("e2m3", 6, 2, 3, 1, most=31),
    Code("e3m2", 6, 3, 2, 3, most=31),
    Code("e4m3", 8, 4, 3, 7, most=126),
    Code("e5m2", 8, 5, 2, 15, most=123, infinite=True),
    Code("e8m0", 8, 8, 0, 127, most=254),
)
CODES = {code.name: code for code in (*_INTEGERS, *_FLOATS)}
# What weights may consist of; e8m0, powers of two, is for scales.
INTEGERS = tuple(code.name for code in _INTEGERS)
FLOATS = tuple(code.name for code in _FLOATS if code.mantissa)


# --- in kernels --------------------------------------------------------------------------------------------------------
def number(k: Tracer, code: Value, form: Code) -> Value:
    """The f32 that a code, u32 without other bits, stands for."""
    if not form.is_float:
        return code.to(i32).to(f32)
    magnitude = code & form.magnitude if form.is_signed else code
    bits = _normal_bits(k, magnitude, form)
    least = k.bitcast(magnitude.to(i32).to(f32) * 2.0 ** (1 - form.bias - form.mantissa), u32)
    if form.mantissa == 0:  # 2^-127, a subnormal of f32
        least = k.const(1 << (_F32_MANTISSA - 1), u32)
    bits = k.select(magnitude < (1 << form.mantissa), least, bits)
    if form.is_signed:
        bits = bits | ((code ^ magnitude) << (31 - form.exponent - form.mantissa))
    return k.bitcast(bits, f32)


def _normal_bits(k: Tracer, magnitude: Value, form: Code) -> Value:
    """The bits of an f32 for a code whose exponent is not 0, and for infinity and NaN."""
    moved = magnitude << (_F32_MANTISSA - form.mantissa)
    bits = moved + ((_F32_BIAS - form.bias) << _F32_MANTISSA) if form.bias != _F32_BIAS else moved
    if form.most == form.magnitude:
        return bits
    special = k.const(_NAN_BITS, u32)
    if form.infinite:
        special = k.select(magnitude == form.most + 1, _INFINITY_BITS, special)
    return k.select(magnitude > form.most, special, bits)


def code_of(k: Tracer, x: Value, form: Code) -> Value:
    """The code, u32, of the nearest number to an f32, ties to even; beyond the largest number, its code. NaN gives the code of
    NaN, and 0 where there is none."""
    if not form.is_float:
        inside = k.minimum(k.maximum(k.round(x), 0.0), float(form.mask))
        return k.select(k.isnan(x), 0.0, inside).to(i32).to(u32)
    bits = k.bitcast(x, u32)
    size, shift = bits & 0x7FFFFFFF, _F32_MANTISSA - form.mantissa
    even = ((size >> shift) & 1) + ((1 << (shift - 1)) - 1)
    least = (_F32_BIAS - form.bias) << _F32_MANTISSA  # an exponent of 0; less is scaled to whole numbers and rounded
    normal = k.minimum((size + even - least) >> shift, form.most)
    small = k.round(k.minimum(k.abs(x), 1.0) * 2.0 ** (form.bias + form.mantissa - 1))
    code = k.select(size < least + (1 << _F32_MANTISSA), small.to(i32).to(u32), normal)
    code = k.select(k.isnan(x), 0 if form.most == form.magnitude else form.magnitude, code)
    return code | (bits >> 31 << (form.bits - 1))


def unit_codes(k: Tracer, words: list[Value], form: Code) -> list[Value]:
    """The codes of a unit from its words."""
    return [_code_in(words, j * form.bits, form) for j in range(form.unit)]


def _code_in(words: list[Value], bit: int, form: Code) -> Value:
    w, shift = divmod(bit, WORD)
    low = words[w] >> shift if shift else words[w]
    if shift + form.bits > WORD:
        low = low | (words[w + 1] << (WORD - shift))
    return low if shift + form.bits == WORD else low & form.mask


def unit_words(k: Tracer, codes: list[Value], form: Code) -> list[Value]:
    """The words of a unit from its codes."""
    words: list[Value | None] = [None] * form.unit_words
    for j, code in enumerate(codes):
        w, shift = divmod(j * form.bits, WORD)
        parts = [(w, code << shift if shift else code)]
        if shift + form.bits > WORD:
            parts.append((w + 1, code >> (WORD - shift)))
        for i, part in parts:
            before = words[i]
            words[i] = part if before is None else before | part
    return [word for word in words if word is not None]


def code_at(k: Tracer, codes: Array, row: Value, c: Value, form: Code) -> Value:
    """Code c, u32, of a row of a u8 or u32 array; both may vary by lane."""
    word_bits = codes.dtype.bits
    per = word_bits // form.bits
    if per * form.bits == word_bits:
        word = (codes[row, c // per] if per > 1 else codes[row, c]).to(u32)
        return (word >> ((c % per).to(u32) * form.bits)) & form.mask if per > 1 else word
    bit = c * form.bits
    at, shift = bit // WORD, (bit % WORD).to(u32)
    low = k.gather(codes, row, at) >> shift
    high = k.gather(codes, row, k.minimum(at + 1, codes.shape[1] - 1)) << 1 << (shift ^ (WORD - 1))
    return (low | high) & form.mask


# --- in NumPy ----------------------------------------------------------------------------------------------------------
def unpacked(codes: ops.Array, form: Code) -> ops.Array:
    """uint8 [.., columns]: the codes of the rows of a u8 or u32 array."""
    octets = np.ascontiguousarray(codes).view(np.uint8)
    bits = np.unpackbits(octets, axis=-1, bitorder="little").reshape(*octets.shape[:-1], -1, form.bits)
    return np.asarray((bits << np.arange(form.bits, dtype=np.uint8)).sum(-1, dtype=np.uint8))


def packed(codes: ops.Array, form: Code, dtype: Any = np.uint32) -> ops.Array:
    """The array of `dtype`, uint32 or uint8, with these codes [.., columns], which fill whole words."""
    bits = np.unpackbits(codes.astype(np.uint8)[..., None], axis=-1, bitorder="little")[..., : form.bits]
    octets = np.packbits(bits.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")
    return np.asarray(np.ascontiguousarray(octets).view(dtype))


def numbers(codes: ops.Array, form: Code) -> ops.Array:
    """float64: the numbers that codes [.., columns] (uint8) stand for, by ml_dtypes."""
    return np.asarray(codes.view(form.numpy).astype(np.float64))


def codes_of(x: ops.Array, form: Code) -> ops.Array:
    """uint8: `code_of` in NumPy."""
    if not form.is_float:
        whole: ops.Array = np.clip(np.rint(np.nan_to_num(x, nan=0.0)), 0, form.mask)
        return whole.astype(np.uint8)
    greatest = float(numbers(np.array([form.most], np.uint8), form)[0])
    found = np.clip(x, -greatest, greatest).astype(form.numpy).view(np.uint8)
    if form.most < form.magnitude:
        return found
    return np.where(np.isnan(x), np.signbit(x).astype(np.uint8) << (form.bits - 1), found).astype(np.uint8)
