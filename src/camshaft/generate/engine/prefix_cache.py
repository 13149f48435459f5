"""PrefixCache: sequences that begin alike share the blocks of the KV cache that have their common beginning.

A block's key is the digest of its 16 tokens and of the key of the block before it. A block that no sequence uses any more stays
until its memory is needed; the least recently used one goes first. Only whole blocks are shared, and a sequence writes behind
them, so that no block has to be copied.

Recurrent layers have a state of each slot, and layers with a window keep their keys in a ring of each. Neither is in blocks, so
a sequence takes shared blocks up to a place whose states and windows were copied: the end of a message or prompt, or where two
prompts part.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import Any

import numpy as np

from camshaft.generate.memory.cache_specs import BLOCK_TOKENS
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.generate.vision.tokens import names_of

_DIGEST_NBYTES = 16
Array = np.ndarray[Any, Any]


def block_keys(ids: Sequence[int]) -> list[bytes]:
    """The key of each whole block of a sequence of token ids, those of images by the images' digests."""
    words, key, keys = np.asarray(ids, np.int32), b"", []
    for first in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        part = words[first : first + BLOCK_TOKENS].tobytes()
        images = names_of(ids[first : first + BLOCK_TOKENS])
        key = blake2b(key + part + images, digest_size=_DIGEST_NBYTES).digest()
        keys.append(key)
    return keys


class PrefixCache:
    """The shared blocks of one KV cache. The caller of `find`, `use`, `add` and `evict` has the model's lock."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._users: dict[int, int] = {}  # shared block -> number of slots that have it
        self._idle: OrderedDict[int, None] = OrderedDict()  # shared blocks without users, least recently used first
        self._states: OrderedDict[bytes, dict[str, Array]] = OrderedDict()  # least recently used first
        self.evictions = 0
        cache.prefixes = self

    @property
    def n_blocks(self) -> int:
        """The number of shared blocks, used or not."""
        return len(self._blocks)

    @property
    def n_idle(self) -> int:
        """The number of shared blocks that no sequence uses."""
        return len(self._idle)

    @property
    def has_states(self) -> bool:
        """Whether blocks alone are not all that a sequence has: there are recurrent states, or windows in rings."""
        return bool(self._cache.copied_nbytes)

    @property
    def splits(self) -> bool:
        """Whether a copy is made only where a run ends. Of windows alone it is made after the run, which leaves them there."""
        return self._cache.is_recurrent

    @property
    def states_nbytes(self) -> int:
        """Bytes of the copied states and windows."""
        return sum(array.nbytes for copy in self._states.values() for array in copy.values())

    @property
    def most_copies(self) -> int:
        """Maximum number of copies of states and windows: together they take no more memory than those of the slots."""
        one, of_slot = sum(self._cache.copied_nbytes.values()), self._cache.ring_nbytes + self._cache.state_nbytes
        return max(1, self._cache.n_slots * of_slot // one) if one else 0

    @property
    def most_states_nbytes(self) -> int:
        """The most that `states_nbytes` grows to."""
        return self.most_copies * sum(self._cache.copied_nbytes.values())

    def can_follow(self, key: bytes) -> bool:
        """Whether a sequence can continue after the block with this key: recurrent states, if any, were saved there."""
        return not self.has_states or key in self._states

    def keep_states(self, slot: int, n_blocks: int, key: bytes) -> None:
        """Copy the states and windows of a slot after `n_blocks` blocks, the last one with this key."""
        if self.has_states and key not in self._states:
            self.put_states(key, self._cache.copied_states(slot, n_blocks * BLOCK_TOKENS))

    def put_states(self, key: bytes, copied: dict[str, Array]) -> None:
        """Have a copy of the states and windows after the block with this key; all copies take no more than those of slots."""
        self._states[key] = copied
        while len(self._states) > self.most_copies:
            self._states.popitem(last=False)

    def states_after(self, key: bytes) -> dict[str, Array]:
        """The copy for a key of which `can_follow` is true."""
        return self._states[key] if self.has_states else {}

    def take_states(self, slot: int, n_blocks: int, key: bytes) -> None:
        """Make the states and windows of a slot those that were copied after the block with this key."""
        if self.has_states:
            self._states.move_to_end(key)
            self._cache.write_states(slot, n_blocks * BLOCK_TOKENS, self._states[key])

    def find(self, key: bytes) -> int | None:
        """The block with this key, if there is one."""
        return self._blocks.get(key)

    def n_used(self, keys: Sequence[bytes]) -> int:
        """How many blocks of the longest known beginning some sequence uses."""
        blocks = takewhile(lambda block: block is not None, map(self._blocks.get, keys))
        return sum(block not in self._idle for block in blocks)

    def use(self, slot: int, block: int) -> None:
        """Make a shared block the next one of a slot."""
        self._users[block] += 1
        self._idle.pop(block, None)
        self._cache.append_block(slot, block)

    def add(self, slot: int, index: int, key: bytes) -> None:
        """Share the slot's block at `index`, whose tokens are all in the cache, unless there is one with its key."""
        block = self._cache.blocks_of(slot)[index]
        if key not in self._blocks and block not in self._users:
            self._blocks[key], self._keys[block], self._users[block] = block, key, 1

    def release(self, blocks: Sequence[int]) -> list[int]:
        """Count one user less of each block of a closed slot; return the blocks that are not shared, which are free now.

        The blocks behind become idle before those in front, which more sequences begin with."""
        free = []
        for block in reversed(blocks):
            if block not in self._users:
                free.append(block)
                continue
            self._users[block] -= 1
            if not self._users[block]:
                self._idle[block] = None
        return free[::-1]

    def forget(self, keys: Sequence[bytes]) -> int:
        """Free the blocks with these keys that no sequence uses; returns their number."""
        blocks = [block for block in map(self._blocks.get, keys) if block is not None and block in self._idle]
        for block in blocks:
            del self._idle[block]
            self._drop(block)
        self._cache.free_blocks(blocks)
        return len(blocks)

    def evict(self) -> int:
        """Take the least recently used idle block from the shared ones. There is one whenever a slot has room for a block."""
        block, _ = self._idle.popitem(last=False)
        self._drop(block)
        self.evictions += 1
        return block

    def _drop(self, block: int) -> None:
        """Share a block no more, nor what was copied behind it."""
        key = self._keys.pop(block)
        del self._blocks[key], self._users[block]
        self._states.pop(key, None)
