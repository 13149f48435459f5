"""Saves the prompt of a slot's last request to a file, restores one into the prefix cache, or erases it.

Between requests, keys and values are only in the prefix cache; a slot refers to some of them. The files are those of
`GenerateOptions.prompt_cache`. They are read and written without the model's lock, so that requests continue meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from camshaft.errors import ContextError, SettingError, StoreError
from camshaft.generate.engine.prefix_cache import PrefixCache, block_keys
from camshaft.generate.memory.cache_specs import BLOCK_TOKENS
from camshaft.generate.memory.kv_cache import write_blocks
from camshaft.generate.stored.prompt_cache import PromptCache, blocks_of

if TYPE_CHECKING:
    from camshaft.generate.engine.engine import Engine


def save(engine: Engine, slot: int, path: Path) -> int:
    """Write the prompt of the slot's last request, as far as it is in the prefix cache; returns its tokens there.

    Raises SettingError for an unknown slot or a model that shares no prompts, ContextError if nothing is cached or all
    slots are in use, and StoreError if the file cannot be written."""
    prefixes, tokens = _prompt_of(engine, slot)
    file, keys = PromptCache(path, engine.lm), block_keys(tokens)
    with engine.lm.lock, _own_slot(engine) as own:
        blocks = _shared_blocks(prefixes, keys)
        if not blocks:
            raise ContextError(
                f"the prompt of slot {slot} is not in the cache; wanted {BLOCK_TOKENS} tokens of it, or more"
            )
        for block in blocks:
            prefixes.use(own, block)
        n = len(blocks) * BLOCK_TOKENS
        parts = file.copied(tokens[:n], own, {n: prefixes.states_after(keys[len(blocks) - 1])})
    file.write(tokens[:n], parts)
    return n


def _shared_blocks(prefixes: PrefixCache, keys: Sequence[bytes]) -> list[int]:
    """The blocks of the longest prefix that a request could reuse."""
    blocks = [*takewhile(lambda block: block is not None, map(prefixes.find, keys))]
    n = next((n for n in range(len(blocks), 0, -1) if prefixes.can_follow(keys[n - 1])), 0)
    return [block for block in blocks[:n] if block is not None]


def restore(engine: Engine, slot: int, path: Path) -> int:
    """Restore a file's prompt into the prefix cache as the slot's last request; returns its tokens.

    Raises as `save`, and StoreError for anything that is not a file of this model, or is damaged."""
    prefixes = _prefixes_of(engine, slot)
    cache, lm = engine.lm.plans.cache, engine.lm
    with PromptCache(path, lm).whole() as file:
        states = {at: file.states_at(at) for at in file.head.positions if at % BLOCK_TOKENS == 0}
        n = (max(states, default=0) if prefixes.has_states else len(file.head.tokens)) // BLOCK_TOKENS
        if not n:
            raise StoreError(f"{path}: nothing in it goes up to the end of a block of {BLOCK_TOKENS} tokens")
        tokens, blocks = file.head.tokens[: n * BLOCK_TOKENS], blocks_of(file, n, lm.plans.threads)
    with lm.lock, _own_slot(engine) as own:
        cache.reserve(own, len(tokens))
        write_blocks(cache, own, blocks, lm.plans.threads)
        for i, key in enumerate(block_keys(tokens)):
            prefixes.add(own, i, key)
            if (i + 1) * BLOCK_TOKENS in states:
                prefixes.put_states(key, states[(i + 1) * BLOCK_TOKENS])
        engine.last_prompts[slot] = tokens
    return len(tokens)


def erase(engine: Engine, slot: int) -> int:
    """Erase the prompt of the slot's last request, except blocks in use by running requests; returns the tokens. Raises as
    `save`."""
    prefixes, tokens = _prompt_of(engine, slot)
    with engine.lm.lock:
        engine.last_prompts.pop(slot, None)
        return BLOCK_TOKENS * prefixes.forget(block_keys(tokens))


def _prompt_of(engine: Engine, slot: int) -> tuple[PrefixCache, list[int]]:
    prefixes, tokens = _prefixes_of(engine, slot), engine.last_prompts.get(slot, [])
    if tokens is None:
        raise ContextError(f"the prompt of slot {slot} has images, whose embeddings no file has")
    return prefixes, tokens


def _prefixes_of(engine: Engine, slot: int) -> PrefixCache:
    n_slots = engine.lm.plans.cache.n_slots
    if not 0 <= slot < n_slots:
        raise SettingError(f"there is no slot {slot}; wanted 0 to {n_slots - 1}")
    if engine.prefixes is None:
        raise SettingError("slots of a model that is on a cluster cannot be saved, restored or erased")
    return engine.prefixes


@contextmanager
def _own_slot(engine: Engine) -> Iterator[int]:
    cache = engine.lm.plans.cache
    slot = cache.open_slot()
    cache.slots.use(slot)
    try:
        yield slot
    finally:
        cache.close_slot(slot)
