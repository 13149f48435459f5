"""The packed layout of quantized weights: 16 rows interleaved, so that a 32-bit lane has 4 consecutive k of its row.

A weight is code * scale + minimum, group by group of k (minimum = -zero_point * scale where it is not stored). Where a format has
a `table`, its index of 3 or 4 bits is packed instead of the code, and kernels look it up (byte_lookup). In a block of 32 k,
codes of n bits take n words per row: code word w, of 0 to 7, is k 4w..4w+3, a byte each, of which the packed words contain

- 8 bits: all of it, in word w;
- 4 to 6 bits: the low nibble, in word w % 4 (the high half of each byte for w over 3); 2 and 3 bits: the low two bits, in word
  w // 4 (bits 2 (w % 4) of each byte);
- then the bits above: one, at bit w of each byte of one word; or two, in words like those of two low bits.

Formats of 256 (k-quants, SUPER blocks) have the file's nested scales: a small integer per group and f16 steps per
super-block. Their minima follow the scales, or are in the high nibbles (`is_joint`). GEMV, GEMM and embedding read this layout
(operands.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuKernel, cpu_device
from camshaft.backends.cpu.loaded import ROWS as ROWS
from camshaft.backends.cpu.loaded import Packing
from camshaft.dtypes import DType, f16, i8, u8, u16, u32
from camshaft.errors import ShapeError
from camshaft.formats.bits import E2M1_DOUBLED, IQ4_VALUES
from camshaft.formats.blocks import BLOCK_FORMATS, grid_number
from camshaft.formats.quants.iq_grids import GRIDS
from camshaft.lang import Array, CompileRequest, Constant, Tracer, Value, ir, kernel
from camshaft.ops.quantized.raw_blocks import RAW_FORMATS, Record
from camshaft.ops.quantized.raw_grids import GRID_FORMATS
from camshaft.ops.spec import Layout, TensorSpec

BLOCK = 32  # k per block of the packed layout
SUPER = 8  # blocks that share the steps of nested scales
LINE = 16  # 32-bit words of a cache line
_ANY = 1 << 40  # declared elements: the arrays' real sizes are known when the kernel runs
Memory = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PackedFormat:
    """The packed form of a block format: `bits` per code, `group` k per scale, and the scales' dtype (8-bit integers if
    nested). `zero_point` is None if minima are stored. `is_joint`: scale and minimum share a byte. `table`: the 16 values of
    the codes, plus the zero point. `is_exponent`: a scale is 2^(byte - 128); `is_e4m3`: half an E4M3 byte. `unit`: the steps of
    nested scales are stored divided by it."""

    bits: int
    group: int
    scale_dtype: DType
    zero_point: int | None
    is_joint: bool = False
    table: tuple[int, ...] | None = None
    is_exponent: bool = False
    is_e4m3: bool = False
    unit: float = 1.0

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
        return self.scale_dtype in (i8, u8) and not (self.is_exponent or self.is_e4m3)

    @property
    def groups(self) -> int:
        """Scales per row and block of 32."""
        return BLOCK // self.group


_IQ4 = tuple(int(value) + 128 for value in IQ4_VALUES)
_E2M1 = tuple(int(value) + 12 for value in E2M1_DOUBLED)


def _signed(name: str, zero_point: int) -> tuple[int, ...]:
    """The numbers of a grid's levels, then of those below zero, 16 in all; levels of 3 are indexes of 2 bits."""
    levels = GRIDS[name].levels
    spare = (0,) * ((1 << (len(levels) - 1).bit_length()) - len(levels))
    half = (*levels, *spare)
    return _table((*half, *(-level for level in half)), zero_point)


def _table(numbers: tuple[int, ...], zero_point: int) -> tuple[int, ...]:
    return tuple(number + zero_point for number in numbers) + (0,) * (16 - len(numbers))


_IQ2 = _signed("IQ2_S", 128)
# 8 level +- 1 of IQ1's levels -1, 0 and 1, in units of d / 8
_IQ1 = _table((-7, 1, 9, 0, -9, -1, 7, 0), 12)
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
    "NVFP4": PackedFormat(4, 16, u8, 12, table=_E2M1, is_e4m3=True),
    "IQ1_S": PackedFormat(2, 32, u8, None, unit=1 / 8),
    "IQ1_M": PackedFormat(3, 16, i8, 12, table=_IQ1, unit=1 / 8),
    "IQ2_XXS": PackedFormat(3, 32, i8, 128, table=_IQ2, unit=1 / 8),
    "IQ2_XS": PackedFormat(3, 16, i8, 128, table=_IQ2, unit=1 / 8),
    "IQ2_S": PackedFormat(3, 16, i8, 128, table=_IQ2, unit=1 / 8),
    "IQ3_XXS": PackedFormat(4, 32, i8, 128, table=_signed("IQ3_XXS", 128), unit=1 / 4),
    "IQ3_S": PackedFormat(4, 32, i8, 16, table=_signed("IQ3_S", 16)),
    "TQ1_0": PackedFormat(2, 32, i8, 1),
    "TQ2_0": PackedFormat(2, 32, i8, 1),
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
    n, k = prod(spec.bounds[:-1]), spec.bounds[-1]
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
    """Returns the packed spec of a weight [n, k] in a block format, or of a stack [experts, n, k], whose rows are numbered over
    all experts."""
    packed_format(spec)
    return TensorSpec(spec.shape, spec.dtype, INTERLEAVED)


def pack(data: Memory, spec: TensorSpec, out: Memory) -> None:
    """Packs a weight from the file's bytes (uint8) into `out` (uint8, spec.nbytes of the packed spec). Padding rows are 0."""
    packed_format(spec)
    pack_tiles(data, spec, out, 0, tiles_of(spec))


def tiles_of(spec: TensorSpec) -> int:
    """Returns the number of tiles of 16 rows of a weight."""
    return -(-prod(spec.bounds[:-1]) // ROWS)


@kernel
def pack_rows(
    k: Tracer,
    raw: Array,
    grid: Array,
    codes: Array,
    scales: Array,
    extra: Array,
    n: Value,
    records: Value,
    last: Value,
    *,
    block: str,
    bits: int,
) -> None:
    # a lane is one of the tile's 16 rows of so many `records`; rows past n are zero; `last` is the last word of raw; `grid` is
    # only read for formats with one
    tile, form = k.program(0), (RAW_FORMATS | GRID_FORMATS)[block]
    nbytes, blocks = BLOCK_FORMATS[block].block_nbytes, BLOCK_FORMATS[block].block_size // BLOCK
    for b in k.range(records):
        place = tile * records + b
        # the next tile's rows: 16 are too many streams for hardware prefetching
        ahead = (place + records) * (ROWS * nbytes // 4)
        for line in range(0, ROWS * nbytes // 4, LINE):
            k.prefetch(raw, k.minimum(ahead + line, last))
        for r in k.lanes(ROWS):
            row = tile * ROWS + r
            inside = row < n
            record = Record(k, raw, (k.minimum(row, n - 1) * records + b) * nbytes, last, block, grid)

            def store(array: Array, values: list[Value], at: Value, r: Value = r, inside: Value = inside) -> None:
                for i, value in enumerate(values):
                    array[(at * len(values) + i) * ROWS + r] = k.select(inside, value, 0)

            for j in range(blocks):
                at = place * blocks + j
                store(codes, packed_words(form.codes(record, j), bits), at)
                store(scales, form.scales(record, j), at)
                if form.minima is not None:
                    store(extra, form.minima(record, j), at)
            if form.steps is not None:
                store(extra, form.steps(record), place)


def packed_words(codes: list[Value], bits: int) -> list[Value]:
    """Packs a block's 8 words of codes, a byte each, to the `bits` words of packing.py."""
    if bits == 8:
        return codes
    first = 4 if bits >= 4 else 2
    words = [_joined(codes[i::4], first) for i in range(4)] if first == 4 else _pairs(codes, 0)
    if bits - first == 1:
        words.append(_joined([(code >> first) & 0x01010101 for code in codes], 1))
    if bits - first == 2:
        words += _pairs(codes, first)
    return words


def _pairs(codes: list[Value], shift: int) -> list[Value]:
    """Packs two bits of each code, four words into one."""
    two = [(code >> shift if shift else code) & 0x03030303 for code in codes]
    return [_joined(two[:4], 2), _joined(two[4:], 2)]


def _joined(words: list[Value], bits: int) -> Value:
    """Joins words: in each byte, places the low `bits` bits of each word above those of the previous word."""
    total = words[0] & (0x01010101 * ((1 << bits) - 1))
    for i, word in enumerate(words[1:], 1):
        total = total | ((word & (0x01010101 * ((1 << bits) - 1))) << (bits * i))
    return total


def packing_of(spec: TensorSpec) -> Packing:
    """Returns how to pack a weight [n, k] of a packed spec: the kernel of its format, sizes and offsets. Sizes are run-time
    scalars of the kernel, so that a format is compiled once for weights of every shape."""
    name, n, columns = spec.dtype.name, prod(spec.bounds[:-1]), spec.bounds[-1]
    places = {part.name: part.offset_nbytes for part in spec.parts}
    return Packing(
        kernel=_compiled(name, spec.part("codes").shape[2], spec.part("scales").dtype.nbytes),
        n_rows=n,
        n_records=columns // BLOCK_FORMATS[name].block_size,
        row_nbytes=TensorSpec(spec.shape, spec.dtype).nbytes // n,
        n_tiles=-(-n // ROWS),
        codes=places["codes"],
        scales=places["scales"],
        extra=places.get("steps", places.get("minima", places["scales"])),
        grid=grid_number(name),
    )


def pack_tiles(data: Memory, spec: TensorSpec, out: Memory, first: int, last: int) -> None:
    """Packs tiles [first, last) of 16 rows of a weight [n, k] from the file's bytes into `out` (spec.nbytes bytes).

    Both are uint8. Runs on this thread, without the GIL.
    """
    packing_of(spec).pack(data, out, first, last)


@functools.cache
def _compiled(name: str, bits: int, scale_nbytes: int) -> CpuKernel:
    """Cached here too: a lookup by sources takes 100 microseconds, and a load makes hundreds."""
    arrays = (
        ir.ArrayParam("raw", u32, (_ANY,)),
        ir.ArrayParam("grid", u32, (_ANY,)),
        ir.ArrayParam("codes", u32, (_ANY,), True),
        ir.ArrayParam("scales", u8 if scale_nbytes == 1 else u16, (_ANY,), True),
        ir.ArrayParam("extra", u16, (_ANY,), True),
    )
    constants: dict[str, Constant] = {"block": name, "bits": bits}
    grid = (ir.GridDim(scalar="n", divisor=ROWS),)
    return cpu_device().compile(CompileRequest(pack_rows, arrays, ("n", "records", "last"), constants, grid))
