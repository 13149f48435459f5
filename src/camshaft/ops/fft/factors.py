"""The passes of a transform of n points, and their tables: n = n1 n2, a transform along each side of an n1 x n2 matrix.

A pass of radix r (Stockham's, which needs no reordering) on `step` interleaved sequences of r m points:
    y[q + step (r p + j)] = w^(p j) sum_i x[q + step (p + m i)] exp(-2 pi sqrt(-1) i j / r),  w = exp(-2 pi sqrt(-1) / (r m))
for q < step, p < m, j < r; then r sequences of m points each are left of every one. The first side's transforms are those of
n2 columns, so that lanes read neighbours from the first pass on. Between the sides, element (k1, c) is multiplied by
exp(-2 pi sqrt(-1) k1 c / n), and read transposed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import isqrt, prod

import numpy as np

from camshaft.ops.op import Array

# Largest first: fewer passes over memory. 16 points do not fit 32 registers.
RADICES = (8, 4, 2, 3, 5, 7, 11, 13)


@dataclass(frozen=True)
class Pass:
    """A pass of a transform. `table`: where its factors w^(p j) begin, [m, r - 1]. `turn`: where the factors [n] between the
    sides begin, by which the pass multiplies what it reads transposed from `across` columns; 0 columns: it does neither."""

    radix: int
    m: int
    step: int
    table: int
    turn: int = 0
    across: int = 0


def radices(n: int) -> tuple[int, ...] | None:
    """The radices whose product is n, largest first; None if n has a greater prime factor."""
    found = []
    for radix in RADICES:
        while n % radix == 0 and not (radix == 8 and n == 16):  # 16 = 4 * 4
            found.append(radix)
            n //= radix
    return tuple(found) if n == 1 else None


def padded(n: int) -> int:
    """The smallest number of at least n points that is a power of two, or 3 or 5 times one."""
    return min(odd << (-(-n // odd) - 1).bit_length() for odd in (1, 3, 5))


@functools.lru_cache(256)
def passes(n: int) -> tuple[Pass, ...]:
    """The passes of n points in order. ValueError where `radices` has none."""
    parts = radices(n)
    if parts is None:
        raise ValueError(f"{n} points have a prime factor above {max(RADICES)}")
    first = _first_side(parts)
    n1, made, table = prod(first), [], 0
    for side, points, step in ((first, n1, n // n1), (_without(parts, first), n // n1, n1)):
        left, turn, across = points, table, n // n1 if side is not first and n1 > 1 else 0
        if across:
            table += n
        for radix in side:
            left //= radix
            made.append(Pass(radix, left, step, table, turn if across else 0, across))
            table, step, across = table + left * (radix - 1), step * radix, 0
    return tuple(made) or (Pass(1, 1, 1, 0),)


def _first_side(parts: tuple[int, ...]) -> tuple[int, ...]:
    """The radices of n1, near the root of n; none for short transforms."""
    n, found = prod(parts), list[int]()
    if n <= max(RADICES):
        return ()
    for radix in parts:
        if prod(found) * radix <= max(isqrt(n), 2):
            found.append(radix)
    return tuple(found)


def _without(parts: tuple[int, ...], taken: tuple[int, ...]) -> tuple[int, ...]:
    left = list(parts)
    for radix in taken:
        left.remove(radix)
    return tuple(left)


@functools.lru_cache(8)
def factors(n: int, real: int = 0) -> Array:
    """float64 [2, length]: real and imaginary parts of the factors of all passes. With `real`, the points of a real transform
    that n pairs hold, then exp(-2 pi sqrt(-1) k / real) for k up to n."""
    angles = []
    for one in passes(n):
        if one.across:
            n1 = n // one.across
            angles.append(np.outer(np.arange(one.across), np.arange(n1)).reshape(-1) % n / n)
        p, j = np.arange(one.m), np.arange(1, one.radix)
        angles.append((np.outer(p, j) % (one.m * one.radix)).reshape(-1) / (one.m * one.radix))
    if real:
        angles.append(np.arange(n + 1) / real)
    whole = np.concatenate([*angles, np.zeros(1)])
    return np.stack(roots(whole))


def roots(turns: Array) -> tuple[Array, Array]:
    """Real and imaginary parts of exp(-2 pi sqrt(-1) t), t in [0, 1), exact at eighths."""
    eighth = np.rint(turns * 8)
    rest = (turns - eighth / 8) * (2 * np.pi)
    cos, sin, quarter = np.cos(rest), np.sin(rest), eighth.astype(np.int64)
    half = np.sqrt(0.5)
    c8 = np.array([1, half, 0, -half, -1, -half, 0, half, 1])[quarter]
    s8 = np.array([0, half, 1, half, 0, -half, -1, -half, 0])[quarter]
    return c8 * cos - s8 * sin, -(s8 * cos + c8 * sin)


def turn_of_real(n: int) -> int:
    """Where the factors of `real` begin in `factors`."""
    return int(factors(n).shape[1]) - 1
