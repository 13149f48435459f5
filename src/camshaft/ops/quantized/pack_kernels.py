"""The kernel that packs weights: blocks of a file (raw_blocks.py) into the layout of packing.py, 16 rows per program.

Sizes are run-time scalars, so that a format is compiled once for weights of every shape.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuKernel, cpu_device
from camshaft.backends.cpu.loaded import ROWS as ROWS
from camshaft.backends.cpu.loaded import Packing
from camshaft.dtypes import u8, u16, u32
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.lang import Array, CompileRequest, Constant, Tracer, Value, ir, kernel
from camshaft.ops.quantized.raw_blocks import RAW_FORMATS, Record
from camshaft.ops.spec import TensorSpec

BLOCK = 32  # k per block of the packed layout
LINE = 16  # 32-bit words of a cache line
_ANY = 1 << 40  # declared elements: the arrays' real sizes are known when the kernel runs
Memory = np.ndarray[Any, Any]


@kernel
def pack_rows(
    k: Tracer,
    raw: Array,
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
    # a lane is one of the tile's 16 rows of so many `records`; rows past n are zero; `last` is the last word of raw
    tile, form = k.program(0), RAW_FORMATS[block]
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
            record = Record(k, raw, (k.minimum(row, n - 1) * records + b) * nbytes, last, block)

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
    """Returns how to pack a weight [n, k] of a packed spec: the kernel of its format, sizes and offsets."""
    name, (n, columns) = spec.dtype.name, spec.bounds
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
        ir.ArrayParam("codes", u32, (_ANY,), True),
        ir.ArrayParam("scales", u8 if scale_nbytes == 1 else u16, (_ANY,), True),
        ir.ArrayParam("extra", u16, (_ANY,), True),
    )
    constants: dict[str, Constant] = {"block": name, "bits": bits}
    grid = (ir.GridDim(scalar="n", divisor=ROWS),)
    return cpu_device().compile(CompileRequest(pack_rows, arrays, ("n", "records", "last"), constants, grid))
