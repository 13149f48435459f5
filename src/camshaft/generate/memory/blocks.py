"""The keys and values of one slot as bytes, block by block: equal on every backend, wherever the blocks lie.

Rings have none: what of them is needed is copied with the recurrent states (`KVCache.copied_states`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from camshaft.generate.memory.cache_specs import KINDS
from camshaft.generate.memory.kv_cache import KVCache

Array = np.ndarray[Any, Any]


def block_arrays(cache: KVCache) -> Iterator[tuple[str, int]]:
    """(name, bytes of a block) of each array of keys and values that has a block for every 16 tokens."""
    for name in cache.specs:
        if name.partition(".")[0] in KINDS and name not in cache.ring_names:
            yield name, cache.row_nbytes(name)


def read_blocks(cache: KVCache, name: str, slot: int, n: int) -> Array:
    """The first `n` blocks of a slot, uint8 [n, bytes of a block]."""
    return cache.read_rows(name, cache.blocks_of(slot)[:n]).reshape(n, -1)


def write_blocks(cache: KVCache, slot: int, blocks: Mapping[str, Array], threads: int) -> None:
    """Make the first blocks of a slot, which has reserved them, those of uint8 [n, bytes of a block] by array; in host memory on
    so many threads."""
    rows = cache.blocks_of(slot)

    def write(name: str) -> None:
        cache.write_rows(name, rows[: len(blocks[name])], blocks[name])

    on_host = all(isinstance(cache.states[name], np.ndarray) for name in blocks)
    for_each(write, list(blocks), threads if on_host else 1)


def for_each(call: Callable[[str], object], names: Sequence[str], threads: int) -> None:
    """Call a function of each name, split among threads: a task per name would take 40 us."""
    if threads == 1:
        for name in names:
            call(name)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda i: for_each(call, names[i::threads], 1), range(threads)))
