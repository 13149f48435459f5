"""TurboQuant's codes: rotated unit rows as Lloyd-Max codes of 1 to 8 bits. What encode, decode and attention share.

encode: y = H (s x) / sqrt(d); norm = |y|; code i is that of the centroid nearest to y_i sqrt(d) / norm, in n bits from bit n i of
a row's bytes on, lowest first. decode: y_i = centroid[code i] norm / sqrt(d), still rotated, or with signs undone: x = s (H y) /
sqrt(d). With random signs, the elements of a rotated unit row times sqrt(d) are nearly standard normal, for which the centroids
are made (lloyd_max.py; TurboQuant, Zandieh et al. 2025).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod, sqrt

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.extent import Extent
from camshaft.lang import Tracer, Value
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.spec import TensorSpec
from camshaft.ops.turboquant.hadamard import is_power_of_two, transformed
from camshaft.ops.turboquant.lloyd_max import MOST_BITS, boundaries, centroids

GROUP = 8  # codes that fill whole bytes, as many as a code has bits


def bits_of(op: str, table: TensorSpec) -> int:
    """Returns the bits of a code. ShapeError unless the centroids are f32 [2^bits], for 1 to 8 bits."""
    good = table.is_plain and table.dtype == f32 and len(table.shape) == 1 and isinstance(table.shape[0], int)
    good = good and 1 < table.bounds[0] <= 1 << MOST_BITS and is_power_of_two(table.bounds[0])
    ops.expect(good, op, table, f"centroids of f32 [n], n a power of two from 2 to {1 << MOST_BITS}")
    return table.bounds[0].bit_length() - 1


def code(k: Tracer, low: Value, high: Value, first: Value, bits: int) -> Value:
    """Returns the code that starts at bit `first` of two bytes."""
    word = low.to(i32) | (high.to(i32) << 8)
    return (word >> first.to(i32)) & ((1 << bits) - 1)


def rows_as_matrix(spec: TensorSpec, last: int) -> tuple[tuple[int, int], ops.Cells]:
    """A tensor as [rows, columns], and the grid with a program per row."""
    rows, inner = spec.shape[:-1], prod(spec.bounds[1:-1])
    flat = prod(spec.bounds[:-1]), last
    first = rows[0] if rows and isinstance(rows[0], Extent) and inner == 1 else flat[0]
    return flat, ops.Cells(first)


def encode(x: ops.Array, signs: ops.Array, table: ops.Array) -> tuple[ops.Array, ops.Array]:
    """Returns the codes' bytes and the float64 norms of the rows of x."""
    y = transformed(x.astype(np.float64) * signs)
    norms, n = np.sqrt((y * y).sum(-1)), len(table).bit_length() - 1
    unit = y * (sqrt(y.shape[-1]) / np.where(norms == 0, 1.0, norms))[..., None]
    found = np.searchsorted(boundaries(table.astype(np.float64)), unit)
    spread = (found[..., None] >> np.arange(n)) & 1
    packed = np.packbits(spread.reshape(*found.shape[:-1], -1).astype(np.uint8), axis=-1, bitorder="little")
    return packed, norms


def unpacked(packed: ops.Array, n: int) -> ops.Array:
    """Returns the codes of n bits in rows of bytes."""
    bits = np.unpackbits(packed, axis=-1, bitorder="little")
    bits = bits.reshape(*packed.shape[:-1], -1, n).astype(np.int64)
    return np.asarray((bits << np.arange(n)).sum(-1))


def decode(packed: ops.Array, norms: ops.Array, table: ops.Array) -> ops.Array:
    """Returns the float64 rows of codes, still rotated."""
    found = table.astype(np.float64)[unpacked(packed, len(table).bit_length() - 1)]
    return np.asarray(found * (norms.astype(np.float64)[..., None] / sqrt(found.shape[-1])))


def drawn(shape: tuple[int, ...], bits: int, seed: int = 51) -> tuple[ops.Array, ops.Array, ops.Array]:
    """Returns normal rows, signs and centroids, no element near a boundary, so that rounding changes no code."""
    rng, table = np.random.default_rng(seed), centroids(bits).astype(np.float32)
    signs = rng.choice(np.array([-1, 1], np.float32), shape[-1])
    while True:
        x = rng.normal(size=shape).astype(np.float32)
        y = transformed(x * signs.astype(np.float64))
        unit = y * sqrt(shape[-1]) / np.sqrt((y * y).sum(-1, keepdims=True))
        near = np.abs(unit[..., None] - boundaries(table.astype(np.float64))).min()
        if near > 2e-6:
            return x, signs, table


# 1 to 8 bits; those of caches in more shapes
_SIZES = ((4, (3, 64)), (5, (2, 2, 16)), (6, (1, 8)), (8, (3, 32)), (1, (2, 16)), (3, (2, 8)), (2, (2, 8)), (7, (2, 8)))


def rows_samples() -> Iterable[ops.Sample]:
    """Rows, signs and centroids to encode."""
    for bits, shape in _SIZES:
        yield ops.Sample(f"{bits} bits of {shape}", drawn(shape, bits))
    yield ops.Sample("a row of zeros", (np.zeros((2, 16), np.float32), *drawn((2, 16), 4)[1:]))
    yield partly_active(ops.Sample("3 of 5", drawn((5, 64), 4)), 3, fixed=(1, 2))


def wrong_tables(first: TensorSpec, second: TensorSpec) -> Iterable[tuple[tuple[TensorSpec, ...], str]]:
    yield (first, second), "wanted "
    yield (first, second, TensorSpec((12,), f32)), "wanted centroids of f32"
