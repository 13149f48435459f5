"""Kernels that interleave weights whose codes lie in the file as the packed layout wants them: Q4_0, Q4_1, Q8_0.

Other block formats are taken apart by NumPy in packing.py, which also says what the layout is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuKernel, cpu_device
from camshaft.dtypes import DType, u16, u32
from camshaft.lang import ir
from camshaft.lang.kernel import kernel
from camshaft.lang.tracer import Array, Tracer
from camshaft.ops.spec import TensorSpec

ROWS = 16
Memory = np.ndarray[Any, Any]


@dataclass(frozen=True)
class WordFormat:
    """A block in the file as `size` elements of `word`: the first holds the scale (and the minimum above it), the rest codes.
    `flip` is xored into each 32-bit word of codes."""

    word: DType
    size: int
    has_minimum: bool = False
    flip: int = 0


WORD_FORMATS: dict[str, WordFormat] = {
    "Q4_0": WordFormat(u16, 9),
    "Q4_1": WordFormat(u32, 5, has_minimum=True),
    "Q8_0": WordFormat(u16, 17, flip=0x80808080),
}


@kernel
def interleave_rows(
    k: Tracer,
    raw: Array,
    codes: Array,
    scales: Array,
    minima: Array,
    *,
    n: int,
    blocks: int,
    words: int,
    size: int,
    first: int,
    wide: bool,
    flip: int,
    has_minimum: bool,
) -> None:
    # a lane is one of the tile's 16 rows; rows past n are zero. Halves of 32-bit raw words come first-low.
    tile = k.program(0)
    for b in k.range(blocks):
        for r in k.lanes(ROWS):
            row = tile * ROWS + r
            inside, source = row < n, k.minimum(row, n - 1)
            for w in range(words):
                if wide:
                    word = k.gather(raw, source, b * size + (first + w))
                else:
                    low, high = (k.gather(raw, source, b * size + (first + 2 * w + i)) for i in (0, 1))
                    word = low | (high << 16)
                codes[tile, b, w, r] = k.select(inside, word ^ flip, 0)
            head = k.select(inside, k.gather(raw, source, b * size), 0)
            scales[tile, b, r] = head & 0xFFFF
            if has_minimum:
                minima[tile, b, r] = head >> 16


def pack_words(data: Memory, name: str, spec: TensorSpec, out: Memory) -> None:
    """The file's bytes of a weight [n, k] into `out` (spec.nbytes of the packed spec), both uint8. Runs on this thread."""
    form, (n, columns) = WORD_FORMATS[name], spec.bounds
    tiles, blocks, words = -(-n // ROWS), columns // 32, spec.part("codes").shape[2]
    code = _compiled(name, n, tiles, blocks, words)
    codes, scales = (out.ctypes.data + spec.part(part).offset_nbytes for part in ("codes", "scales"))
    minima = out.ctypes.data + spec.part("minima").offset_nbytes if form.has_minimum else scales
    args = np.array([data.ctypes.data, codes, scales, minima], np.int64)
    code(args.ctypes.data, 0, tiles)


def _compiled(name: str, n: int, tiles: int, blocks: int, words: int) -> CpuKernel:
    form = WORD_FORMATS[name]
    heads = (tiles, blocks, ROWS)
    arrays = (
        ir.ArrayParam("raw", form.word, (n, blocks * form.size)),
        ir.ArrayParam("codes", u32, (tiles, blocks, words, ROWS), True),
        ir.ArrayParam("scales", u16, heads, True),
        ir.ArrayParam("minima", u16, heads, form.has_minimum),
    )
    constants = {
        "n": n,
        "blocks": blocks,
        "words": words,
        "size": form.size,
        "first": 1,
        "wide": form.word is u32,
        "flip": form.flip,
        "has_minimum": form.has_minimum,
    }
    return cpu_device().compile(interleave_rows, arrays, (), constants, (ir.GridDim(tiles),))
