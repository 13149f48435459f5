"""Stores blocks of 32 activations as 8-bit codes or in tiles of bf16: what kernels that quantize activations share.

A `mapping` says how blocks are spread: over vectors of 16 elements, a block per lane, or an element per thread of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from camshaft.dtypes import f32, i32, i64
from camshaft.lang import Array, Tracer, Value

# (group, zero) of each q8 form, or TILES: keys of quantize_activations.FORMS.
Sums: TypeAlias = tuple[tuple[int, int], ...]
BLOCK = 32
# The mappings.
VECTORS, BLOCKS, ELEMENTS = "vectors", "blocks", "elements"
# The form of bf16 in tiles: 32 rows of a block are 2 KiB in one piece.
TILES, TILE_ROWS = (0, 0), 32
INVERSE_127 = float(np.float32(1 / 127))
# Added to a float of magnitude up to 2^22, it leaves the nearest integer (ties to even) in the low bits.
ROUNDER, ROUNDER_BITS = 12582912.0, 0x4B400000


class Q8Out(NamedTuple):
    """The arrays of a q8 tensor in a kernel (codes as i8), and the zero point that multiplies its sums."""

    codes: Array
    scales: Array
    sums: Array
    zero: int

    @property
    def groups(self) -> int:
        """Sums per block."""
        return int(self.sums.shape[1] // self.scales.shape[1])


class TileOut(NamedTuple):
    """The array of activations as bf16 in a kernel: [rows / 32, blocks, 32, 32]."""

    tiles: Array

    def place(self, row: Value, b: Value, column: Value | int) -> tuple[Any, ...]:
        """Returns where a column of block b of a row is."""
        return row // TILE_ROWS, b, row % TILE_ROWS, column


Out: TypeAlias = Q8Out | TileOut


def outs_of(arrays: tuple[Any, ...], sums: Sums) -> tuple[list[Out], tuple[Any, ...]]:
    """Returns the forms whose arrays are the first of `arrays`, one or three each, and what follows them."""
    outs: list[Out] = []
    for kind in sums:
        if kind == TILES:
            outs.append(TileOut(arrays[0]))
            arrays = arrays[1:]
        else:
            codes, scales, totals, *rest = arrays
            outs.append(Q8Out(codes, scales, totals, kind[1]))
            arrays = tuple(rest)
    return outs, arrays


def loader(k: Tracer, mapping: str) -> Callable[..., Value]:
    """Returns load(array, *at): 16 elements, or the lane's element."""
    return partial(k.load_vector, width=16) if mapping == VECTORS else k.gather


def store_blocks(
    k: Tracer,
    y_at: Callable[[Value], Value],
    row: Value,
    blocks: tuple[int] | tuple[Value, Value],
    outs: Sequence[Out],
    mapping: str,
    floats: Array | None = None,
) -> None:
    """Stores blocks of y[row] in each of `outs`. `y_at(c)` computes 16 columns from c on, or the lane's column c; y is
    stored in `floats`. `blocks`: the number of blocks, or the first and the end."""

    def value(c: Value) -> Value:
        y = y_at(c)
        if floats is not None:
            (k.store_vector if mapping == VECTORS else k.scatter)(floats, y, row, c)
        return y

    if mapping == ELEMENTS:
        first, end = blocks if len(blocks) == 2 else (k.const(0, i64), k.const(blocks[0], i64))
        _store_elements(k, y_at, row, first, end, outs, floats)
    elif mapping == VECTORS:
        for b in k.range(*blocks):
            store_block(k, [value(b * BLOCK + 16 * h) for h in (0, 1)], row, b, outs)
    else:
        for b in k.lanes(*blocks):
            _store_block_of_lane(k, [value(b * BLOCK + i) for i in range(BLOCK)], row, b, outs)


def span_of(k: Tracer, blocks: int, span: int) -> tuple[Value, Value]:
    """Returns the first block and the end of program(1)'s `span` blocks of a row."""
    first = k.program(1) * span
    return first, k.minimum(first + span, blocks)


def store_block(k: Tracer, halves: Sequence[Value], row: Value, b: Value, outs: Sequence[Out]) -> None:
    """Stores block b of a row, two vectors of 16, in each of `outs`."""
    for out in outs:
        if isinstance(out, TileOut):
            for h in (0, 1):
                k.store_vector(out.tiles, halves[h], *out.place(row, b, 16 * h))
    quantized = [out for out in outs if isinstance(out, Q8Out)]
    if quantized:
        _quantize_block(k, halves, row, b, quantized)


def _quantize_block(k: Tracer, halves: Sequence[Value], row: Value, b: Value, outs: Sequence[Q8Out]) -> None:
    # magnitudes compare as integers: one instruction, where a float maximum that propagates NaN takes four
    sizes = [k.bitcast(h, i32) & 0x7FFFFFFF for h in halves]
    greatest = k.bitcast(k.vector_max(k.maximum(sizes[0], sizes[1])), f32)
    scale = greatest * INVERSE_127
    inverse = k.select(greatest > 0.0, 127.0 / greatest, 0.0)
    quants = [_nearest(k, h, k.splat(inverse, 16)) for h in halves]
    for out in outs:
        for h in (0, 1):
            k.store_vector(out.codes, quants[h], row, b * BLOCK + 16 * h)
        out.scales[row, b] = scale
        if out.groups == 1:
            out.sums[row, b] = _scaled_sum(k.vector_sum(quants[0] + quants[1]), scale, out.zero)
        else:
            for h in (0, 1):
                out.sums[row, b * 2 + h] = _scaled_sum(k.vector_sum(quants[h]), scale, out.zero)


def _store_block_of_lane(k: Tracer, values: Sequence[Value], row: Value, b: Value, outs: Sequence[Out]) -> None:
    """Stores the lane's block b of a row, 32 values, in each of `outs`."""
    for out in outs:
        if isinstance(out, TileOut):
            for i, value in enumerate(values):
                k.scatter(out.tiles, value, *out.place(row, b, i))
    quantized = [out for out in outs if isinstance(out, Q8Out)]
    if quantized:
        _quantize_block_of_lane(k, values, row, b, quantized)


def _quantize_block_of_lane(k: Tracer, values: Sequence[Value], row: Value, b: Value, outs: Sequence[Q8Out]) -> None:
    greatest = k.abs(values[0])
    for v in values[1:]:
        greatest = k.maximum(greatest, k.abs(v))
    scale = greatest * INVERSE_127
    inverse = k.select(greatest > 0.0, 127.0 / greatest, 0.0)
    quants = [_nearest(k, v, inverse) for v in values]
    for out in outs:
        for i, q in enumerate(quants):
            k.scatter(out.codes, q, row, b * BLOCK + i)
        out.scales[row, b] = scale
        size = BLOCK // out.groups
        for g in range(out.groups):
            total = quants[g * size]
            for q in quants[g * size + 1 : (g + 1) * size]:
                total = total + q
            k.scatter(out.sums, _scaled_sum(total, scale, out.zero), row, b * out.groups + g)


def _store_elements(
    k: Tracer,
    y_at: Callable[[Value], Value],
    row: Value,
    first: Value,
    end: Value,
    outs: Sequence[Out],
    floats: Array | None,
) -> None:
    """Stores blocks `first` to `end` of a row in each of `outs`, an element per thread; 32 threads exchange their block's
    largest magnitude and sums."""
    per = k.lane_count() // BLOCK
    for step in k.range((end - first + (per - 1)) // per):
        mine, i = first + step * per + k.lane() // BLOCK, k.lane() % BLOCK
        inside, b = mine < end, k.minimum(mine, end - 1)
        y = y_at(b * BLOCK + i)
        quantized = [out for out in outs if isinstance(out, Q8Out)]
        found = _quantized_element(k, y) if quantized else None
        with k.when(inside):
            if floats is not None:
                k.scatter(floats, y, row, b * BLOCK + i)
            for out in outs:
                if isinstance(out, TileOut):
                    k.scatter(out.tiles, y, *out.place(row, b, i))
                elif found is not None:
                    _store_element(k, found, out, row, b, i)


def _quantized_element(k: Tracer, y: Value) -> tuple[Value, Value, dict[int, Value]]:
    """Returns the thread's code, its block's scale, and by number of groups the sum of the codes of its group."""
    greatest = k.abs(y)
    for n in (16, 8, 4, 2, 1):
        greatest = k.maximum(greatest, k.shuffle_xor(greatest, n))
    code = _nearest(k, y, k.select(greatest > 0.0, 127.0 / greatest, 0.0))
    half = code
    for n in (1, 2, 4, 8):
        half = half + k.shuffle_xor(half, n)
    return code, greatest * INVERSE_127, {2: half, 1: half + k.shuffle_xor(half, 16)}


def _store_element(
    k: Tracer, found: tuple[Value, Value, dict[int, Value]], out: Q8Out, row: Value, b: Value, i: Value
) -> None:
    """Stores a thread's code, and its block's scale and sums by the first thread of each."""
    code, scale, sums = found
    k.scatter(out.codes, code, row, b * BLOCK + i)
    size = BLOCK // out.groups
    with k.when(i == 0):
        k.scatter(out.scales, scale, row, b)
    with k.when(i % size == 0):
        k.scatter(out.sums, _scaled_sum(sums[out.groups], scale, out.zero), row, b * out.groups + i // size)


def _nearest(k: Tracer, x: Value, factor: Value) -> Value:
    """Returns x * factor rounded once to i32, in two instructions; rounding and a saturating conversion take eight."""
    return k.bitcast(k.fma(x, factor, ROUNDER), i32) - ROUNDER_BITS


def _scaled_sum(total: Value, scale: Value, zero: int) -> Value:
    """Returns a sum of codes as products use it (quantize_activations)."""
    return total * -zero if zero else total.to(f32) * scale
