"""Room: whether the blocks of a limited cache suffice for requests, and which one gives way where they do not."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.generate.engine.prefix_cache import PrefixCache
from camshaft.generate.engine.request import Request
from camshaft.generate.memory.cache_specs import BLOCK_TOKENS
from camshaft.generate.memory.kv_cache import KVCache


def needed(cache: KVCache, requests: Sequence[Request], ahead: int) -> int:
    """The blocks that requests with a slot need beyond those that they have, for their tokens and `ahead` more of each."""
    return sum(
        max(0, _blocks(cache, len(request.ids) + ahead) - len(cache.blocks_of(request.slot)))
        for request in requests
        if request.slot is not None
    )


def _blocks(cache: KVCache, n_tokens: int) -> int:
    return -(-min(n_tokens, cache.context) // BLOCK_TOKENS)


def fits(cache: KVCache, prefixes: PrefixCache | None, request: Request, running: Sequence[Request]) -> bool:
    """Whether a waiting request fits beside the running ones, each with a block to continue."""
    shared = 0 if prefixes is None else prefixes.n_used(request.keys)
    own = _blocks(cache, len(request.ids) + BLOCK_TOKENS) - shared
    return own + needed(cache, running, BLOCK_TOKENS) <= cache.n_available


def least(running: Sequence[Request]) -> Request:
    """The request that gives way: of those with the highest number of priority the last one that got a slot."""
    return max(enumerate(running), key=lambda each: (each[1].priority, each[0]))[1]
