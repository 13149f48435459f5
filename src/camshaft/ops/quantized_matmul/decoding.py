"""Blocks of a file taken apart into codes, scales and minima: what packing.py lays out again. A function per block format."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from camshaft.formats import bits, k_blocks

Array = np.ndarray[Any, Any]


class Decoded(NamedTuple):
    """Records [n] taken apart, in the file's order of k: codes uint8 [n, size], scales and minima [n, size / group] (minima None
    where none are stored or they share the scales' bytes), and the steps [n, 1 or 2] of nested ones."""

    codes: Array
    scales: Array
    minima: Array | None = None
    steps: Array | None = None


def _nibbles(records: Array) -> Array:
    return bits.bit_fields(records["qs"], 4).reshape(len(records), -1)


def _nibbles_of_32(records: Array, size: int) -> Array:
    """Groups of `size` bytes: low nibbles first, then high ones."""
    return bits.bit_fields(records["qs"].reshape(len(records), -1, size), 4).reshape(len(records), -1)


def _one(field: Array) -> Array:
    column: Array = field[:, None]
    return column


def q4_0(r: Array) -> Decoded:
    return Decoded(_nibbles(r), _one(r["d"]))


def q4_1(r: Array) -> Decoded:
    return Decoded(_nibbles(r), _one(r["d"]), _one(r["m"]))


def _five(r: Array) -> Array:
    fifth = np.unpackbits(np.ascontiguousarray(r["qh"]), axis=-1, bitorder="little")
    codes: Array = _nibbles(r) | (fifth << np.uint8(4))
    return codes


def q5_0(r: Array) -> Decoded:
    return Decoded(_five(r), _one(r["d"]))


def q5_1(r: Array) -> Decoded:
    return Decoded(_five(r), _one(r["d"]), _one(r["m"]))


def q8_0(r: Array) -> Decoded:
    return Decoded(r["qs"].view(np.uint8) ^ np.uint8(128), _one(r["d"]))


def iq4_nl(r: Array) -> Decoded:
    return Decoded(_nibbles(r), _one(r["d"]))


def mxfp4(r: Array) -> Decoded:
    return Decoded(_nibbles(r), _one(r["e"]))


def _steps(r: Array) -> Array:
    """[n, 2]: d, and dmin below zero."""
    return np.stack([r["d"], -r["dmin"]], axis=1)


def _two_bits(r: Array) -> Array:
    return bits.bit_fields(r["qs"].reshape(-1, 2, 32), 2).reshape(-1, 256)


def q2_k(r: Array) -> Decoded:
    return Decoded(_two_bits(r), r["scales"], None, _steps(r))


def q3_k(r: Array) -> Decoded:
    high = bits.bit_fields(r["hmask"], 1).reshape(-1, 256)
    scales = k_blocks.q3_scales(r["scales"]).astype(np.int8)
    return Decoded(_two_bits(r) | (high << np.uint8(2)), scales, None, _one(r["d"]))


def q4_k(r: Array) -> Decoded:
    return Decoded(_nibbles_of_32(r, 32), *k_blocks.k_scales(r["scales"]), _steps(r))


def q5_k(r: Array) -> Decoded:
    high = bits.bit_fields(r["qh"], 1).reshape(-1, 256)
    return Decoded(_nibbles_of_32(r, 32) | (high << np.uint8(4)), *k_blocks.k_scales(r["scales"]), _steps(r))


def q6_k(r: Array) -> Decoded:
    low = bits.bit_fields(r["ql"].reshape(-1, 2, 64), 4).reshape(-1, 256)
    high = bits.bit_fields(r["qh"].reshape(-1, 2, 32), 2).reshape(-1, 256)
    return Decoded(low | (high << np.uint8(4)), r["scales"], None, _one(r["d"]))


def iq4_xs(r: Array) -> Decoded:
    scales = k_blocks.iq4_xs_scales(r["scales_l"], r["scales_h"]).astype(np.int8)
    return Decoded(_nibbles_of_32(r, 16), scales, None, _one(r["d"]))
