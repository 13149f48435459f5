"""Lloyd-Max centroids of the standard normal density: the scalar quantizer with the smallest mean squared error.

It is optimal when each boundary is the midpoint of its centroids and each centroid the mean of the density between its
boundaries (Lloyd 1982, Max 1960). Newton's method solves both conditions at once.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from math import erfc, exp, inf, pi, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

from camshaft.errors import ShapeError

MOST_BITS = 8
_STEPS, _ENOUGH = 60, 1e-12


@functools.cache
def centroids(bits: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns the 2^bits centroids, ascending and symmetric, for 1 to 8 bits. ShapeError for other numbers."""
    if type(bits) is not int or not 1 <= bits <= MOST_BITS:
        raise ShapeError(f"turboquant: got {bits!r} bits; wanted 1 to {MOST_BITS}")
    n = 1 << bits
    # the best spacing for many levels is that of a normal density of variance 3
    found = np.array([sqrt(3) * NormalDist().inv_cdf((n // 2 + i + 0.5) / n) for i in range(n // 2)])
    for _ in range(_STEPS):
        error, slopes = _conditions(found)
        step = np.linalg.solve(slopes, error)
        found = found - step
        if np.abs(step).max() < _ENOUGH:
            break
    made = np.concatenate([-found[::-1], found])
    made.setflags(write=False)
    return made


def boundaries(of: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the midpoints of neighbouring centroids."""
    return np.asarray((of[1:] + of[:-1]) / 2)


def _conditions(found: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the distance of each positive centroid to the mean between its boundaries, and the derivatives of that."""
    n = len(found)
    edges = [0.0, *boundaries(found).tolist(), inf]
    error, slopes = np.zeros(n), np.eye(n)
    for i, (low, high) in enumerate(pairwise(edges)):
        mean, by_low, by_high = _mean(low, high)
        error[i] = found[i] - mean
        for neighbour, slope in ((i - 1, by_low), (i + 1, by_high)):
            if 0 <= neighbour < n:
                slopes[i, neighbour] -= slope / 2
                slopes[i, i] -= slope / 2
    return error, slopes


def _mean(low: float, high: float) -> tuple[float, float, float]:
    """Returns the mean of the standard normal density between two numbers of at least 0, and its derivatives by both."""
    share = (erfc(low / sqrt(2)) - erfc(high / sqrt(2))) / 2
    at_low, at_high = (exp(-x * x / 2) / sqrt(2 * pi) for x in (low, high))
    mean = (at_low - at_high) / share
    return mean, at_low * (mean - low) / share, at_high * (high - mean) / share if high < inf else 0.0
