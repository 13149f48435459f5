"""The packed layout of quantized weights: 16 rows interleaved, so that a 32-bit lane has 4 consecutive k of its row.

A weight is code * scale + minimum, group by group of k (minimum = -zero_point * scale where it is not stored). Where a format has
a `table`, its 4-bit index is packed instead of the code, and kernels look it up (byte_lookup). In a block of 32 k,
codes of n bits take n words per row: code word w, of 0 to 7, is k 4w..4w+3, a byte each, of which the packed words contain

- 8 bits: all of it, in word w;
- 4 to 6 bits: the low nibble, in word w % 4 (the high half of each byte for w over 3); 2 and 3 bits: the low two bits, in word
  w // 4 (bits 2 (w % 4) of each byte);
- then the bits above: one, at bit w of each byte of one word; or two, in words like those of two low bits.

Formats of 256 (k-quants, SUPER blocks) keep the file's nested scales: a small integer per group and f16 steps per
super-block; the minima beside them, or in the high nibbles (`is_joint`). GEMV, GEMM and embedding read this one layout
(unpacking.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dtypes import DType, f16, i8, u8, u32
from camshaft.errors import ShapeError
from camshaft.formats.bits import E2M1_DOUBLED, IQ4_VALUES
from camshaft.ops.quantized.pack_kernels import BLOCK as BLOCK
from camshaft.ops.quantized.pack_kernels import ROWS as ROWS
from camshaft.ops.quantized.pack_kernels import pack_tiles
from camshaft.ops.spec import Layout, TensorSpec

SUPER = 8  # blocks that share the steps of nested scales
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PackedFormat:
    """The packed form of a block format: `bits` per code, `group` k per scale, and the scales' dtype (8-bit integers if
    nested). `zero_point` is None if minima are stored. `is_joint`: scale and minimum share a byte. `table`: the 16 values of
    the codes, plus the zero point. `is_exponent`: a scale is 2^(byte - 128)."""

    bits: int
    group: int
    scale_dtype: DType
    zero_point: int | None
    is_joint: bool = False
    table: tuple[int, ...] | None = None
    is_exponent: bool = False

    @property
    def has_minima(self) -> bool:
        """Whether minima are stored."""
        return self.zero_point is None

    @property
    def sums(self) -> tuple[int, int]:
        """The kind of activation sums that it needs: a key of quantize_activations.LAYOUTS."""
        return self.group, self.zero_point or 0

    @property
    def is_nested(self) -> bool:
        """Whether scales are integer multiples of steps."""
        return self.scale_dtype in (i8, u8) and not self.is_exponent

    @property
    def groups(self) -> int:
        """Scales per row and block of 32."""
        return BLOCK // self.group


_IQ4 = tuple(int(value) + 128 for value in IQ4_VALUES)
_E2M1 = tuple(int(value) + 12 for value in E2M1_DOUBLED)
PACKED_FORMATS: dict[str, PackedFormat] = {
    "Q4_0": PackedFormat(4, 32, f16, 8),
    "Q4_1": PackedFormat(4, 32, f16, None),
    "Q5_0": PackedFormat(5, 32, f16, 16),
    "Q5_1": PackedFormat(5, 32, f16, None),
    "Q8_0": PackedFormat(8, 32, f16, 128),
    "Q2_K": PackedFormat(2, 16, u8, None, is_joint=True),
    "Q3_K": PackedFormat(3, 16, i8, 4),
    "Q4_K": PackedFormat(4, 32, u8, None),
    "Q5_K": PackedFormat(5, 32, u8, None),
    "Q6_K": PackedFormat(6, 16, i8, 32),
    "IQ4_NL": PackedFormat(4, 32, f16, 128, table=_IQ4),
    "IQ4_XS": PackedFormat(4, 32, i8, 128, table=_IQ4),
    "MXFP4": PackedFormat(4, 32, u8, 12, table=_E2M1, is_exponent=True),
}


def packed_format(spec: TensorSpec) -> PackedFormat:
    """Returns the packed form of a block-format tensor. ShapeError if its block type has none."""
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
    """Returns the packed spec of a weight [n, k] in a block format."""
    packed_format(spec)
    return TensorSpec(spec.shape, spec.dtype, INTERLEAVED)


def pack(data: Array, spec: TensorSpec, out: Array) -> None:
    """Packs a weight from the file's bytes (uint8) into `out` (uint8, spec.nbytes of the packed spec). Padding rows are 0."""
    packed_format(spec)
    pack_tiles(data, spec, out, 0, tiles_of(spec))


def tiles_of(spec: TensorSpec) -> int:
    """Returns the number of tiles of 16 rows of a weight."""
    return -(-spec.bounds[0] // ROWS)
