"""How quantized weights are packed once at load: 16 rows interleaved, so that a 32-bit lane holds 4 consecutive k of its row.

A weight is code * scale + minimum, group by group of k (minimum = -zero_point * scale where it is not stored). Where a format has
a `table`, what is packed is not the code but its place there, of 4 bits, which kernels look up (byte_lookup). In a block of 32 k,
codes of n bits take n words a row: code word w, of 0 to 7, is k 4w..4w+3, a byte each, of which the packed words hold

- 8 bits: all of it, in word w;
- 4 to 6 bits: the low nibble, in word w % 4 (the high half of each byte for w over 3); 2 and 3 bits: the low two bits, in word
  w // 4 (bits 2 (w % 4) of each byte);
- then the bits above: one, at bit w of each byte of one word; or two, in words like those of two low bits.

Formats of 256 (SUPER blocks) keep their scales nested, as the file has them: small whole numbers a group, f16 steps a
super-block; the minima beside them, or in the high nibbles (`is_joint`). GEMV, GEMM and embedding read this one layout
(unpacking.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dtypes import DType, f16, i8, u8, u32
from camshaft.errors import ShapeError
from camshaft.formats.bits import E2M1_DOUBLED, IQ4_VALUES
from camshaft.formats.blocks import BlockFormat
from camshaft.ops.quantized_matmul import decoding
from camshaft.ops.quantized_matmul.pack_kernels import WORD_FORMATS, pack_words
from camshaft.ops.spec import Layout, TensorSpec

ROWS = 16  # rows interleaved: the 32-bit lanes of a 512-bit vector
BLOCK = 32  # k per block of the packed layout
SUPER = 8  # blocks that share the steps of nested scales
Array = np.ndarray[Any, Any]

_CHUNK_ROWS = 4096


@dataclass(frozen=True)
class PackedFormat:
    """`bits` a code, `group` k per scale, the scales' dtype (nested ones are 8-bit numbers); `zero_point` None where minima are
    stored; `is_joint`: scale and minimum share a byte; `table`: the 16 values that codes are looked up in, zero point added;
    `is_exponent`: a scale is 2^(byte - 128)."""

    bits: int
    group: int
    scale_dtype: DType
    zero_point: int | None
    decode: Callable[[Array], decoding.Decoded]
    is_joint: bool = False
    table: tuple[int, ...] | None = None
    is_exponent: bool = False

    @property
    def has_minima(self) -> bool:
        """Whether minima are stored."""
        return self.zero_point is None

    @property
    def sums(self) -> tuple[int, int]:
        """The kind of sums of activations that it wants: a key of quantize_activations.LAYOUTS."""
        return self.group, self.zero_point or 0

    @property
    def is_nested(self) -> bool:
        """Whether scales are whole numbers of steps."""
        return self.scale_dtype in (i8, u8) and not self.is_exponent

    @property
    def groups(self) -> int:
        """Scales a row and block of 32."""
        return BLOCK // self.group


_IQ4 = tuple(int(value) + 128 for value in IQ4_VALUES)
_E2M1 = tuple(int(value) + 12 for value in E2M1_DOUBLED)
PACKED_FORMATS: dict[str, PackedFormat] = {
    "Q4_0": PackedFormat(4, 32, f16, 8, decoding.q4_0),
    "Q4_1": PackedFormat(4, 32, f16, None, decoding.q4_1),
    "Q5_0": PackedFormat(5, 32, f16, 16, decoding.q5_0),
    "Q5_1": PackedFormat(5, 32, f16, None, decoding.q5_1),
    "Q8_0": PackedFormat(8, 32, f16, 128, decoding.q8_0),
    "Q2_K": PackedFormat(2, 16, u8, None, decoding.q2_k, is_joint=True),
    "Q3_K": PackedFormat(3, 16, i8, 4, decoding.q3_k),
    "Q4_K": PackedFormat(4, 32, u8, None, decoding.q4_k),
    "Q5_K": PackedFormat(5, 32, u8, None, decoding.q5_k),
    "Q6_K": PackedFormat(6, 16, i8, 32, decoding.q6_k),
    "IQ4_NL": PackedFormat(4, 32, f16, 128, decoding.iq4_nl, table=_IQ4),
    "IQ4_XS": PackedFormat(4, 32, i8, 128, decoding.iq4_xs, table=_IQ4),
    "MXFP4": PackedFormat(4, 32, u8, 12, decoding.mxfp4, table=_E2M1, is_exponent=True),
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
    numbers = 2 if form.has_minima else 1  # a scale, and a minimum
    codes = ("codes", u32, (tiles, blocks, form.bits, ROWS))
    if form.is_nested:
        small = ("scales", form.scale_dtype, (tiles, blocks, form.groups * (1 if form.is_joint else numbers), ROWS))
        return codes, small, ("steps", f16, (tiles, blocks // SUPER, numbers, ROWS))
    scales = (tiles, blocks, form.groups, ROWS)
    return codes, *((name, form.scale_dtype, scales) for name in ("scales", "minima")[:numbers])


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
        parts = _laid_out(form.decode(chunk.reshape(-1)), form, len(chunk))
        tiles = slice(first // ROWS, -(-(first + len(chunk)) // ROWS))
        for name, view in views.items():
            _interleave(parts[name], view[tiles])


def _laid_out(decoded: decoding.Decoded, form: PackedFormat, n: int) -> dict[str, Array]:
    """The values of every part for n rows, [n, blocks or super-blocks, m]."""
    codes, scales, minima, steps = decoded
    parts = {"codes": _words(codes.reshape(n, -1, BLOCK), form.bits)}
    if steps is None:
        parts["scales"] = scales.reshape(n, -1, form.groups)
        return parts if minima is None else parts | {"minima": minima.reshape(n, -1, form.groups)}
    both = scales if minima is None else np.stack([scales, minima], axis=-1)
    blocks = codes.size // n // BLOCK
    return parts | {"scales": both.reshape(n, blocks, -1), "steps": steps.reshape(n, -1, steps.shape[-1])}


def _view(out: Array, offset: int, nbytes: int, dtype: DType) -> Array:
    return out[offset : offset + nbytes].view(dtype.numpy)


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
