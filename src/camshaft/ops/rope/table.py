"""The table of cosines and sines by position for rope, with the methods of context extension that models use.

The frequencies are those of the RoPE paper (Su et al., 2021), 1 / theta^(2i / n), then changed by one RopeScaling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, floor, log, pi, sqrt
from typing import Any, Literal

import numpy as np

from camshaft.errors import ShapeError

Array = np.ndarray[Any, Any]
Kind = Literal["none", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope"]


@dataclass(frozen=True)
class RopeScaling:
    """Context extension beyond `original_context` by `factor`; the fields mean the same as in llama.cpp.

    linear: positions are divided by factor. ntk: theta grows so that the lowest frequency is divided by factor. dynamic: ntk by
    factor context / original_context - (factor - 1), for the table's context where that is longer than the original one. yarn:
    high frequencies stay, low ones are interpolated, with a ramp between beta_fast and beta_slow rotations, whose ends are whole
    dimensions where `truncate`; cosines and sines are multiplied by m(1) = 1 + 0.1 ln(factor), or m(mscale) / m(mscale_all_dim)
    where both are given (DeepSeek). llama3: by wavelength between original_context / high_freq_factor and / low_freq_factor.
    longrope: frequencies are divided by long_factors for a context longer than the original one, else by short_factors, and
    cosines and sines multiplied by sqrt(1 + ln(factor) / ln(original_context)).
    attention_factor multiplies cosines and sines in every kind; freq_factors [rotary_dim / 2] divide the frequencies first.
    """

    kind: Kind = "none"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    freq_factors: Array | None = None
    truncate: bool = True
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    short_factors: Array | None = None
    long_factors: Array | None = None


def rope_table(context: int, rotary_dim: int, theta: float, scaling: RopeScaling | None = None) -> Array:
    """Returns f32 [context, rotary_dim]: row p has rotary_dim / 2 cosines, then as many sines, for position p.

    ShapeError for an odd rotary_dim, an unknown kind, or a kind whose fields are missing or not positive.
    """
    scaling = scaling or RopeScaling()
    frequencies, magnitude = frequencies_of(context, rotary_dim, theta, scaling)
    angles = np.arange(context, dtype=np.float64)[:, None] * frequencies
    return (np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * magnitude).astype(np.float32)


def frequencies_of(context: int, rotary_dim: int, theta: float, scaling: RopeScaling) -> tuple[Array, float]:
    """Returns the angle of each pair per position, in float64, and the factor of cosines and sines. ShapeError as rope_table."""
    _check(context, rotary_dim, theta, scaling)
    plain = _frequencies(rotary_dim, theta, scaling)
    frequencies, magnitude = _KINDS[scaling.kind](plain, rotary_dim, theta, _for_context(scaling, context))
    return frequencies, magnitude * scaling.attention_factor


def _for_context(scaling: RopeScaling, context: int) -> RopeScaling:
    """Returns the factors for a context length: the factor of `dynamic`, and those of `longrope` as freq_factors."""
    if scaling.kind == "dynamic":
        longer = max(context / scaling.original_context, 1.0)
        return replace(scaling, factor=scaling.factor * longer - (scaling.factor - 1))
    if scaling.kind == "longrope":
        long = context > scaling.original_context
        return replace(scaling, freq_factors=scaling.long_factors if long else scaling.short_factors)
    return scaling


def _check(context: int, rotary_dim: int, theta: float, scaling: RopeScaling) -> None:
    def need(condition: bool, came: object, wanted: str) -> None:
        if not condition:
            raise ShapeError(f"rope_table: got {came}; wanted {wanted}")

    need(context > 0 and theta > 0, (context, theta), "context and theta above 0")
    need(rotary_dim > 0 and rotary_dim % 2 == 0, rotary_dim, "an even rotary_dim above 0")
    need(scaling.kind in _KINDS, repr(scaling.kind), f"a kind of {', '.join(_KINDS)}")
    need(scaling.factor > 0, scaling.factor, "a factor above 0")
    if scaling.kind in ("dynamic", "yarn", "llama3", "longrope"):
        need(scaling.original_context > 0, scaling.original_context, f"original_context above 0 for {scaling.kind}")
    if scaling.kind == "llama3":
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        need(0 < low < high, (low, high), "0 < low_freq_factor < high_freq_factor")
    if scaling.kind in ("ntk", "dynamic"):
        need(rotary_dim > 2, rotary_dim, f"rotary_dim above 2 for {scaling.kind}")
    if scaling.kind == "dynamic":
        need(scaling.factor >= 1, scaling.factor, "a factor of at least 1 for dynamic")
    needed = ("short_factors", "long_factors") if scaling.kind == "longrope" else ()
    for name in ("freq_factors", *needed):
        factors = getattr(scaling, name)
        if factors is not None or name in needed:
            shape = np.shape(factors)
            need(shape == (rotary_dim // 2,), f"{name} of shape {shape}", f"[{rotary_dim // 2}]")


def _frequencies(rotary_dim: int, theta: float, scaling: RopeScaling) -> Array:
    frequencies = theta ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    if scaling.freq_factors is not None:
        frequencies = frequencies / np.asarray(scaling.freq_factors, np.float64)
    return frequencies


Scaled = tuple[Array, float]


def _none(frequencies: Array, rotary_dim: int, theta: float, scaling: RopeScaling) -> Scaled:
    return frequencies, 1.0


def _linear(frequencies: Array, rotary_dim: int, theta: float, scaling: RopeScaling) -> Scaled:
    return frequencies / scaling.factor, 1.0


def _ntk(frequencies: Array, rotary_dim: int, theta: float, scaling: RopeScaling) -> Scaled:
    """theta' = theta * factor^(n / (n - 2)), so that the last frequency is divided by factor and the first stays."""
    exponent = np.arange(0, rotary_dim, 2, dtype=np.float64) / (rotary_dim - 2)
    return frequencies * scaling.factor**-exponent, 1.0


def _yarn(frequencies: Array, rotary_dim: int, theta: float, scaling: RopeScaling) -> Scaled:
    """Peng et al., 2023. The ramp begins and ends at integer dimensions, at least 0.001 apart."""

    def dimension_of(rotations: float) -> float:
        return rotary_dim * log(scaling.original_context / (rotations * 2 * pi)) / (2 * log(theta))

    first, last = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = floor(first), ceil(last)
    low, high = max(0, first), min(rotary_dim - 1, last)
    ramp = np.clip((np.arange(rotary_dim // 2) - low) / max(0.001, high - low), 0, 1)
    magnitude = _yarn_magnitude(scaling.factor, 1.0)
    if scaling.mscale and scaling.mscale_all_dim:
        magnitude = _yarn_magnitude(scaling.factor, scaling.mscale)
        magnitude /= _yarn_magnitude(scaling.factor, scaling.mscale_all_dim)
    return frequencies / scaling.factor * ramp + frequencies * (1 - ramp), magnitude


def _yarn_magnitude(factor: float, scale: float) -> float:
    return 1 + 0.1 * scale * log(factor) if factor > 1 else 1.0


def _longrope(frequencies: Array, rotary_dim: int, theta: float, scaling: RopeScaling) -> Scaled:
    """Ding et al., 2024. `_for_context` chose the factors."""
    factors = np.asarray(scaling.freq_factors, np.float64)
    magnitude = sqrt(1 + log(scaling.factor) / log(scaling.original_context)) if scaling.factor > 1 else 1.0
    return frequencies / factors, magnitude


def _llama3(frequencies: Array, rotary_dim: int, theta: float, scaling: RopeScaling) -> Scaled:
    """Leaves wavelengths below original / high, multiplies those above original / low by factor, and blends between."""
    rotations = scaling.original_context * frequencies / (2 * pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = np.clip((rotations - low) / (high - low), 0, 1)
    return frequencies * ((1 - smooth) / scaling.factor + smooth), 1.0


_KINDS: dict[str, Callable[[Array, int, float, RopeScaling], Scaled]] = {
    "none": _none,
    "linear": _linear,
    "ntk": _ntk,
    "dynamic": _ntk,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
