"""Transforms of real rows of a prime length n, by a convolution of n - 1 points (Rader).

With a generator g of the numbers below n and h = (n - 1) / 2, the spectrum at g^-p is x[0] + (a * b)[p], a cyclic convolution of
a[q] = x[g^q] with b[q] = exp(-2 pi sqrt(-1) g^-q / n). As g^h = -1, the real part of b has the period h and its imaginary part
changes sign after h, and so have those of a * b. One convolution z of real numbers, of a with re b + im b, thus has both:
    re (a * b)[p] = (z[p] + z[p + h]) / 2,  im (a * b)[p] = (z[p] - z[p + h]) / 2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.dtypes import PARTS, as_dtype
from camshaft.ops.fft.factors import radices
from camshaft.ops.op import Array

# Fewer points: a convolution by chirps has fewer calls, though of more points.
LEAST = 4096


def _prime_factors(n: int) -> set[int]:
    found, factor = set(), 2
    while factor * factor <= n:
        while n % factor == 0:
            found.add(factor)
            n //= factor
        factor += 1
    return found | {n} - {1}


def is_rader(n: int) -> bool:
    """Whether n is a prime from LEAST on, of which (n - 1) / 2 points can be transformed by passes."""
    return n >= LEAST and n % 2 == 1 and radices((n - 1) // 2) is not None and _prime_factors(n) == {n}


@functools.lru_cache(8)
def _orders(n: int) -> tuple[Array, Array, Array]:
    """g^q for q < n - 1, and the p and the p + h with g^-p = 1 .. (n - 1) / 2; i32 [1, points]."""
    divisors = _prime_factors(n - 1)
    g = next(g for g in range(2, n) if all(pow(g, (n - 1) // d, n) != 1 for d in divisors))
    powers, size = np.ones(1, np.int64), 1
    while size < n - 1:  # g^(q + size) from g^q
        powers = np.concatenate([powers, powers * pow(g, size, n) % n])
        size *= 2
    powers, half = powers[: n - 1], (n - 1) // 2
    places = np.empty(n, np.int64)
    places[_inverses(powers)] = np.arange(n - 1)
    first = places[1 : half + 1]
    return tuple(order[None].astype(np.int32) for order in (powers, first, (first + half) % (n - 1)))  # type: ignore[return-value]


def _inverses(powers: Array) -> Array:
    """g^-p, of g^p."""
    return np.roll(powers[::-1], 1)


@functools.lru_cache(8)
def _spectrum(n: int, scale: float) -> Array:
    """The spectrum of re b + im b, times half the scale."""
    angles = _inverses(_orders(n)[0][0]) * (2 * np.pi / n)
    return np.fft.rfft(np.cos(angles) - np.sin(angles)) * (0.5 * scale)


def transformed(f: Any, by_passes: Callable[..., Any], x: Any, n: int, scale: float) -> Any:
    """The first (n + 1) / 2 pairs of the spectrum of real rows [rows, n]. `by_passes(x, points, form)` transforms rows."""
    dtype, rows, half = as_dtype(x.dtype), x.shape[0], (n - 1) // 2
    whole = next(c for c, part in PARTS.items() if part == dtype)
    powers, *orders = _orders(n)
    spectrum = by_passes(f.take_along_axis(x, powers, axis=-1), n - 1, "rfft").as_complex()
    product = spectrum * _spectrum(n, scale).astype(whole.numpy)
    z = by_passes(product.pairs(), n - 1, "irfft", scale=1 / (n - 1))
    sums, differences = (f.take_along_axis(z, order, axis=-1).reshape((rows, half, 1)) for order in orders)
    real, signs = np.array([scale, 0], dtype.numpy), np.array([1, -1], dtype.numpy)
    pairs = sums + differences * signs + x[:, :1].reshape((rows, 1, 1)) * real
    total = f.where(np.array([True, False]), f.sum(x, axes=(-1,)).reshape((rows, 1, 1)) * scale, 0.0)
    return f.concat(total, pairs, axis=1)
