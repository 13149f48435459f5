"""Checkpoints: copies of a session's recurrent states and windows, so that it can go back to tokens before its last ones.

Keys and values of the KV cache stay where they are when a session goes back; a recurrent state has been overwritten, and so have
the keys in a ring, but for those of the last run or so. A session of such a model keeps copies at the ends of messages and
prompts, goes back to the nearest one, and processes the rest again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from camshaft.generate.memory.kv_cache import KVCache

# Copies of a session, at most: the first, at the end of the system message, and the last ones.
MOST = 4
# Fewest tokens between copies, for which a prompt is divided: a shorter run costs nearly as much as one of this many.
APART = 64
Array = np.ndarray[Any, Any]


class Checkpoints:
    """The copies of one session by position, the position of the states in the cache (None while a run changes them), and the
    tokens whose keys are in the rings."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._copies: dict[int, dict[str, Array]] = {}
        self._mark: tuple[int, dict[str, Array]] | None = None
        self._position: int | None = 0
        self._in_ring = range(0)

    @property
    def splits(self) -> bool:
        """Whether a copy is made only where a run ends. Of windows alone it is made after the run, which leaves them there."""
        return self._cache.is_recurrent

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(array.nbytes for copy in self._all_copies.values() for array in copy.values())

    @property
    def _all_copies(self) -> dict[int, dict[str, Array]]:
        return self._copies if self._mark is None else {**self._copies, self._mark[0]: self._mark[1]}

    def is_here(self, position: int) -> bool:
        """Whether the states and windows in the cache are those after `position` tokens."""
        ring, kept = self._cache.ring, self._in_ring
        in_ring = ring is None or kept.start <= ring.first(position) <= position <= kept.stop
        return in_ring and (not self._cache.is_recurrent or self._position == position)

    def nearest(self, position: int) -> int:
        """The last position up to `position` at which the states are known: 0 if there is no copy."""
        return position if self.is_here(position) else max(at for at in (*self._all_copies, 0) if at <= position)

    def save(self, slot: int, position: int) -> None:
        """Copy the states, which are those after `position` tokens."""
        if position not in self._copies:
            self._copies[position] = self._cache.copied_states(slot, position)
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
        """Copy the states in place of the mark before: tokens that may be wrong follow, few enough for the rings. The copies of
        `save` stay."""
        if position and position not in self._all_copies and self._cache.is_recurrent:
            self._mark = position, self._cache.copied_states(slot, position)

    def restore(self, slot: int, position: int) -> None:
        """Make the states those after `position` tokens, a result of `nearest`, and forget later copies."""
        if not self.is_here(position):
            if position:
                self._cache.write_states(slot, position, self._all_copies[position])
            ring = self._cache.ring
            self._in_ring = range(0 if ring is None else ring.first(position), position)
        self._copies = {at: copy for at, copy in self._copies.items() if at <= position}
        if self._mark is not None and self._mark[0] > position:
            self._mark = None
        self._position = position

    def begin(self, slot: int, position: int, n: int) -> None:
        """Restore the states after `position` tokens, for a run of the next `n`. Until `end`, or for good after an interrupt, the
        states are unknown."""
        self.restore(slot, position)
        self._position = None
        if self._cache.ring is not None:
            self._in_ring = range(max(self._in_ring.start, position + n - self._cache.ring.rows), position)

    def end(self, position: int) -> None:
        """The run has ended; the states are those after `position` tokens."""
        self._position, self._in_ring = position, range(self._in_ring.start, position)

    def take_over(self, other: Checkpoints) -> None:
        """Know what another session knows, of states that are equal now. Copies are shared: nothing changes them."""
        self._copies, self._mark = dict(other._copies), other._mark
        self._position, self._in_ring = other._position, other._in_ring

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
