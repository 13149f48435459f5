"""Checkpoints: copies of a session's recurrent states, so that it can go back to tokens before its last ones.

Keys and values of the KV cache stay where they are when a session goes back; a recurrent state has been overwritten. A session of
such a model keeps copies at the ends of messages and prompts, goes back to the nearest one, and processes the rest again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from camshaft.generate.memory.kv_cache import KVCache

# Copies of a session, at most: the first, at the end of the system message, and the last ones.
MOST = 4
# Tokens between copies, at least, for which a prompt is divided: a run of few tokens costs nearly what one of so many does.
APART = 64
Array = np.ndarray[Any, Any]


class Checkpoints:
    """The copies of one session by position, and the position of the states in the cache: None while a run changes them."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._copies: dict[int, dict[str, Array]] = {}
        self._mark: tuple[int, dict[str, Array]] | None = None
        self.position: int | None = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(array.nbytes for copy in self._known.values() for array in copy.values())

    @property
    def _known(self) -> dict[int, dict[str, Array]]:
        return self._copies if self._mark is None else {**self._copies, self._mark[0]: self._mark[1]}

    def nearest(self, position: int) -> int:
        """The last position up to `position` at which the states are known: 0 if there is no copy."""
        known = [at for at in (*self._known, 0) if at <= position]
        return position if self.position == position else max(known)

    def save(self, slot: int, position: int) -> None:
        """Copy the states, which are those after `position` tokens."""
        if position not in self._copies:
            self._copies[position] = self._cache.copied_states(slot)
        while len(self._copies) > MOST:
            del self._copies[sorted(self._copies)[1]]

    def put(self, copies: dict[int, dict[str, Array]]) -> None:
        """Know other copies, by position."""
        self._copies |= copies

    @property
    def copies(self) -> dict[int, dict[str, Array]]:
        """The copies of `save` by position."""
        return dict(self._copies)

    def mark(self, slot: int, position: int) -> None:
        """Copy the states in place of the mark before: tokens that may be wrong follow. The copies of `save` stay."""
        if position and position not in self._known:
            self._mark = position, self._cache.copied_states(slot)

    def restore(self, slot: int, position: int) -> None:
        """Make the states those after `position` tokens, a result of `nearest`, and forget later copies."""
        if position != self.position and position:
            self._cache.write_states(slot, self._known[position])
        self._copies = {at: copy for at, copy in self._copies.items() if at <= position}
        if self._mark is not None and self._mark[0] > position:
            self._mark = None
        self.position = position

    def take_over(self, other: Checkpoints) -> None:
        """Know what another session knows, of states that are equal now. Copies are shared: nothing changes them."""
        self._copies, self._mark, self.position = dict(other._copies), other._mark, other.position

    def stops(self, position: int, pending: Sequence[int], ends: Collection[int]) -> list[int]:
        """How many of the pending tokens, which follow `position`, to process before each copy: up to the end of the first and
        of the last message, and all, but for those too near to others. Nothing for a single token."""
        if len(pending) < 2:
            return []
        last = max((at for at in (*self._copies, 0) if at <= position), default=0) - position
        found = [i + 1 for i, token in enumerate(pending) if token in ends]
        stops: list[int] = []
        for at in (*found[:1], *found[-1:]):
            if at - max([last, *stops]) >= APART and len(pending) - at > 0:
                stops.append(at)
        return [*stops, len(pending)]
