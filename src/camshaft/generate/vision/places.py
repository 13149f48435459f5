"""Positions with axes: time, row and column of tokens, where a picture takes as many as its longer side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from camshaft.generate.vision.tokens import PictureToken

Array = np.ndarray[Any, Any]


class AxisPositions:
    """The positions of tokens in each slot. What a slot had at a position and after it is forgotten when that position comes
    again, since another session has the slot, or this one has gone back."""

    def __init__(self) -> None:
        # Of each slot, in order: (from this position on, so much less).
        self._less: dict[int, list[tuple[int, int]]] = {}

    def of(self, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> Array:
        """Time, row and column of each token, i32 [tokens, 3]; those of a slot come in order, and from its beginning on."""
        return np.array([self._next(*each) for each in zip(ids, positions, slots, strict=True)], np.int32)

    def _next(self, token: int, position: int, slot: int) -> tuple[int, int, int]:
        known = self._less.setdefault(slot, [])
        while known and known[-1][0] > position:
            known.pop()
        less = known[-1][1] if known else 0
        if not isinstance(token, PictureToken):
            return (position - less,) * 3
        span, first = token.span, position - token.index - less
        row, column = divmod(token.index, span.columns)
        if token.index == len(span.rows) - 1:
            known.append((position + 1, less + len(span.rows) - span.extent))
        return first, first + row, first + column

    def begin(self, slot: int, other: int | None = None) -> None:
        """Have a slot with text alone so far, or with what another one has."""
        self._less[slot] = [] if other is None else list(self._less.get(other, []))
