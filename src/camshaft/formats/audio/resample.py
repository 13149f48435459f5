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
# Products of one step, so that no copy of all windows is made.
_STEP_ELEMENTS = 1 << 20


def mono(samples: Array) -> Array:
    """The mean of the channels, f32 [n], of samples [n] or [n, channels]. Raises SettingError for what is no sound."""
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
    made = np.empty(n, np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(samples, (half, half + 1)), 2 * half + 1)
    step = max(1, _STEP_ELEMENTS // (2 * half + 1))
    for phase in range(min(up, n)):  # results `up` apart have one filter, and windows `down` apart
        taps = _filter(phase * down % up / up, cut, half)
        rows = windows[phase * down // up :: down][: -(-(n - phase) // up)]
        results = made[phase::up]
        for first in range(0, len(results), step):
            results[first : first + step] = rows[first : first + step] @ taps
    return made


def _filter(fraction: float, cut: float, half: int) -> Array:
    """h at the samples around a time that is `fraction` of one after the middle one, f32 [2 half + 1]."""
    u = fraction - np.arange(-half, half + 1)
    inside = np.clip(1 - (u * cut / _CROSSINGS) ** 2, 0, None)
    window = np.where(inside > 0, np.i0(_BETA * np.sqrt(inside)) / np.i0(_BETA), 0)
    made: Array = (cut * np.sinc(cut * u) * window).astype(np.float32)
    return made
