"""Search for the scale (and minimum) of a group of values with the smallest quantization error.

The searches follow ggml's reference quantizers (ggml-quants.c: make_qkx2_quants and make_qkx3_quants, make_qx_quants,
make_qp_quants, make_q3_quants, and that of IQ4_NL), vectorized over groups. A group is a column, values are [group size, n], so
that sums run in ggml's order and most results are byte-equal.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from camshaft.formats.bits import IQ4_VALUES, Bytes, Floats

TINY = np.float32(1e-15)  # groups of smaller magnitude are zero
# Midpoints between neighbors in IQ4_VALUES are multiples of 1/2, so floor(2 x), -256 to 255, decides the nearest value of x.
_HALVES = np.arange(-256, 256)
_NEAREST = np.searchsorted(IQ4_VALUES[1:] + IQ4_VALUES[:-1], _HALVES, side="right").astype(np.uint8)
_NEAREST_VALUES = IQ4_VALUES[_NEAREST]


def divide(a: Floats, b: Floats) -> Floats:
    """a / b, and 0 where b is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(b == 0, np.float32(0), a / b).astype(np.float32)


def nearest_values(scaled: Floats) -> Bytes:
    """Returns the index of the nearest IQ4 value for every element, the upper one of two that are equally near."""
    return _NEAREST[_half_index(scaled)]


def _half_index(scaled: Floats) -> npt.NDArray[np.intp]:
    index: npt.NDArray[np.intp] = np.floor(scaled * np.float32(2)).clip(-256, 255).astype(np.intp) + 256
    return index


def _at_peak(x: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Returns the value of largest magnitude in every column (the first of equals), and whether the column is not all zeros."""
    peak = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    alive = np.abs(peak) >= TINY
    return np.where(alive, peak, np.float32(1)), alive


def fit_affine(
    x: Floats, weights: Floats, most: int, first: float, n_steps: int, *, step: float = 0.1, absolute: bool = False
) -> tuple[Floats, Floats, Bytes]:
    """Return scale [n], minimum [n] (at least 0) and codes 0 .. most with x = scale code - minimum.

    Tries the scales (most + first + step i) / range for i = 0 .. n_steps with a weighted least-squares fit each, and keeps the
    one with the smallest weighted error (`absolute`: of magnitudes, else of squares).
    """
    low: Floats = np.minimum(x.min(axis=0), np.float32(0))
    high: Floats = x.max(axis=0)
    flat = high == low
    width = np.where(flat, np.float32(1), high - low)
    ones = np.ones_like(width)
    sum_w, sum_x = weights.sum(axis=0), (weights * x).sum(axis=0)

    def codes_for(inverse: Floats, minimum: Floats) -> Floats:
        codes: Floats = np.rint(inverse * (x - minimum)).clip(0, most)
        return codes

    def error(scale: Floats, minimum: Floats, codes: Floats) -> Floats:
        off = scale * codes + minimum - x
        total: Floats = (weights * (np.abs(off) if absolute else off * off)).sum(axis=0)
        return total

    minimum = low
    inverse = divide(ones * np.float32(most), width)
    best, scale = codes_for(inverse, low), divide(ones, inverse)
    least = error(scale, minimum, best)
    for i in range(n_steps + 1):
        inverse = divide(
            ones * (np.float32(first) + np.float32(step) * np.float32(i) + np.float32(most)), high - minimum
        )
        codes = codes_for(inverse, minimum)
        slope, offset, solved = _least_squares(x, weights, codes, sum_w, sum_x)
        found = error(slope, offset, codes)
        better = solved & (found < least) & ~flat
        scale, minimum = np.where(better, slope, scale), np.where(better, offset, minimum)
        best, least = np.where(better, codes, best), np.where(better, found, least)
    return np.where(flat, np.float32(0), scale), -minimum, np.where(flat, 0, best).astype(np.uint8)


def _least_squares(
    x: Floats, weights: Floats, codes: Floats, sum_w: Floats, sum_x: Floats
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Return the slope and the offset, 0 at most, of x as slope codes + offset with least weighted squares, and where there are
    such. `sum_w`, `sum_x`: the sums of the weights and of weighted x."""
    weighted = weights * codes
    sum_l, sum_l2, sum_xl = weighted.sum(axis=0), (weighted * codes).sum(axis=0), (weighted * x).sum(axis=0)
    determinant = sum_w * sum_l2 - sum_l * sum_l
    slope = divide(sum_w * sum_xl - sum_x * sum_l, determinant)
    offset = divide(sum_l2 * sum_x - sum_l * sum_xl, determinant)
    positive = offset > 0
    slope = np.where(positive, divide(sum_xl, sum_l2), slope)
    return slope, np.where(positive, np.float32(0), offset), determinant > 0


def fit_signed(x: Floats, half: int, weights: Floats | None = None) -> tuple[Floats, Bytes]:
    """scale [n] and codes 0 .. 2 half - 1 with x = scale (code - half), weighted (by x squared): 19 scales are tried."""
    peak, alive = _at_peak(x)
    weights = x * x if weights is None else weights
    best, scale, codes = _signed_try(x, weights, np.float32(-half) / peak, half)
    merit = scale * best
    for i in (*range(-9, 0), *range(1, 10)):
        inverse = -(np.float32(half) + np.float32(0.1) * np.float32(i)) / peak
        sum_lx, found, others = _signed_try(x, weights, inverse, half)
        better = sum_lx * found > merit
        scale, codes = np.where(better, found, scale), np.where(better, others, codes)
        merit = np.where(better, found * sum_lx, merit)
    return np.where(alive, scale, np.float32(0)), np.where(alive, codes + half, 0).astype(np.uint8)


def _signed_try(x: Floats, weights: Floats, inverse: Floats, half: int) -> tuple[Floats, Floats, Floats]:
    """Returns sum(w l x), the best scale for the codes l of this inverse scale, and the codes."""
    codes = np.rint(inverse * x).clip(-half, half - 1)
    weighted = weights * codes
    sum_lx = (weighted * x).sum(axis=0)
    return sum_lx, divide(sum_lx, (weighted * codes).sum(axis=0)), codes


def fit_unsigned(x: Floats, weights: Floats, most: int) -> tuple[Floats, Bytes]:
    """scale [n] and codes 0 .. most with x = scale code, for x of 0 or more: 9 scales are tried, then codes are changed one by
    one while that reduces the weighted error, in at most five rounds."""
    peak = x.max(axis=0)
    alive = peak >= TINY
    peak = np.where(alive, peak, np.float32(1))
    inverse = np.float32(most) / peak
    off = x - np.rint(inverse * x) * (np.float32(1) / inverse)
    least = (weights * off * off).sum(axis=0)
    for i in (*range(-4, 0), *range(1, 5)):
        tried = (np.float32(0.1) * np.float32(i) + np.float32(most)) / peak
        off = x - np.minimum(np.rint(tried * x), most) * (np.float32(1) / tried)
        error = (weights * off * off).sum(axis=0)
        inverse, least = np.where(error < least, tried, inverse), np.minimum(error, least)
    codes = np.rint(inverse * x).clip(0, most)
    codes, sum_lx, sum_l2 = _descended(x, weights, codes, 0, most)
    scale = np.where(sum_l2 > 0, divide(sum_lx, sum_l2), np.float32(0))
    return np.where(alive, scale, np.float32(0)), np.where(alive, codes, 0).astype(np.uint8)


def fit_signed_descent(x: Floats, half: int) -> tuple[Floats, Bytes]:
    """Like fit_signed, from one scale: changes single codes while that reduces the error, in at most five rounds."""
    peak, alive = _at_peak(x)
    weights = x * x
    codes = np.rint(np.float32(-half) / peak * x).clip(-half, half - 1)
    codes, sum_lx, sum_l2 = _descended(x, weights, codes, -half, half - 1)
    return np.where(alive, divide(sum_lx, sum_l2), np.float32(0)), np.where(alive, codes + half, 0).astype(np.uint8)


def _descended(x: Floats, weights: Floats, codes: Floats, low: int, high: int) -> tuple[Floats, Floats, Floats]:
    """Codes changed one by one while that reduces the weighted error; and sum(w l x), sum(w l l)."""
    sum_lx, sum_l2 = (weights * x * codes).sum(axis=0), (weights * codes * codes).sum(axis=0)
    for _ in range(5):
        changed = False
        for i in range(len(x)):
            w, code = weights[i], codes[i]
            rest_lx, rest_l2 = sum_lx - w * x[i] * code, sum_l2 - w * code * code
            new = np.rint(divide(x[i] * rest_l2, rest_lx)).clip(low, high)
            new_lx, new_l2 = rest_lx + w * x[i] * new, rest_l2 + w * new * new
            better = (
                (rest_lx > 0) & (new != code) & (new_l2 > 0) & (new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2)
            )
            codes[i] = np.where(better, new, code)
            sum_lx, sum_l2 = np.where(better, new_lx, sum_lx), np.where(better, new_l2, sum_l2)
            changed |= bool(better.any())
        if not changed:
            break
    return codes, sum_lx, sum_l2


def fit_values(x: Floats, weights: Floats | None = None) -> Floats:
    """Returns the scale [n] with the smallest error of scale * IQ4_VALUES[nearest], weighted (by x squared); 16 scales are
    tried."""
    peak, alive = _at_peak(x)
    weights = x * x if weights is None else weights
    sum_qx, scale = _values_try(x, weights, np.float32(1) / (-peak / IQ4_VALUES[0]))
    merit = scale * sum_qx
    for i in range(-7, 8):
        sum_qx, found = _values_try(x, weights, (np.float32(i) + IQ4_VALUES[0]) / peak)
        better = sum_qx * found > merit
        scale, merit = np.where(better, found, scale), np.where(better, found * sum_qx, merit)
    return np.where(alive, scale, np.float32(0))


def _values_try(x: Floats, weights: Floats, inverse: Floats) -> tuple[Floats, Floats]:
    quants = _NEAREST_VALUES[_half_index(inverse * x)]
    weighted = weights * quants
    sum_qx = (weighted * x).sum(axis=0)
    return sum_qx, divide(sum_qx, (weighted * quants).sum(axis=0))
