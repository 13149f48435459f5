"""Layouts and decoders of blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.

A decoder takes one record per block, [n], and returns float32 [n, 32]. Element j < 16 is the low nibble of byte j, element
16 + j the high nibble. Operations are in llama.cpp's order, so results are bit-equal.
"""

from __future__ import annotations

import numpy as np

from camshaft.formats.bits import E2M1_DOUBLED, IQ4_VALUES, Bytes, Floats, Records, as_float, bit_fields, packed

Q4_0 = packed(("d", "<f2"), ("qs", "u1", 16))
Q4_1 = packed(("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16))
Q5_0 = packed(("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16))
Q5_1 = packed(("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16))
Q8_0 = packed(("d", "<f2"), ("qs", "i1", 32))
IQ4_NL = Q4_0
MXFP4 = packed(("e", "u1"), ("qs", "u1", 16))


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
