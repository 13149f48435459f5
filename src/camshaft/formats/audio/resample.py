"""One channel at another rate: a band-limited interpolation by a windowed sinc.

    y[n] = sum_k h(t - k) x[k],  t = n from / to,  h(u) = c sinc(c u) kaiser(u / r),  c = 0.95 min(1, to / from)

The sinc has 24 zero crossings on each side (r = 24 / c samples) under a Kaiser window with beta 9: what is above the lower of the
two Nyquist frequencies is 80 dB down, and the band up to 0.9 of it is kept within 0.01 dB."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from camshaft.errors import FormatError, SettingError
from camshaft.formats.audio.wav import check_rate

Array = np.ndarray[Any, Any]
_CROSSINGS, _BETA, _CUT = 24, 9.0, 0.95
# Results of a block at least, the filters that are stored of one ratio, and the most numbers of a step or of a block's filters.
_BLOCK, _FRACTIONS, _MOST_ELEMENTS = 128, 1024, 1 << 22


def mono(samples: Array) -> Array:
    """The mean of the channels, f32 [n], of samples [n] or [n, channels]. SettingError for samples of another shape or dtype."""
    good = isinstance(samples, np.ndarray) and samples.ndim in (1, 2) and samples.dtype.kind == "f"
    if not good or (samples.ndim == 2 and not samples.shape[1]):
        what = f"{samples.dtype} {list(samples.shape)}" if isinstance(samples, np.ndarray) else type(samples).__name__
        raise SettingError(f"samples came as {what}; wanted floats [n] or [n, channels]")
    one = samples.mean(axis=1, dtype=np.float32) if samples.ndim == 2 else samples.astype(np.float32)
    if not np.isfinite(one).all():
        raise FormatError("the recording has samples that are not finite")
    return np.ascontiguousarray(one)


def resampled(samples: Array, rate: int, wanted: int) -> Array:
    """The samples f32 [n] at `wanted` a second, f32 [ceil(n wanted / rate)]. Raises FormatError for a rate that cannot be."""
    check_rate(rate, "the recording")
    if rate == wanted or not len(samples):
        return samples
    divisor = math.gcd(int(rate), wanted)
    up, down = wanted // divisor, int(rate) // divisor
    cut = _CUT * min(1.0, up / down)
    half = math.ceil(_CROSSINGS / cut)
    n = -(-len(samples) * up // down)
    fits = up * (down + 2 * half + 1) <= _MOST_ELEMENTS
    return (_by_blocks if fits else _by_table)(samples, up, down, cut, half, n)


def _by_blocks(samples: Array, up: int, down: int, cut: float, half: int, n: int) -> Array:
    """Blocks of results, each a product of one stretch of samples with a matrix of filters: the next block is a whole number of
    samples on."""
    times = max(1, _BLOCK // up)
    size, stride, taps = up * times, down * times, 2 * half + 1
    filters = np.zeros((stride + taps, size), np.float32)
    for i in range(size):
        first, rest = divmod(i * down, up)
        filters[first : first + taps, i] = _filter(rest / up, cut, half)
    n_blocks = -(-n // size)
    after = max(0, n_blocks * stride + taps - half - len(samples))
    stretches = np.lib.stride_tricks.sliding_window_view(np.pad(samples, (half, after)), stride + taps)[::stride]
    made, step = np.empty((n_blocks, size), np.float32), max(1, _MOST_ELEMENTS // (stride + taps))
    for first in range(0, n_blocks, step):
        np.matmul(
            np.ascontiguousarray(stretches[first : first + step][: n_blocks - first]),
            filters,
            made[first : first + step],
        )
    return made.reshape(-1)[:n]


def _by_table(samples: Array, up: int, down: int, cut: float, half: int, n: int) -> Array:
    """For rates whose ratio is of large numbers: filters between _FRACTIONS stored ones, which are 118 dB exact."""
    taps, made = 2 * half + 1, np.empty(n, np.float32)
    table = np.stack([_filter(i / _FRACTIONS, cut, half) for i in range(_FRACTIONS + 1)])
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(samples, (half, half + 1)), taps)
    step = max(1, _MOST_ELEMENTS // taps)
    for first in range(0, n, step):
        whole, rest = np.divmod(np.arange(first, min(first + step, n), dtype=np.int64) * down, up)
        place = rest * (_FRACTIONS / up)
        before = place.astype(np.int64)
        share = (place - before).astype(np.float32)[:, None]
        filters = table[before] * (1 - share) + table[before + 1] * share
        made[first : first + step] = np.einsum("ij,ij->i", windows[whole], filters)
    return made


def _filter(fraction: float, cut: float, half: int) -> Array:
    """h at the samples around a time that is `fraction` of one after the middle one, f32 [2 half + 1]."""
    u = fraction - np.arange(-half, half + 1)
    inside = np.clip(1 - (u * cut / _CROSSINGS) ** 2, 0, None)
    window = np.where(inside > 0, np.i0(_BETA * np.sqrt(inside)) / np.i0(_BETA), 0)
    made: Array = (cut * np.sinc(cut * u) * window).astype(np.float32)
    return made
