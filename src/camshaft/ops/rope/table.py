"""The table of cosines and sines by position for rope, with the methods of context extension that models use.

The frequencies are those of the RoPE paper (Su et al., 2021), 1 / theta^(2i / n), then changed by one RopeScaling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, log, pi
from typing import Any, Literal

import numpy as np

from camshaft.errors import ShapeError

Array = np.ndarray[Any, Any]
Kind = Literal["none", "linear", "ntk", "yarn", "llama3"]


@dataclass(frozen=True)
class RopeScaling:
    """Context extension beyond `original_context` by `factor`; the fields mean the same as in llama.cpp.

    linear: positions are divided by factor. ntk: theta grows so that the lowest frequency is divided by factor. yarn: high
    frequencies stay, low ones are interpolated, with a ramp between beta_fast and beta_slow rotations; cosines and sines are
    multiplied by 1 + 0.1 ln(factor). llama3: by wavelength between original_context / high_freq_factor and / low_freq_factor.
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


def rope_table(context: int, rotary_dim: int, theta: float, scaling: RopeScaling | None = None) -> Array:
    """Returns f32 [context, rotary_dim]: row p has rotary_dim / 2 cosines, then as many sines, for position p.

    ShapeError for an odd rotary_dim, an unknown kind, or a kind whose fields are missing or not positive.
    """
    scaling = scaling or RopeScaling()
    _check(context, rotary_dim, theta, scaling)
    frequencies, magnitude = _KINDS[scaling.kind](_frequencies(rotary_dim, theta, scaling), rotary_dim, theta, scaling)
    angles = np.arange(context, dtype=np.float64)[:, None] * frequencies
    magnitude *= scaling.attention_factor
    return (np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * magnitude).astype(np.float32)


def _check(context: int, rotary_dim: int, theta: float, scaling: RopeScaling) -> None:
    def need(condition: bool, came: object, wanted: str) -> None:
        if not condition:
            raise ShapeError(f"rope_table: got {came}; wanted {wanted}")

    need(context > 0 and theta > 0, (context, theta), "context and theta above 0")
    need(rotary_dim > 0 and rotary_dim % 2 == 0, rotary_dim, "an even rotary_dim above 0")
    need(scaling.kind in _KINDS, repr(scaling.kind), f"a kind of {', '.join(_KINDS)}")
    need(scaling.factor > 0, scaling.factor, "a factor above 0")
    if scaling.kind in ("yarn", "llama3"):
        need(scaling.original_context > 0, scaling.original_context, f"original_context above 0 for {scaling.kind}")
    if scaling.kind == "llama3":
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        need(0 < low < high, (low, high), "0 < low_freq_factor < high_freq_factor")
    if scaling.kind == "ntk":
        need(rotary_dim > 2, rotary_dim, "rotary_dim above 2 for ntk")
    if scaling.freq_factors is not None:
        shape = np.shape(scaling.freq_factors)
        need(shape == (rotary_dim // 2,), f"freq_factors of shape {shape}", f"[{rotary_dim // 2}]")


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

    low = max(0, floor(dimension_of(scaling.beta_fast)))
    high = min(rotary_dim - 1, ceil(dimension_of(scaling.beta_slow)))
    ramp = np.clip((np.arange(rotary_dim // 2) - low) / max(0.001, high - low), 0, 1)
    magnitude = 1 + 0.1 * log(scaling.factor)
    return frequencies / scaling.factor * ramp + frequencies * (1 - ramp), magnitude


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
    "yarn": _yarn,
    "llama3": _llama3,
}
