"""Quantize floats to blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.

An encoder takes float32 [n, 32] and returns one record per block, [n]. Results are byte-equal to the `gguf` package's, except
IQ4_NL, which is byte-equal to llama.cpp's.
"""

from __future__ import annotations

import numpy as np

from camshaft.formats.bits import E2M1_DOUBLED, Bytes, Floats, Records
from camshaft.formats.quants import simple as small
from camshaft.formats.quants.grid_search import fit_values, nearest_values


def _inverse(d: Floats) -> Floats:
    """1 / d, and 0 for 0."""
    with np.errstate(divide="ignore"):
        return np.where(d == 0, np.float32(0), np.float32(1) / d)


def _records(layout: np.dtype[np.void], **fields: object) -> Records:
    first = fields["qs"]
    assert isinstance(first, np.ndarray)
    made = np.empty(len(first), layout)
    for name, value in fields.items():
        made[name] = value
    return made


def _nibbles(codes: Bytes) -> Bytes:
    return (codes[:, :16] & np.uint8(15)) | (codes[:, 16:] << np.uint8(4))


def _fifth_bits(codes: Bytes) -> Bytes:
    return np.packbits(codes >> np.uint8(4), axis=-1, bitorder="little")


def _signed(values: Floats, half: int) -> tuple[Floats, Bytes]:
    """d and codes 0 .. 2 half - 1 with value = d (code - half), where the greatest magnitude has code 0."""
    at = np.abs(values).argmax(axis=-1)[:, None]
    d = np.take_along_axis(values, at, axis=-1) / np.float32(-half)
    codes = np.trunc(values * _inverse(d) + np.float32(half + 0.5)).clip(0, 2 * half - 1)
    return d[:, 0], codes.astype(np.uint8)


def _affine(values: Floats, most: int) -> tuple[Floats, Floats, Bytes]:
    """d, m and codes 0 .. most with value = d code + m, from the least to the greatest value."""
    low, high = values.min(axis=-1, keepdims=True), values.max(axis=-1, keepdims=True)
    d = (high - low) / np.float32(most)
    codes = np.trunc((values - low) * _inverse(d) + np.float32(0.5)).clip(0, most)
    return d[:, 0], low[:, 0], codes.astype(np.uint8)


def encode_q4_0(values: Floats) -> Records:
    """d = the value of greatest magnitude / -8; q = floor(x / d + 8.5), at most 15."""
    d, codes = _signed(values, 8)
    return _records(small.Q4_0, d=d, qs=_nibbles(codes))


def encode_q4_1(values: Floats) -> Records:
    """d = (max - min) / 15, m = min; q = floor((x - m) / d + 0.5)."""
    d, m, codes = _affine(values, 15)
    return _records(small.Q4_1, d=d, m=m, qs=_nibbles(codes))


def encode_q5_0(values: Floats) -> Records:
    """As Q4_0 with 32 steps."""
    d, codes = _signed(values, 16)
    return _records(small.Q5_0, d=d, qh=_fifth_bits(codes), qs=_nibbles(codes))


def encode_q5_1(values: Floats) -> Records:
    """As Q4_1 with 32 steps."""
    d, m, codes = _affine(values, 31)
    return _records(small.Q5_1, d=d, m=m, qh=_fifth_bits(codes), qs=_nibbles(codes))


def encode_q8_0(values: Floats) -> Records:
    """d = max |x| / 127; q = x / d, halves rounded away from zero."""
    d = np.abs(values).max(axis=-1, keepdims=True) / np.float32(127)
    scaled = values * _inverse(d)
    whole = np.floor(np.abs(scaled))
    codes = np.sign(scaled) * (whole + np.floor(2 * (np.abs(scaled) - whole)))
    return _records(small.Q8_0, d=d[:, 0], qs=codes.astype(np.int8))


def encode_iq4_nl(values: Floats) -> Records:
    """The best scale by search, then the nearest of the 16 values for every element."""
    columns = np.ascontiguousarray(values.T)
    d = fit_values(columns)
    codes = nearest_values(columns * _inverse(d)).T
    return _records(small.IQ4_NL, d=d, qs=_nibbles(codes))


def encode_mxfp4(values: Floats) -> Records:
    """e = floor(log2 max |x|) - 2 + 127; q the nearest E2M1 value, the first of two equally near ones."""
    most = np.abs(values).max(axis=-1)
    with np.errstate(divide="ignore"):
        e = np.where(most > 0, np.floor(np.log2(most)) - 2 + 127, 0).astype(np.uint8)
    scaled = small.e8m0_half(e)[:, None, None] * E2M1_DOUBLED
    codes = np.abs(scaled - values[:, :, None]).argmin(axis=-1).astype(np.uint8)
    return _records(small.MXFP4, e=e, qs=_nibbles(codes))
