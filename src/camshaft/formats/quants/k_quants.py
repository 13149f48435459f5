"""Layouts and decoders of blocks of 256: Q2_K to Q6_K, Q8_K, IQ4_XS.

A decoder takes one record per block, [n], and returns float32 [n, 256]. A block is divided into groups of 16 or 32 with a small
integer scale each. Operations are in llama.cpp's order, so results are bit-equal.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from camshaft.formats.bits import IQ4_VALUES, Bytes, Floats, Records, as_float, bit_fields, packed

Q2_K = packed(("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2"))
Q3_K = packed(("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2"))
Q4_K = packed(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128))
Q5_K = packed(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128))
Q6_K = packed(("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2"))
Q8_K = packed(("d", "<f4"), ("qs", "i1", 256), ("bsums", "<i2", 16))
IQ4_XS = packed(("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128))


def _in_groups(values: npt.NDArray[np.generic], group_size: int) -> Floats:
    return values.astype(np.float32).reshape(-1, 256 // group_size, group_size)


def k_scales(scales: Bytes) -> tuple[Bytes, Bytes]:
    """The 8 six-bit scales and 8 six-bit minima, [n, 8] each, that Q4_K and Q5_K pack into 12 bytes, [n, 12].

    Bytes 0..3 have scales 0..3 and bytes 4..7 minima 0..3 in their low six bits; bytes 8..11 the low nibbles of scales
    (low) and minima (high) 4..7, whose top two bits are the top two bits of bytes 0..3 and 4..7.
    """
    first, second, third = scales[:, 0:4], scales[:, 4:8], scales[:, 8:12]
    late_scales = (third & 15) | ((first >> 6) << 4)
    late_minima = (third >> 4) | ((second >> 6) << 4)
    return np.hstack([first & 63, late_scales]), np.hstack([second & 63, late_minima])


def q3_scales(scales: Bytes) -> Floats:
    """16 six-bit scales less 32, [n, 16]: nibbles in bytes 0..7 (low ones first), top two bits in bytes 8..11."""
    low, high = bit_fields(scales[:, :8], 4).reshape(-1, 16), bit_fields(scales[:, 8:], 2).reshape(-1, 16)
    return (low | (high << np.uint8(4))).astype(np.float32) - np.float32(32)


def _scaled(blocks: Records, quants: Floats, scales: npt.NDArray[np.generic]) -> Floats:
    # y[g, j] = (d scale[g]) q[g, j]
    step = as_float(blocks["d"]) * scales.astype(np.float32)
    return (step[:, :, None] * quants).reshape(-1, 256)


def _scaled_less_minimum(blocks: Records, quants: Floats, scales: Bytes, minima: Bytes) -> Floats:
    # y[g, j] = (d scale[g]) q[g, j] - dmin minimum[g]
    step = as_float(blocks["d"]) * scales.astype(np.float32)
    minimum = as_float(blocks["dmin"]) * minima.astype(np.float32)
    return (step[:, :, None] * quants - minimum[:, :, None]).reshape(-1, 256)


def decode_q2_k(blocks: Records) -> Floats:
    """16 groups of 16, two bits each: 32 bytes have 128 elements, 32 per pair of bits."""
    quants = _in_groups(bit_fields(blocks["qs"].reshape(-1, 2, 32), 2), 16)
    return _scaled_less_minimum(blocks, quants, blocks["scales"] & np.uint8(15), blocks["scales"] >> np.uint8(4))


def decode_q3_k(blocks: Records) -> Floats:
    """16 groups of 16, two bits as in Q2_K; a clear bit in hmask (bit e // 32 of byte e % 32) subtracts 4."""
    low = bit_fields(blocks["qs"].reshape(-1, 2, 32), 2).reshape(-1, 256)
    high = bit_fields(blocks["hmask"], 1).reshape(-1, 256)
    quants = (low | (high << np.uint8(2))).astype(np.float32) - np.float32(4)
    return _scaled(blocks, quants.reshape(-1, 16, 16), q3_scales(blocks["scales"]))


def decode_q4_k(blocks: Records) -> Floats:
    """8 groups of 32; 32 bytes have two groups, the first in the low nibbles."""
    quants = _in_groups(bit_fields(blocks["qs"].reshape(-1, 4, 32), 4), 32)
    return _scaled_less_minimum(blocks, quants, *k_scales(blocks["scales"]))


def decode_q5_k(blocks: Records) -> Floats:
    """Like Q4_K, with the fifth bit of group g in bit g of qh."""
    low = bit_fields(blocks["qs"].reshape(-1, 4, 32), 4).reshape(-1, 256)
    high = bit_fields(blocks["qh"], 1).reshape(-1, 256)
    return _scaled_less_minimum(blocks, _in_groups(low | (high << np.uint8(4)), 32), *k_scales(blocks["scales"]))


def decode_q6_k(blocks: Records) -> Floats:
    """16 groups of 16: per half of 128, low nibbles in 64 bytes, top two bits in 32; y = (d scale) (q - 32)."""
    low = bit_fields(blocks["ql"].reshape(-1, 2, 64), 4).reshape(-1, 256)
    high = bit_fields(blocks["qh"].reshape(-1, 2, 32), 2).reshape(-1, 256)
    quants = _in_groups(low | (high << np.uint8(4)), 16) - np.float32(32)
    return _scaled(blocks, quants, blocks["scales"])


def decode_q8_k(blocks: Records) -> Floats:
    """y = d q; the sums of every 16 quants (bsums) are for dot products only."""
    return as_float(blocks["d"]) * as_float(blocks["qs"])


def iq4_xs_scales(scales_l: Bytes, scales_h: npt.NDArray[np.uint16]) -> Floats:
    """8 six-bit scales less 32, [n, 8]: nibbles in 4 bytes (low ones first), top two bits in a 16-bit word."""
    low = bit_fields(scales_l[:, :, None], 4).reshape(-1, 8)
    high = (scales_h[:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    return (low | (high << np.uint16(4))).astype(np.float32) - np.float32(32)


def decode_iq4_xs(blocks: Records) -> Floats:
    """8 groups of 32 with six-bit scales less 32: y = (d scale) values[q]."""
    scales = iq4_xs_scales(blocks["scales_l"], blocks["scales_h"])
    quants = IQ4_VALUES[bit_fields(blocks["qs"].reshape(-1, 8, 16), 4)].reshape(-1, 8, 32)
    return _scaled(blocks, quants, scales)
