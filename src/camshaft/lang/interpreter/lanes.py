"""Words between lanes in the interpreter: reductions and scans."""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS, identity


def halve(values: Any, kind: str) -> Any:
    """Along the last axis: the first half with the second until one is left, as the emitters do."""
    combine = INSTRUCTIONS[COMBINERS[kind]].numpy
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = combine(values[..., :half], values[..., half:])
    return values[..., 0]


def subgroups(values: Any, kind: str, lanes: int) -> Any:
    """Each lane gets its subgroup's reduction."""
    return np.repeat(halve(values.reshape(-1, lanes), kind), lanes)


def scan(values: Any, kind: str, exclusive: bool) -> Any:
    """Lane i with those below it: i with i - 1, then i - 2, i - 4 and so on."""
    combine = INSTRUCTIONS[COMBINERS[kind]].numpy
    start = np.full(1, identity(kind, values.dtype), values.dtype)
    if exclusive:
        values = np.concatenate([start, values[:-1]])
    step = 1
    while step < len(values):
        values = np.concatenate([values[:step], combine(values[step:], values[:-step])])
        step *= 2
    return values
