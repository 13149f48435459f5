"""How quantized weights are packed once at load: 16 rows interleaved, so that a 32-bit lane holds 4 consecutive k of its row.

A weight is code * scale + minimum, group by group of k (minimum = -zero_point * scale where it is not stored). In a block of
32 k, 8-bit codes give 8 words a row; 4-bit codes give 4: word w holds k 4w..4w+3 in the low nibbles and 16 + 4w.. in the
high ones. GEMV, GEMM and embedding read this one layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dtypes import DType, f16, f32, u32
from camshaft.errors import ShapeError
from camshaft.formats import bits, k_blocks, small_blocks
from camshaft.formats.blocks import BlockFormat
from camshaft.ops.quantized_matmul.pack_kernels import WORD_FORMATS, pack_words
from camshaft.ops.spec import Layout, TensorSpec

ROWS = 16  # rows interleaved: the 32-bit lanes of a 512-bit vector
BLOCK = 32  # k per block of the packed layout
Array = np.ndarray[Any, Any]
Codes = tuple[Array, Array, Array | None]
_CHUNK_ROWS = 4096


@dataclass(frozen=True)
class PackedFormat:
    """`bits` a code, `group` k per scale, the scales' dtype; `zero_point` None where minima are stored.

    `decode(records [n]) -> codes uint8 [n, size], scales [n, size / group], minima or None` in the file's order of k.
    """

    bits: int
    group: int
    scale_dtype: DType
    zero_point: int | None
    decode: Callable[[Array], Codes]

    @property
    def words(self) -> int:
        """32-bit words a row and block of 32."""
        return self.bits

    @property
    def groups(self) -> int:
        """Scales a row and block of 32."""
        return BLOCK // self.group


def _nibbles(records: Array) -> Array:
    return bits.bit_fields(records["qs"], 4).reshape(len(records), -1)


def _nibbles_of_32(records: Array, size: int) -> Array:
    """Groups of `size` bytes: low nibbles first, then high ones."""
    return bits.bit_fields(records["qs"].reshape(len(records), -1, size), 4).reshape(len(records), -1)


def _one(field: Array) -> Array:
    column: Array = field[:, None]
    return column


def _q4_0(r: Array) -> Codes:
    return _nibbles(r), _one(r["d"]), None


def _q4_1(r: Array) -> Codes:
    return _nibbles(r), _one(r["d"]), _one(r["m"])


def _five(r: Array) -> Array:
    fifth = np.unpackbits(np.ascontiguousarray(r["qh"]), axis=-1, bitorder="little")
    codes: Array = _nibbles(r) | (fifth << np.uint8(4))
    return codes


def _q5_0(r: Array) -> Codes:
    return _five(r), _one(r["d"]), None


def _q5_1(r: Array) -> Codes:
    return _five(r), _one(r["d"]), _one(r["m"])


def _q8_0(r: Array) -> Codes:
    codes: Array = r["qs"].view(np.uint8) ^ np.uint8(128)
    return codes, _one(r["d"]), None


def _iq4_nl(r: Array) -> Codes:
    return (bits.IQ4_VALUES + 128).astype(np.uint8)[_nibbles(r)], _one(r["d"]), None


def _mxfp4(r: Array) -> Codes:
    return (bits.E2M1_DOUBLED + 12).astype(np.uint8)[_nibbles(r)], _one(small_blocks.e8m0_half(r["e"])), None


def _k_scaled(r: Array, scales: Array) -> Array:
    return bits.as_float(r["d"]) * scales.astype(np.float32)


def _k_minima(r: Array, minima: Array) -> Array:
    return -(bits.as_float(r["dmin"]) * minima.astype(np.float32))


def _two_bits(r: Array) -> Array:
    return bits.bit_fields(r["qs"].reshape(-1, 2, 32), 2).reshape(-1, 256)


def _q2_k(r: Array) -> Codes:
    return _two_bits(r), _k_scaled(r, r["scales"] & 15), _k_minima(r, r["scales"] >> 4)


def _q3_k(r: Array) -> Codes:
    high = bits.bit_fields(r["hmask"], 1).reshape(-1, 256)
    return _two_bits(r) | (high << np.uint8(2)), _k_scaled(r, k_blocks.q3_scales(r["scales"])), None


def _q4_k(r: Array) -> Codes:
    scales, minima = k_blocks.k_scales(r["scales"])
    return _nibbles_of_32(r, 32), _k_scaled(r, scales), _k_minima(r, minima)


def _q5_k(r: Array) -> Codes:
    scales, minima = k_blocks.k_scales(r["scales"])
    high = bits.bit_fields(r["qh"], 1).reshape(-1, 256)
    return _nibbles_of_32(r, 32) | (high << np.uint8(4)), _k_scaled(r, scales), _k_minima(r, minima)


def _q6_k(r: Array) -> Codes:
    low = bits.bit_fields(r["ql"].reshape(-1, 2, 64), 4).reshape(-1, 256)
    high = bits.bit_fields(r["qh"].reshape(-1, 2, 32), 2).reshape(-1, 256)
    return low | (high << np.uint8(4)), _k_scaled(r, r["scales"]), None


def _iq4_xs(r: Array) -> Codes:
    codes = (bits.IQ4_VALUES + 128).astype(np.uint8)[_nibbles_of_32(r, 16)]
    return codes, _k_scaled(r, k_blocks.iq4_xs_scales(r["scales_l"], r["scales_h"])), None


PACKED_FORMATS: dict[str, PackedFormat] = {
    "Q4_0": PackedFormat(4, 32, f16, 8, _q4_0),
    "Q4_1": PackedFormat(4, 32, f16, None, _q4_1),
    "Q5_0": PackedFormat(8, 32, f16, 16, _q5_0),
    "Q5_1": PackedFormat(8, 32, f16, None, _q5_1),
    "Q8_0": PackedFormat(8, 32, f16, 128, _q8_0),
    "Q2_K": PackedFormat(8, 16, f32, None, _q2_k),
    "Q3_K": PackedFormat(8, 16, f32, 4, _q3_k),
    "Q4_K": PackedFormat(4, 32, f32, None, _q4_k),
    "Q5_K": PackedFormat(8, 32, f32, None, _q5_k),
    "Q6_K": PackedFormat(8, 16, f32, 32, _q6_k),
    "IQ4_NL": PackedFormat(8, 32, f16, 128, _iq4_nl),
    "IQ4_XS": PackedFormat(8, 32, f32, 128, _iq4_xs),
    "MXFP4": PackedFormat(8, 32, f32, 12, _mxfp4),
}


def packed_format(spec: TensorSpec) -> PackedFormat:
    """The packed form of a block-format tensor. ShapeError for a block type without one, naming it."""
    name = spec.dtype.name
    if name not in PACKED_FORMATS:
        raise ShapeError(
            f"quantized_matmul: no kernel for weights of {name}; wanted one of {', '.join(PACKED_FORMATS)}"
        )
    return PACKED_FORMATS[name]


def _parts(spec: TensorSpec) -> tuple[tuple[str, DType, tuple[int, ...]], ...]:
    form = packed_format(spec)
    n, k = spec.bounds
    tiles, blocks = -(-n // ROWS), k // BLOCK
    scales = (tiles, blocks, form.groups, ROWS)
    parts = [("codes", u32, (tiles, blocks, form.words, ROWS)), ("scales", form.scale_dtype, scales)]
    if form.zero_point is None:
        parts.append(("minima", form.scale_dtype, scales))
    return tuple(parts)


INTERLEAVED = Layout("interleaved", _parts)


def interleaved(spec: TensorSpec) -> TensorSpec:
    """The packed spec of a weight [n, k] in a block format."""
    packed_format(spec)
    return TensorSpec(spec.shape, spec.dtype, INTERLEAVED)


def pack(data: Array, spec: TensorSpec, out: Array) -> None:
    """The file's bytes of a weight (uint8) into `out` (uint8, spec.nbytes of the packed spec). Padding rows are zero."""
    form, block = packed_format(spec), spec.dtype
    assert isinstance(block, BlockFormat)
    if block.name in WORD_FORMATS:
        pack_words(data, block.name, spec, out)
        return
    n, k = spec.bounds
    views = {p.name: _view(out, p.offset_nbytes, p.nbytes, p.dtype).reshape(p.shape) for p in spec.parts}
    per_row = k // block.block_size
    records = block.records(data.reshape(n * per_row, block.block_nbytes)).reshape(n, per_row)
    for first in range(0, n, _CHUNK_ROWS):
        chunk = records[first : first + _CHUNK_ROWS]
        codes, scales, minima = form.decode(chunk.reshape(-1))
        tiles = slice(first // ROWS, -(-(first + len(chunk)) // ROWS))
        _interleave(_words(codes.reshape(len(chunk), k // BLOCK, BLOCK), form.bits), views["codes"][tiles])
        shape = (len(chunk), k // BLOCK, form.groups)
        _interleave(scales.reshape(shape), views["scales"][tiles])
        if minima is not None:
            _interleave(minima.reshape(shape), views["minima"][tiles])


def _view(out: Array, offset: int, nbytes: int, dtype: DType) -> Array:
    return out[offset : offset + nbytes].view(dtype.numpy)


def _words(codes: Array, n_bits: int) -> Array:
    """Codes [n, blocks, 32] to words [n, blocks, bits]."""
    if n_bits == 4:
        codes = codes[..., :16] | (codes[..., 16:] << np.uint8(4))
    return np.ascontiguousarray(codes).view(np.uint32)


def _interleave(values: Array, out: Array) -> None:
    """values [n, blocks, m] to out [tiles, blocks, m, 16]; rows past n are zero."""
    n, tiles = len(values), len(out)
    whole = n // ROWS
    out[:whole] = values[: whole * ROWS].reshape(whole, ROWS, *values.shape[1:]).transpose(0, 2, 3, 1)
    if tiles > whole:
        out[whole] = 0
        out[whole, ..., : n - whole * ROWS] = values[whole * ROWS :].transpose(1, 2, 0)
