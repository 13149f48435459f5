"""BLOCK_FORMATS: the table of all element types and block formats of tensors in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from camshaft import dtypes
from camshaft.dtypes import DType
from camshaft.errors import FormatError
from camshaft.formats.bits import Bytes, Floats, Records
from camshaft.formats.quants import iq, k_encode, ternary
from camshaft.formats.quants import k_quants as k
from camshaft.formats.quants import simple as small
from camshaft.formats.quants.iq_grids import GRIDS

_CHUNK_ELEMENTS = 1 << 17  # keeps a chunk's temporaries in the cache
_MAX_F16 = 65504.0  # scales and minima of blocks are f16


@dataclass(frozen=True)
class BlockFormat:
    """The encoding of elements in a file: `block_size` elements in `block_nbytes` bytes.

    `dtype` is set for plain types (block_size 1). `layout` is the packed little-endian NumPy dtype of a block; `decode` turns
    such records [n] into float32 [n, block_size], `encode` does the reverse, with the weights of `importance.py` where it takes
    them; None if unsupported. `ggml_id` is the type's number
    in GGUF, or None.
    """

    name: str
    ggml_id: int | None
    block_size: int
    block_nbytes: int
    dtype: DType | None = None
    layout: np.dtype[Any] | None = field(default=None, compare=False, repr=False)
    decode: Callable[[Records], Floats] | None = field(default=None, compare=False, repr=False)
    encode: Callable[..., Records] | None = field(default=None, compare=False, repr=False)

    @property
    def is_plain(self) -> bool:
        """Whether the elements are of a plain dtype rather than in blocks."""
        return self.dtype is not None

    @property
    def is_readable(self) -> bool:
        """Whether camshaft can decode this format."""
        return self.decode is not None

    def row_nbytes(self, n_elements: int) -> int:
        """Bytes of a row of n_elements. Raises FormatError unless they are a multiple of the block size."""
        if n_elements % self.block_size:
            raise FormatError(f"a row of {n_elements} elements: {self.name} wants a multiple of {self.block_size}")
        return n_elements // self.block_size * self.block_nbytes

    def require_readable(self) -> None:
        """Raise FormatError, naming the format, if camshaft cannot decode it."""
        if not self.is_readable:
            known = ", ".join(name for name, row in BLOCK_FORMATS.items() if row.is_readable)
            raise FormatError(f"{self.name} is a block type camshaft does not read yet; it reads {known}")

    def records(self, blocks: Bytes) -> Records:
        """uint8 [n_blocks, block_nbytes] as records [n_blocks] with the fields of `layout`; a view if contiguous."""
        self.require_readable()
        assert self.layout is not None
        if blocks.dtype != np.uint8 or blocks.ndim != 2 or blocks.shape[1] != self.block_nbytes:
            raise FormatError(
                f"{self.name} blocks came as {blocks.dtype} {list(blocks.shape)}; wanted uint8 [n, {self.block_nbytes}]"
            )
        return np.ascontiguousarray(blocks).reshape(-1).view(self.layout)

    def dequantize(self, blocks: Bytes) -> Floats:
        """uint8 [n_blocks, block_nbytes] to float32 [n_blocks, block_size]. Raises FormatError for an unsupported format."""
        records = self.records(blocks)
        assert self.decode is not None
        values = np.empty((len(records), self.block_size), np.float32)
        step = max(1, _CHUNK_ELEMENTS // self.block_size)
        with np.errstate(invalid="ignore", over="ignore"):  # malicious scales may give infinity or NaN
            for first in range(0, len(records), step):
                values[first : first + step] = self.decode(records[first : first + step])
        return values

    def quantize(self, values: Floats, weights: Floats | None = None) -> Bytes:
        """float32 [n_blocks, block_size] to uint8 [n_blocks, block_nbytes]. `weights` of the same shape are those of errors, for
        an encoder that takes them. Raises FormatError for an unsupported format, and for infinities and NaN, which blocks
        cannot represent."""
        if self.encode is None:
            known = ", ".join(name for name, row in BLOCK_FORMATS.items() if row.encode)
            raise FormatError(f"{self.name} is a type that camshaft does not write; it writes {known}")
        if values.dtype != np.float32 or values.ndim != 2 or values.shape[1] != self.block_size:
            raise FormatError(
                f"{self.name} of {values.dtype} {list(values.shape)}; wanted float32 [n, {self.block_size}]"
            )
        if not self.is_plain and not (np.abs(values) <= _MAX_F16).all():
            raise FormatError(
                f"{self.name} of a value that is infinite, NaN or over {_MAX_F16:g}: no f16 scale holds it"
            )
        blocks = np.empty((len(values), self.block_nbytes), np.uint8)
        step = max(1, _CHUNK_ELEMENTS // self.block_size)
        for first in range(0, len(values), step):
            some = slice(first, first + step)
            part = self.encode(values[some]) if weights is None else self.encode(values[some], weights[some])
            blocks[first : first + step] = part.view(np.uint8).reshape(len(part), self.block_nbytes)
        return blocks


def decode_plain(records: Records) -> Floats:
    return records.astype(np.float32).reshape(-1, 1)


def _plain(name: str, ggml_id: int, dtype: DType) -> BlockFormat:
    little = dtype.numpy if dtype is dtypes.bf16 else dtype.numpy.newbyteorder("<")

    def encode(values: Floats) -> Records:
        with np.errstate(over="ignore"):  # values beyond f16 become infinity
            return values.astype(little)

    return BlockFormat(name, ggml_id, 1, dtype.nbytes, dtype, little, decode_plain, encode if dtype.is_float else None)


def _blocks(
    name: str,
    ggml_id: int,
    block_size: int,
    layout: np.dtype[Any],
    decode: Callable[[Records], Floats],
    encode: Callable[..., Records] | None = None,
) -> BlockFormat:
    return BlockFormat(name, ggml_id, block_size, layout.itemsize, None, layout, decode, encode)


_ROWS = (
    _plain("F32", 0, dtypes.f32),
    _plain("F16", 1, dtypes.f16),
    _blocks("Q4_0", 2, 32, small.Q4_0, small.decode_q4_0, small.encode_q4_0),
    _blocks("Q4_1", 3, 32, small.Q4_1, small.decode_q4_1, small.encode_q4_1),
    _blocks("Q5_0", 6, 32, small.Q5_0, small.decode_q5_0, small.encode_q5_0),
    _blocks("Q5_1", 7, 32, small.Q5_1, small.decode_q5_1, small.encode_q5_1),
    _blocks("Q8_0", 8, 32, small.Q8_0, small.decode_q8_0, small.encode_q8_0),
    BlockFormat("Q8_1", 9, 32, 40),
    _blocks("Q2_K", 10, 256, k.Q2_K, k.decode_q2_k, k_encode.encode_q2_k),
    _blocks("Q3_K", 11, 256, k.Q3_K, k.decode_q3_k, k_encode.encode_q3_k),
    _blocks("Q4_K", 12, 256, k.Q4_K, k.decode_q4_k, k_encode.encode_q4_k),
    _blocks("Q5_K", 13, 256, k.Q5_K, k.decode_q5_k, k_encode.encode_q5_k),
    _blocks("Q6_K", 14, 256, k.Q6_K, k.decode_q6_k, k_encode.encode_q6_k),
    _blocks("Q8_K", 15, 256, k.Q8_K, k.decode_q8_k),
    _blocks("IQ2_XXS", 16, 256, iq.IQ2_XXS, iq.decode_iq2_xxs),
    _blocks("IQ2_XS", 17, 256, iq.IQ2_XS, iq.decode_iq2_xs),
    _blocks("IQ3_XXS", 18, 256, iq.IQ3_XXS, iq.decode_iq3_xxs),
    _blocks("IQ1_S", 19, 256, iq.IQ1_S, iq.decode_iq1_s),
    _blocks("IQ4_NL", 20, 32, small.IQ4_NL, small.decode_iq4_nl, small.encode_iq4_nl),
    _blocks("IQ3_S", 21, 256, iq.IQ3_S, iq.decode_iq3_s),
    _blocks("IQ2_S", 22, 256, iq.IQ2_S, iq.decode_iq2_s),
    _blocks("IQ4_XS", 23, 256, k.IQ4_XS, k.decode_iq4_xs, k_encode.encode_iq4_xs),
    _plain("I8", 24, dtypes.i8),
    _plain("I16", 25, dtypes.i16),
    _plain("I32", 26, dtypes.i32),
    _plain("I64", 27, dtypes.i64),
    _plain("F64", 28, dtypes.f64),
    _blocks("IQ1_M", 29, 256, iq.IQ1_M, iq.decode_iq1_m),
    _plain("BF16", 30, dtypes.bf16),
    _blocks("TQ1_0", 34, 256, ternary.TQ1_0, ternary.decode_tq1_0, ternary.encode_tq1_0),
    _blocks("TQ2_0", 35, 256, ternary.TQ2_0, ternary.decode_tq2_0, ternary.encode_tq2_0),
    _blocks("MXFP4", 39, 32, small.MXFP4, small.decode_mxfp4, small.encode_mxfp4),
    _blocks("NVFP4", 40, 64, small.NVFP4, small.decode_nvfp4),
    BlockFormat("Q1_0", 41, 128, 18),
)

BLOCK_FORMATS: dict[str, BlockFormat] = {row.name: row for row in _ROWS}
_BY_GGML_ID: dict[int | None, BlockFormat] = {row.ggml_id: row for row in _ROWS}

# Type numbers that ggml has retired; only old or experimental tools wrote them.
_RETIRED = {4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8"}
_RETIRED |= {36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8"}


def grid_number(name: str) -> int:
    """The GGUF number of a format whose blocks refer to a grid (quants/iq_grids.py); 0 for other formats."""
    return (BLOCK_FORMATS[name].ggml_id or 0) if name in GRIDS else 0


def by_ggml_id(ggml_id: int) -> BlockFormat:
    """The format with this GGUF type number. Raises FormatError for a retired or unknown number."""
    row = _BY_GGML_ID.get(ggml_id)
    if row is not None:
        return row
    if ggml_id in _RETIRED:
        raise FormatError(f"block type {ggml_id} ({_RETIRED[ggml_id]}) is retired; convert the file again")
    raise FormatError(f"block type {ggml_id} is unknown; wanted a GGUF type from 0 to {_ROWS[-1].ggml_id}")


def quantize_gguf(values: npt.ArrayLike, name: str) -> Bytes:
    """Numbers [..., k] as rows of blocks of a GGUF format: uint8 [..., k / block size * bytes per block].

    Numbers are rounded to float32 first. FormatError for an unknown format, one that camshaft does not write, k that is no
    multiple of the block size, and infinities and NaN, which blocks do not represent.
    """
    row, given = _named(name), np.asarray(values)
    if given.dtype.kind not in "fiubV" or given.dtype.fields:
        raise FormatError(f"values of {given.dtype}; wanted real numbers")
    numbers = given.astype(np.float32)
    shape = (*numbers.shape[:-1], row.row_nbytes(numbers.shape[-1] if numbers.ndim else 1))
    return row.quantize(numbers.reshape(-1, row.block_size)).reshape(shape)


def dequantize_gguf(blocks: Bytes, name: str, to: str = "f32") -> npt.NDArray[Any]:
    """Rows of blocks of a GGUF format, uint8 [..., n], as numbers [..., n / bytes per block * block size] of f32, f16 or bf16.

    FormatError for an unknown format, one that camshaft does not read, rows that are not whole blocks, and other dtypes.
    """
    row, dtype = _named(name), dtypes.NAMED.get(to) if isinstance(to, str) else None
    if dtype not in (dtypes.f32, dtypes.f16, dtypes.bf16):
        raise FormatError(f"to {to!r}; wanted f32, f16 or bf16")
    if not isinstance(blocks, np.ndarray) or blocks.dtype != np.uint8:
        raise FormatError(f"blocks of {getattr(blocks, 'dtype', type(blocks).__name__)}; wanted an array of uint8")
    if blocks.ndim == 0 or blocks.shape[-1] % row.block_nbytes:
        got = blocks.shape[-1] if blocks.ndim else 1
        raise FormatError(f"a row of {got} bytes: {name} wants a multiple of {row.block_nbytes}")
    values = row.dequantize(blocks.reshape(-1, row.block_nbytes))
    shape = (*blocks.shape[:-1], blocks.shape[-1] // row.block_nbytes * row.block_size)
    with np.errstate(over="ignore"):  # values beyond f16 become infinity
        return values.reshape(shape).astype(dtype.numpy, copy=False)


def _named(name: str) -> BlockFormat:
    if not isinstance(name, str) or name not in BLOCK_FORMATS:
        raise FormatError(f"no block format {name!r}; wanted one of {', '.join(BLOCK_FORMATS)}")
    return BLOCK_FORMATS[name]
