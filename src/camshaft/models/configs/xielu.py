"""Xielu: the numbers of each layer's xIELU (Huang and Schlag, 2024), read from metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from camshaft.dataclass import dataclass
from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value

# Keys that have no architecture in front.
XIELU_KEYS = tuple(f"xielu.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps"))
# Of numbers that a file says: more would overflow squares of f32.
_MOST = 1e6


@dataclass(frozen=True)
class Xielu:
    """positive x^2 + linear x above 0, else negative (expm1(min(x, edge)) - x) + linear x."""

    positive: float
    negative: float
    linear: float
    edge: float


def read_xielu(metadata: Mapping[str, Any], n_layers: int) -> tuple[Xielu, ...]:
    """The activation of each layer. Raises ModelError, naming the key, for an impossible value."""
    numbers = zip(*(_of_layers(metadata, key, n_layers) for key in XIELU_KEYS), strict=True)
    return tuple(Xielu(_softplus(p), beta + _softplus(n), beta, eps) for p, n, beta, eps in numbers)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _of_layers(metadata: Mapping[str, Any], key: str, n_layers: int) -> list[float]:
    """A number for each layer, or one for all."""
    value: Any = metadata.get(key)
    listed: Any = value.tolist() if hasattr(value, "tolist") else value
    listed = [listed] * n_layers if isinstance(listed, float) else listed
    good = isinstance(listed, list | tuple) and len(listed) >= n_layers
    if not good or not all(isinstance(x, float) and abs(x) <= _MOST for x in listed):
        raise ModelError(f"the key {key!r} is {shown_value(value)}; wanted {n_layers} numbers up to {_MOST:g}")
    return list(listed[:n_layers])
