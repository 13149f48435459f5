"""Weights packed by NumPy, from blocks taken apart format by format: what the kernel that packs is held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from camshaft.formats import bits
from camshaft.formats.quants import iq, iq_grids, k_quants, ternary
from camshaft.ops.quantized.packed.formats import BLOCK, PACKED_FORMATS, PackedFormat
from camshaft.ops.quantized.packed.packing import ROWS
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
    return field[:, None]


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


def _grid(r: Array, name: str, rows: Array, octets: Array, scales: Array, d: Array | None = None) -> Decoded:
    """Grid rows by number [n, 256 / width], a sign byte per 8 elements [n, 32], scales [n, groups]."""
    grid = iq_grids.GRIDS[name]
    signs = np.unpackbits(np.ascontiguousarray(octets).reshape(len(r), -1), axis=1, bitorder="little")
    codes = grid.rows[rows].reshape(len(r), 256) | (signs << np.uint8((len(grid.levels) - 1).bit_length()))
    return Decoded(codes, (2 * scales + 1).astype(np.uint8), None, _one(r["d"]) if d is None else d)


def _wide(field: Array, shifts: list[int], mask: int) -> Array:
    """Bit fields of every word, [n, m, len(shifts)], as one axis."""
    found: Array = field.astype(np.int64)[:, :, None] >> np.array(shifts) & mask
    return found.reshape(len(field), -1)


def _sevens(words: Array) -> Array:
    return iq_grids.sign_bytes(_wide(words, [0, 7, 14, 21], 127))


def iq1_s(r: Array) -> Decoded:
    rows = r["qs"] | (_wide(r["qh"], [0, 3, 6, 9], 7) << 8)
    odd = 2 * _wide(r["qh"], [12], 7) + 1
    minima = odd * np.where(r["qh"] >= 0x8000, 9, 7)
    d = np.stack([r["d"], -r["d"]], axis=1)
    codes = iq_grids.GRIDS["IQ1_S"].rows[rows].reshape(len(r), 256)
    return Decoded(codes, (8 * odd).astype(np.uint8), minima.astype(np.uint8), d)


def iq1_m(r: Array) -> Decoded:
    fours = _wide(r["qh"], [0, 4], 15)
    rows, less = r["qs"] | ((fours & 7) << 8), np.where(fours & 8, 255, 0).astype(np.uint8)
    scales = _wide(r["scales"], [0, 3, 6, 9], 7)
    return _grid(r, "IQ1_M", rows, less, scales, _one(iq.iq1_m_d(r["scales"])))


def iq2_xxs(r: Array) -> Decoded:
    low, high = r["qs"][:, :, 0], r["qs"][:, :, 1]
    return _grid(r, "IQ2_XXS", _wide(low, [0, 8, 16, 24], 255), _sevens(high), _wide(high, [28], 15))


def iq2_xs(r: Array) -> Decoded:
    rows, octets = r["qs"] & 511, iq_grids.sign_bytes(r["qs"] >> 9)
    return _grid(r, "IQ2_XS", rows, octets, _wide(r["scales"], [0, 4], 15))


def iq2_s(r: Array) -> Decoded:
    rows = r["qs"] | (_wide(r["qh"], [0, 2, 4, 6], 3) << 8)
    return _grid(r, "IQ2_S", rows, r["signs"], _wide(r["scales"], [0, 4], 15))


def iq3_xxs(r: Array) -> Decoded:
    return _grid(r, "IQ3_XXS", r["qs"], _sevens(r["scales"]), _wide(r["scales"], [28], 15))


def iq3_s(r: Array) -> Decoded:
    rows = r["qs"] | (_wide(r["qh"], [*range(8)], 1) << 8)
    return _grid(r, "IQ3_S", rows, r["signs"], _wide(r["scales"], [0, 4], 15))


def _ternary(decode: Callable[[Array], Array]) -> Callable[[Array], Decoded]:
    """The codes are the numbers of blocks with d = 1, plus 1; every scale is 1."""

    def decoded(r: Array) -> Decoded:
        plain = r.copy()
        plain["d"] = 1
        return Decoded((decode(plain) + 1).astype(np.uint8), np.ones((len(r), 8), np.uint8), None, _one(r["d"]))

    return decoded


def nvfp4(r: Array) -> Decoded:
    return Decoded(_nibbles(r), np.where(r["d"] == 0x7F, 0, r["d"] & 0x7F).astype(np.uint8))


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
    "NVFP4": nvfp4,
    "IQ1_S": iq1_s,
    "IQ1_M": iq1_m,
    "IQ2_XXS": iq2_xxs,
    "IQ2_XS": iq2_xs,
    "IQ2_S": iq2_s,
    "IQ3_XXS": iq3_xxs,
    "IQ3_S": iq3_s,
    "TQ1_0": _ternary(ternary.decode_tq1_0),
    "TQ2_0": _ternary(ternary.decode_tq2_0),
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
