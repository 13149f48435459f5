"""Weights packed by NumPy, from blocks taken apart format by format: what the kernel that packs is held to."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from camshaft.formats import bits
from camshaft.formats.quants import k_quants
from camshaft.ops.quantized.packing import BLOCK, PACKED_FORMATS, ROWS, PackedFormat
from camshaft.ops.spec import TensorSpec

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
    scales = k_quants.q3_scales(r["scales"]).astype(np.int8)
    return Decoded(_two_bits(r) | (high << np.uint8(2)), scales, None, _one(r["d"]))


def q4_k(r: Array) -> Decoded:
    return Decoded(_nibbles_of_32(r, 32), *k_quants.k_scales(r["scales"]), _steps(r))


def q5_k(r: Array) -> Decoded:
    high = bits.bit_fields(r["qh"], 1).reshape(-1, 256)
    return Decoded(_nibbles_of_32(r, 32) | (high << np.uint8(4)), *k_quants.k_scales(r["scales"]), _steps(r))


def q6_k(r: Array) -> Decoded:
    low = bits.bit_fields(r["ql"].reshape(-1, 2, 64), 4).reshape(-1, 256)
    high = bits.bit_fields(r["qh"].reshape(-1, 2, 32), 2).reshape(-1, 256)
    return Decoded(low | (high << np.uint8(4)), r["scales"], None, _one(r["d"]))


def iq4_xs(r: Array) -> Decoded:
    scales = k_quants.iq4_xs_scales(r["scales_l"], r["scales_h"]).astype(np.int8)
    return Decoded(_nibbles_of_32(r, 16), scales, None, _one(r["d"]))


DECODERS = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "MXFP4": mxfp4,
}


def pack(data: Array, spec: TensorSpec) -> Array:
    """The packed bytes of a weight; `spec` is the packed one."""
    form, block = PACKED_FORMATS[spec.dtype.name], spec.dtype
    out, (n, _) = np.zeros(spec.nbytes, np.uint8), spec.bounds
    records = block.records(data.reshape(-1, block.block_nbytes))
    parts = _laid_out(DECODERS[block.name](records), form, n)
    for part in spec.parts:
        view = out[part.offset_nbytes : part.offset_nbytes + part.nbytes].view(part.dtype.numpy)
        _interleave(parts[part.name], view.reshape(part.shape))
    return out


def _laid_out(decoded: Decoded, form: PackedFormat, n: int) -> dict[str, Array]:
    """The values of every part for n rows, [n, blocks or super-blocks, m]."""
    codes, scales, minima, steps = decoded
    parts = {"codes": _words(codes.reshape(n, -1, BLOCK), form.bits)}
    if steps is None:
        parts["scales"] = scales.reshape(n, -1, form.groups)
        return parts if minima is None else parts | {"minima": minima.reshape(n, -1, form.groups)}
    both = scales if minima is None else np.stack([scales, minima], axis=-1)
    blocks = codes.size // n // BLOCK
    return parts | {"scales": both.reshape(n, blocks, -1), "steps": steps.reshape(n, -1, steps.shape[-1])}


def _words(codes: Array, n_bits: int) -> Array:
    """Codes [n, blocks, 32] to words [n, blocks, bits]."""
    c = codes.reshape(*codes.shape[:2], 8, 4)
    if n_bits == 8:
        return np.ascontiguousarray(c).view(np.uint32)[..., 0]
    if n_bits >= 4:
        first, parts = 4, [(c[:, :, :4] & np.uint8(15)) | (c[:, :, 4:] << np.uint8(4))]
    else:
        first, parts = 2, [_pairs(c)]
    if n_bits - first == 1:
        shifts = np.arange(8, dtype=np.uint8)[:, None]
        parts.append(np.bitwise_or.reduce((c >> np.uint8(first) & np.uint8(1)) << shifts, axis=2, keepdims=True))
    if n_bits - first == 2:
        parts.append(_pairs(c >> np.uint8(first)))
    return np.ascontiguousarray(np.concatenate(parts, axis=2)).view(np.uint32)[..., 0]


def _pairs(c: Array) -> Array:
    """The low two bits of code words [n, blocks, 8, 4], four words in one: [n, blocks, 2, 4]."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    pairs: Array = np.bitwise_or.reduce((c.reshape(*c.shape[:2], 2, 4, 4) & np.uint8(3)) << shifts, axis=3)
    return pairs


def _interleave(values: Array, out: Array) -> None:
    """values [n, blocks, m] to out [tiles, blocks, m, 16]; rows past n are zero."""
    n, tiles = len(values), len(out)
    whole = n // ROWS
    out[:whole] = values[: whole * ROWS].reshape(whole, ROWS, *values.shape[1:]).transpose(0, 2, 3, 1)
    if tiles > whole:
        out[whole] = 0
        out[whole, ..., : n - whole * ROWS] = values[whole * ROWS :].transpose(1, 2, 0)
