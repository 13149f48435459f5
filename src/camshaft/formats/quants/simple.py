"""Blocks of 32 elements: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4; and of 64: NVFP4.

A decoder takes one record per block, [n], and returns float32 [n, size]; an encoder does the reverse. Element j < 16 of 32 is
the low nibble of byte j, element 16 + j the high nibble. Operations are in llama.cpp's order: decoded values are bit-equal to
its own, encoded bytes equal those of the `gguf` package, except for IQ4_NL, which follows llama.cpp.
"""

from __future__ import annotations

import numpy as np

from camshaft.formats.bits import (
    E2M1_DOUBLED,
    IQ4_VALUES,
    Bytes,
    Floats,
    Records,
    as_float,
    bit_fields,
    packed,
    records,
)
from camshaft.formats.quants.grid_search import fit_affine, fit_signed, fit_values, nearest_values

Q4_0 = packed(("d", "<f2"), ("qs", "u1", 16))
Q4_1 = packed(("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16))
Q5_0 = packed(("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16))
Q5_1 = packed(("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16))
Q8_0 = packed(("d", "<f2"), ("qs", "i1", 32))
IQ4_NL = Q4_0
MXFP4 = packed(("e", "u1"), ("qs", "u1", 16))
NVFP4 = packed(("d", "u1", 4), ("qs", "u1", (4, 8)))


def _nibbles(blocks: Records) -> Bytes:
    return bit_fields(blocks["qs"], 4).reshape(-1, 32)


def _five_bits(blocks: Records) -> Bytes:
    # Bit j of the 32-bit word qh is the fifth bit of element j.
    fifth = np.unpackbits(np.ascontiguousarray(blocks["qh"]), axis=-1, bitorder="little")
    return _nibbles(blocks) | (fifth << np.uint8(4))


def decode_q4_0(blocks: Records) -> Floats:
    """y = d (q - 8)"""
    return as_float(blocks["d"]) * (_nibbles(blocks).astype(np.float32) - np.float32(8))


def decode_q4_1(blocks: Records) -> Floats:
    """y = d q + m"""
    return as_float(blocks["d"]) * _nibbles(blocks).astype(np.float32) + as_float(blocks["m"])


def decode_q5_0(blocks: Records) -> Floats:
    """y = d (q - 16)"""
    return as_float(blocks["d"]) * (_five_bits(blocks).astype(np.float32) - np.float32(16))


def decode_q5_1(blocks: Records) -> Floats:
    """y = d q + m"""
    return as_float(blocks["d"]) * _five_bits(blocks).astype(np.float32) + as_float(blocks["m"])


def decode_q8_0(blocks: Records) -> Floats:
    """y = d q"""
    return as_float(blocks["d"]) * as_float(blocks["qs"])


def decode_iq4_nl(blocks: Records) -> Floats:
    """y = d values[q]"""
    return as_float(blocks["d"]) * IQ4_VALUES[_nibbles(blocks)]


def e8m0_half(exponents: Bytes) -> Floats:
    """2^(e - 127) / 2 for every exponent byte (the values are doubled); e = 0 and 1 give subnormal numbers."""
    e = exponents.astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x00200000) << np.minimum(e, 1), (np.maximum(e, 1) - 1) << np.uint32(23))
    return bits.astype(np.uint32).view(np.float32)


def decode_mxfp4(blocks: Records) -> Floats:
    """y = 2^(e - 127) / 2 * doubled[q]"""
    return e8m0_half(blocks["e"])[:, None] * E2M1_DOUBLED[_nibbles(blocks)]


def e4m3_half(scales: Bytes) -> Floats:
    """Half the value of every E4M3 byte, without its sign (the values are doubled). 0x7F, NaN elsewhere, is 0 here."""
    exponent, fraction = (scales >> np.uint8(3)) & np.uint8(15), (scales & np.uint8(7)).astype(np.float32)
    normal = np.ldexp(np.float32(1) + fraction / np.float32(8), exponent.astype(np.int32) - 8)
    half = np.where(exponent == 0, fraction * np.float32(2**-10), normal)
    return np.where(scales == 0x7F, np.float32(0), half).astype(np.float32)


def decode_nvfp4(blocks: Records) -> Floats:
    """Four groups of 16, 8 bytes each, low nibbles first: y = e4m3(d) / 2 * doubled[q]"""
    values = E2M1_DOUBLED[bit_fields(blocks["qs"], 4).reshape(-1, 4, 16)]
    return (e4m3_half(blocks["d"])[:, :, None] * values).reshape(-1, 64)


def _inverse(d: Floats) -> Floats:
    """1 / d, and 0 for 0."""
    with np.errstate(divide="ignore"):
        return np.where(d == 0, np.float32(0), np.float32(1) / d)


def _packed_nibbles(codes: Bytes) -> Bytes:
    return (codes[:, :16] & np.uint8(15)) | (codes[:, 16:] << np.uint8(4))


def _packed_fifth_bits(codes: Bytes) -> Bytes:
    return np.packbits(codes >> np.uint8(4), axis=-1, bitorder="little")


def _signed(values: Floats, half: int, weights: Floats | None) -> tuple[Floats, Bytes]:
    """d and codes 0 .. 2 half - 1 with value = d (code - half), where the largest magnitude has code 0, or with the smallest
    weighted error."""
    if weights is not None:
        d, codes = fit_signed(np.ascontiguousarray(values.T), half, np.ascontiguousarray(weights.T))
        return d, np.ascontiguousarray(codes.T)
    at = np.abs(values).argmax(axis=-1)[:, None]
    d = np.take_along_axis(values, at, axis=-1) / np.float32(-half)
    codes = np.trunc(values * _inverse(d) + np.float32(half + 0.5)).clip(0, 2 * half - 1)
    return d[:, 0], codes.astype(np.uint8)


def _affine(values: Floats, most: int, weights: Floats | None) -> tuple[Floats, Floats, Bytes]:
    """d, m and codes 0 .. most with value = d code + m: from the smallest value to the largest, or by the smallest error."""
    if weights is not None:
        columns = np.ascontiguousarray(values.T), np.ascontiguousarray(weights.T)
        d, minimum, codes = fit_affine(*columns, most, -0.9, 36, step=0.05)
        return d, -minimum, np.ascontiguousarray(codes.T)
    low, high = values.min(axis=-1, keepdims=True), values.max(axis=-1, keepdims=True)
    d = (high - low) / np.float32(most)
    codes = np.trunc((values - low) * _inverse(d) + np.float32(0.5)).clip(0, most)
    return d[:, 0], low[:, 0], codes.astype(np.uint8)


def encode_q4_0(values: Floats, weights: Floats | None = None) -> Records:
    """d = the value of largest magnitude / -8; q = floor(x / d + 8.5), at most 15."""
    d, codes = _signed(values, 8, weights)
    return records(Q4_0, d=d, qs=_packed_nibbles(codes))


def encode_q4_1(values: Floats, weights: Floats | None = None) -> Records:
    """d = (max - min) / 15, m = min; q = floor((x - m) / d + 0.5)."""
    d, m, codes = _affine(values, 15, weights)
    return records(Q4_1, d=d, m=m, qs=_packed_nibbles(codes))


def encode_q5_0(values: Floats, weights: Floats | None = None) -> Records:
    """As Q4_0 with 32 steps."""
    d, codes = _signed(values, 16, weights)
    return records(Q5_0, d=d, qh=_packed_fifth_bits(codes), qs=_packed_nibbles(codes))


def encode_q5_1(values: Floats, weights: Floats | None = None) -> Records:
    """As Q4_1 with 32 steps."""
    d, m, codes = _affine(values, 31, weights)
    return records(Q5_1, d=d, m=m, qh=_packed_fifth_bits(codes), qs=_packed_nibbles(codes))


def encode_q8_0(values: Floats) -> Records:
    """d = max |x| / 127; q = x / d, halves rounded away from zero."""
    d = np.abs(values).max(axis=-1, keepdims=True) / np.float32(127)
    scaled = values * _inverse(d)
    whole = np.floor(np.abs(scaled))
    codes = np.sign(scaled) * (whole + np.floor(2 * (np.abs(scaled) - whole)))
    return records(Q8_0, d=d[:, 0], qs=codes.astype(np.int8))


def encode_iq4_nl(values: Floats, weights: Floats | None = None) -> Records:
    """The best scale by search, then the nearest of the 16 values for every element."""
    columns = np.ascontiguousarray(values.T)
    d = fit_values(columns, None if weights is None else np.ascontiguousarray(weights.T))
    codes = nearest_values(columns * _inverse(d)).T
    return records(IQ4_NL, d=d, qs=_packed_nibbles(codes))


def encode_mxfp4(values: Floats) -> Records:
    """e = floor(log2 max |x|) - 2 + 127; q the nearest E2M1 value, the first of two equally near ones."""
    most = np.abs(values).max(axis=-1)
    with np.errstate(divide="ignore"):
        e = np.where(most > 0, np.floor(np.log2(most)) - 2 + 127, 0).astype(np.uint8)
    scaled = e8m0_half(e)[:, None, None] * E2M1_DOUBLED
    codes = np.abs(scaled - values[:, :, None]).argmin(axis=-1).astype(np.uint8)
    return records(MXFP4, e=e, qs=_packed_nibbles(codes))
