"""Quantizes blocks of 32 activations to 8 bits, with vectors or a block per lane: the common part of kernels that make q8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.lang import Array, Tracer, Value

# (group, zero) of each q8 form: keys of quantize_activations.LAYOUTS.
Sums: TypeAlias = tuple[tuple[int, int], ...]
BLOCK = 32
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


def q8_outs(arrays: tuple[Any, ...], sums: Sums) -> tuple[list[Q8Out], tuple[Any, ...]]:
    """Returns the q8 forms whose arrays are the first of `arrays`, three each, and what follows them."""
    outs = []
    for i, (_, zero) in enumerate(sums):
        codes, scales, totals = arrays[3 * i : 3 * i + 3]
        outs.append(Q8Out(codes, scales, totals, zero))
    return outs, arrays[3 * len(sums) :]


def loader(k: Tracer, vectors: bool) -> Callable[..., Value]:
    """Returns load(array, *at): 16 elements, or the lane's element."""
    return partial(k.load_vector, width=16) if vectors else k.gather


def store_blocks(
    k: Tracer,
    y_at: Callable[[Value], Value],
    row: Value,
    blocks: tuple[int] | tuple[Value, Value],
    outs: Sequence[Q8Out],
    vectors: bool,
    floats: Array | None = None,
) -> None:
    """Quantizes blocks of y[row] into each of `outs`. `y_at(c)` computes 16 columns from c on, or the lane's column c; y is
    stored in `floats`. `blocks`: the number of blocks, or the first and the end."""

    def value(c: Value) -> Value:
        y = y_at(c)
        if floats is not None:
            (k.store_vector if vectors else k.scatter)(floats, y, row, c)
        return y

    if vectors:
        for b in k.range(*blocks):
            store_block(k, [value(b * BLOCK + 16 * h) for h in (0, 1)], row, b, outs)
    else:
        for b in k.lanes(*blocks):
            _store_block_of_lane(k, [value(b * BLOCK + i) for i in range(BLOCK)], row, b, outs)


def span_of(k: Tracer, blocks: int, span: int) -> tuple[Value, Value]:
    """Returns the first block and the end of program(1)'s `span` blocks of a row."""
    first = k.program(1) * span
    return first, k.minimum(first + span, blocks)


def store_block(k: Tracer, halves: Sequence[Value], row: Value, b: Value, outs: Sequence[Q8Out]) -> None:
    """Quantizes block b of a row, two vectors of 16, into each of `outs`."""
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


def _store_block_of_lane(k: Tracer, values: Sequence[Value], row: Value, b: Value, outs: Sequence[Q8Out]) -> None:
    """Quantizes the lane's block b of a row, 32 values, into each of `outs`."""
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


def _nearest(k: Tracer, x: Value, factor: Value) -> Value:
    """Returns x * factor rounded once to i32, in two instructions; rounding and a saturating conversion take eight."""
    return k.bitcast(k.fma(x, factor, ROUNDER), i32) - ROUNDER_BITS


def _scaled_sum(total: Value, scale: Value, zero: int) -> Value:
    """Returns a sum of codes as products use it (quantize_activations)."""
    return total * -zero if zero else total.to(f32) * scale
