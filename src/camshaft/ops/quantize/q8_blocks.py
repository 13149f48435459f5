"""A block of 32 activations quantized to 8 bits, as vectors or by a lane: what every kernel that makes q8 tensors is built of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.lang.ir import Value
from camshaft.lang.tracing.tracer import Array, Tracer

BLOCK = 32
INVERSE_127 = float(np.float32(1 / 127))
# Added to a float of at most 2^22 in size, it leaves the nearest integer (ties to even) in the low bits.
ROUNDER, ROUNDER_BITS = 12582912.0, 0x4B400000


class Q8Out(NamedTuple):
    """A q8 tensor as a kernel writes it (codes as i8), and the zero point that its sums are multiplied by."""

    codes: Array
    scales: Array
    sums: Array
    zero: int

    @property
    def groups(self) -> int:
        """Sums a block."""
        return self.sums.shape[1] // self.scales.shape[1]


def store_block(k: Tracer, halves: Sequence[Value], row: Value, b: Value, outs: Sequence[Q8Out]) -> None:
    """Block b of a row, two vectors of 16, quantized into each of `outs`."""
    # magnitudes compare as integers: one instruction a step where a float maximum that keeps NaN takes four
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
            out.sums[row, b] = _as_added(k.vector_sum(quants[0] + quants[1]), scale, out.zero)
        else:
            for h in (0, 1):
                out.sums[row, b * 2 + h] = _as_added(k.vector_sum(quants[h]), scale, out.zero)


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
            k.scatter(out.sums, _as_added(total, scale, out.zero), row, b * out.groups + g)


def _nearest(k: Tracer, x: Value, factor: Value) -> Value:
    """x * factor, rounded once to i32: two instructions where a rounding and a saturating conversion take eight."""
    return k.bitcast(k.fma(x, factor, ROUNDER), i32) - ROUNDER_BITS


def _as_added(whole: Value, scale: Value, zero: int) -> Value:
    """A sum of codes as the products add it."""
    return whole * -zero if zero else whole.to(f32) * scale
