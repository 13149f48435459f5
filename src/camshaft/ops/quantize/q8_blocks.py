"""Quantizes a block of 32 activations to 8 bits, with vectors or in one lane: the common part of kernels that make q8 tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.lang import Array, Tracer, Value

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
        return self.sums.shape[1] // self.scales.shape[1]


def store_block(k: Tracer, halves: Sequence[Value], row: Value, b: Value, outs: Sequence[Q8Out]) -> None:
    """Block b of a row, two vectors of 16, quantized into each of `outs`."""
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


def store_block_of_lane(k: Tracer, values: Sequence[Value], row: Value, b: Value, outs: Sequence[Q8Out]) -> None:
    """The lane's block b of a row, its 32 values, quantized into each of `outs`."""
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
    """x * factor rounded once to i32 in two instructions; rounding and a saturating conversion would take eight."""
    return k.bitcast(k.fma(x, factor, ROUNDER), i32) - ROUNDER_BITS


def _scaled_sum(total: Value, scale: Value, zero: int) -> Value:
    """A sum of codes as products use it (quantize_activations)."""
    return total * -zero if zero else total.to(f32) * scale
