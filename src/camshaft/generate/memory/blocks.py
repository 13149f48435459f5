"""The keys and values of one slot as bytes, block by block: equal on every backend, wherever the blocks lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from camshaft.generate.memory.kv_cache import KINDS, KVCache

Array = np.ndarray[Any, Any]


def block_arrays(cache: KVCache) -> Iterator[tuple[str, int]]:
    """(name, bytes of a block) of each array of keys and values."""
    for name, spec in cache.specs.items():
        if name.partition(".")[0] in KINDS:
            yield name, spec.nbytes // spec.bounds[0]


def read_blocks(cache: KVCache, name: str, slot: int, n: int) -> Array:
    """The first `n` blocks of a slot, uint8 [n, bytes of a block]."""
    memory, spec, blocks = cache.states[name], cache.specs[name], cache.blocks_of(slot)[:n]
    nbytes = spec.nbytes // spec.bounds[0]
    if isinstance(memory, np.ndarray):
        return np.ascontiguousarray(memory[list(blocks)]).reshape(n, -1).view(np.uint8)
    return np.stack([memory.memory.read(block * nbytes, nbytes) for block in blocks])


def write_blocks(cache: KVCache, name: str, slot: int, data: Array) -> None:
    """Make the first blocks of a slot, which has reserved them, those of uint8 [n, bytes of a block]."""
    memory, blocks = cache.states[name], cache.blocks_of(slot)[: len(data)]
    if isinstance(memory, np.ndarray):
        first, n = blocks[0], len(blocks)
        where = slice(first, first + n) if blocks == tuple(range(first, first + n)) else list(blocks)
        memory[where] = data.reshape(-1).view(memory.dtype).reshape(n, *memory.shape[1:])
        return
    for block, row in zip(blocks, data, strict=True):
        memory.memory.write(np.ascontiguousarray(row), block * row.nbytes)
