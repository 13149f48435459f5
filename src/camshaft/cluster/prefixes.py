"""Which replica a request goes to: the one that has most of its prompt in its prefix cache, unless it has much more to do.

A prompt is known by the keys of its blocks, which are those of the engine's own prefix cache. What a replica has is not asked
for: it is what was sent there, of which the least recently used blocks are forgotten once they are more than its cache has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from random import Random
from typing import Generic, TypeVar

R = TypeVar("R", bound=Hashable)  # a replica


class RoutedPrefixes(Generic[R]):
    """The blocks of prompts that were sent to each replica, up to `most_blocks` of each."""

    def __init__(self, most_blocks: int) -> None:
        self._most_blocks = most_blocks
        self._blocks: dict[R, OrderedDict[bytes, None]] = {}

    def n_cached(self, replica: R, keys: Sequence[bytes]) -> int:
        """How many blocks at the beginning of a prompt a replica has."""
        blocks = self._blocks.get(replica, OrderedDict())
        return next((i for i, key in enumerate(keys) if key not in blocks), len(keys))

    def add(self, replica: R, keys: Sequence[bytes]) -> None:
        """A prompt was sent to a replica. The blocks behind are forgotten before those in front, as in the engine."""
        blocks = self._blocks.setdefault(replica, OrderedDict())
        for key in reversed(keys):
            blocks[key] = None
            blocks.move_to_end(key)
        while len(blocks) > self._most_blocks:
            blocks.popitem(last=False)

    def keep(self, replicas: Collection[R]) -> None:
        """Forget the replicas that are not there any more."""
        self._blocks = {replica: blocks for replica, blocks in self._blocks.items() if replica in replicas}


def choose(
    keys: Sequence[bytes], n_open: Mapping[R, int], prefixes: RoutedPrefixes[R], slack: int, random: Random
) -> R:
    """The replica for a prompt, of those whose numbers of open requests are known.

    That with the longest cached beginning, of equals the one with the fewest requests; if there is none, or it has more than
    `slack` requests above the fewest, the one with fewer requests of two that are drawn (power of two choices)."""
    cached = {replica: prefixes.n_cached(replica, keys) for replica in n_open}
    most = max(cached.values())
    if most:
        best = min((replica for replica, n in cached.items() if n == most), key=n_open.__getitem__)
        if n_open[best] - min(n_open.values()) <= slack:
            return best
    return min(random.sample(list(n_open), min(2, len(n_open))), key=n_open.__getitem__)
