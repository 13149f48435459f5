"""BlockTables: which blocks of 16 tokens each sequence slot has, in a table that kernels read."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.errors import CacheFullError, ContextError, ModelError, SlotsInUseError
from camshaft.generate.memory.cache_specs import BLOCK_TOKENS
from camshaft.generate.memory.slots import Slots

if TYPE_CHECKING:
    from camshaft.generate.engine.prefix_cache import PrefixCache

Array = np.ndarray[Any, Any]


class BlockTables:
    """The slots of a cache and their blocks. `table` is i32 [slots, blocks per slot]; `prefixes`, if set, has blocks that several
    slots share. Of `n_blocks` blocks, each has BLOCK_TOKENS tokens."""

    def __init__(self, context: int, n_slots: int, n_blocks: int, table: Array) -> None:
        self.context, self.n_slots, self.n_blocks, self.table = context, n_slots, n_blocks, table
        self.blocks_per_slot: int = table.shape[1]
        self._free_blocks = list(range(n_blocks - 1, -1, -1))
        self.slots = Slots(n_slots)
        self._blocks: dict[int, list[int]] = {}  # of each open slot
        self._left: deque[int] = deque()
        self.prefixes: PrefixCache | None = None  # the blocks that several slots may have

    @property
    def n_free(self) -> int:
        """The number of free slots."""
        return self.slots.n_free

    def open_slot(self, *, wait: bool = False) -> int:
        """Take a free slot; with `wait`, as soon as a generation of another thread has freed one.

        Raises SlotsInUseError if there is none, ModelError if the model is closed meanwhile."""
        slot = self.slots.take(wait=wait)
        if slot is None:
            if self.slots.is_closed:
                raise ModelError("the model is closed")
            raise SlotsInUseError(
                f"all {self.n_slots} sessions of this model are open; close one, or open the model with a larger sessions="
            )
        self._blocks[slot] = []
        return slot

    def close_slot(self, slot: int) -> None:
        """Free the slot and its blocks; may be called twice."""
        blocks = self._blocks.pop(slot, None)
        if blocks is not None:
            free = blocks if self.prefixes is None else self.prefixes.release(blocks)
            self._free_blocks += free[::-1]
            self.slots.release(slot)

    def leave_slot(self, slot: int) -> None:
        """Have `close_left` close a slot that shares blocks, from a thread that does not have the model's lock."""
        self._left.append(slot)

    def close_left(self) -> None:
        """Close the slots that were left. The caller has the model's lock."""
        while self._left:
            self.close_slot(self._left.popleft())

    def free_blocks(self, blocks: Sequence[int]) -> None:
        """Free blocks that no slot uses and no prefix shares."""
        self._free_blocks += blocks

    def blocks_of(self, slot: int) -> tuple[int, ...]:
        """The blocks of an open slot, in the order of its positions."""
        return tuple(self._blocks[slot])

    def append_block(self, slot: int, block: int) -> None:
        """Make `block` the next one of an open slot."""
        blocks = self._blocks[slot]
        self.table[slot, len(blocks)] = block
        blocks.append(block)

    @property
    def is_limited(self) -> bool:
        """Whether not every slot can have its whole context at once."""
        return self.n_blocks < self.n_slots * self.blocks_per_slot

    @property
    def n_available(self) -> int:
        """Blocks that no slot has, shared ones that no slot uses included."""
        return len(self._free_blocks) + (0 if self.prefixes is None else self.prefixes.n_idle)

    @property
    def full_error(self) -> CacheFullError:
        """Returns the error for a cache without a free block."""
        n = self.n_blocks * BLOCK_TOKENS
        return CacheFullError(f"all {n} tokens of the cache are in use: end sessions, or raise cache_tokens=")

    def _take_block(self) -> int:
        try:
            return self._free_blocks.pop()  # atomic: sessions may be closed in several threads
        except IndexError:
            if self.prefixes is None or not self.prefixes.n_idle:
                raise self.full_error from None
            return self.prefixes.evict()

    def reserve(self, slot: int, n_tokens: int) -> None:
        """Reserve blocks for positions 0 to n_tokens - 1. Raises ContextError beyond the context or for a closed slot, and
        CacheFullError if there are too few."""
        if n_tokens > self.context:
            raise ContextError(
                f"{n_tokens} tokens do not fit the context of {self.context}; shorten the text or raise context="
            )
        blocks = self._blocks.get(slot)
        if blocks is None:
            raise ContextError("the session is closed")
        while len(blocks) * BLOCK_TOKENS < n_tokens:
            self.append_block(slot, self._take_block())
