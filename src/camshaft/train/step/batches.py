"""Batches of a step: as NumPy's arrays, by name, and cut into micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from camshaft.errors import PlanError
from camshaft.plan.jit import leaves, plain_array, with_leaves
from camshaft.train.step.graphs import inputs_of

Array = np.ndarray[Any, Any]


def plain(batch: Sequence[Any]) -> tuple[Any, ...]:
    """A batch whose arrays, of any library, are NumPy's."""
    found, _ = leaves(tuple(batch))
    made: tuple[Any, ...] = with_leaves(tuple(batch), map(plain_array, found))
    return made


def arrays_of(batch: Sequence[Any]) -> dict[str, Array]:
    """The arrays of a batch by their paths."""
    return {name: value for name, value in inputs_of(batch).items() if isinstance(value, np.ndarray)}


def micro_batches_of(batch: Sequence[Any], count: int) -> list[tuple[Any, ...]]:
    """A batch as `count` equal parts of its arrays along axis 0. PlanError for an axis 0 that does not divide into them."""
    if count == 1:
        return [tuple(batch)]
    arrays = arrays_of(batch)
    for name, a in arrays.items():
        if a.ndim < 1 or len(a) % count or not len(a):
            raise PlanError(f"step: {name} is {list(a.shape)}; wanted {count} micro-batches of equal size along axis 0")
    found, _ = leaves(tuple(batch))
    names = list(inputs_of(batch))
    parts = []
    for i in range(count):
        cut = [
            arrays[n][i * (len(arrays[n]) // count) : (i + 1) * (len(arrays[n]) // count)] if n in arrays else value
            for n, value in zip(names, found, strict=True)
        ]
        parts.append(with_leaves(tuple(batch), iter(cut)))
    return parts
