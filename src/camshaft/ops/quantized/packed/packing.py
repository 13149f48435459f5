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
(weights.py).
"""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuKernel, cpu_device
from camshaft.backends.cpu.loaded import ROWS as ROWS
from camshaft.backends.cpu.loaded import Packing
from camshaft.dtypes import DType, f16, u8, u16, u32
from camshaft.errors import ShapeError
from camshaft.formats.blocks import BLOCK_FORMATS, grid_number
from camshaft.lang import Array, CompileRequest, Constant, Tracer, Value, ir, kernel
from camshaft.ops.quantized.packed.formats import BLOCK, PACKED_FORMATS, PackedFormat
from camshaft.ops.quantized.packed.raw_blocks import RAW_FORMATS, Record
from camshaft.ops.quantized.packed.raw_grids import GRID_FORMATS
from camshaft.ops.spec import Layout, TensorSpec

SUPER = 8  # blocks that share the steps of nested scales
LINE = 16  # 32-bit words of a cache line
_ANY = 1 << 40  # declared elements: the arrays' real sizes are known when the kernel runs
Memory = np.ndarray[Any, Any]


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
    # a lane is one of the tile's 16 rows of `records` records; rows past n are zero; `last` is the last word of raw; `grid` is
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
