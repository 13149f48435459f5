"""Choose the prompt tokens of a step, and take those that are in the prefix cache already."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from camshaft.generate.engine.prefix_cache import PrefixCache
from camshaft.generate.engine.request import Request
from camshaft.generate.memory import checkpoints
from camshaft.generate.memory.cache_specs import BLOCK_TOKENS
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.generate.vision.runs import ImageRuns

Part = tuple[Request, int]


class Sharing(Protocol):
    """Shares cache blocks: a request, or its copy in a draft model's cache. Fields as in `Request`."""

    keys: list[bytes]
    prompt_tokens: int
    prompt_end: int
    slot: int | None
    position: int
    n_shared: int
    cached_tokens: int
    is_resumed: bool
    branches: set[int]

    @property
    def ids(self) -> Sequence[int]:
        """The tokens."""


def choose(
    requests: Iterable[Request],
    prefixes: PrefixCache | None,
    budget: int,
    most_rows: int,
    plans: ImageRuns,
) -> list[Part]:
    """The number of tokens of each prompt to process now, first come first served, `budget` in all.

    A prompt whose next block is being processed for another request waits until it can share that block. One that is scored needs
    the logits of each token, of which a run has `most_rows`, and shares no block of others."""
    parts: list[Part] = []
    coming: dict[bytes, Request] = {}
    taken = 0  # blocks for the parts
    for request in requests:
        if prefixes is not None and not request.is_scored:
            share(request, prefixes, plans)
        index, inside = divmod(request.position, BLOCK_TOKENS)
        if not request.is_prompting:
            continue
        if not inside and request.keys[index : index + 1] and request.keys[index] in coming:
            same = sum(key in coming for key in request.keys[index:])
            coming[request.keys[index]].branches.add(index + same)
            continue
        n = min(request.prompt_end - request.position, budget, most_rows if request.is_scored else budget)
        n = n and plans.part_length(request.ids, request.position, n, is_first=not parts)
        if not n or not most_rows:
            break
        n, taken = _with_room(request, n, plans.cache, taken)
        if not n:
            continue
        parts.append((request, n))
        budget -= n
        most_rows -= n if request.is_scored else 1
        if prefixes is not None:
            coming |= dict.fromkeys(request.keys[index : (request.position + n) // BLOCK_TOKENS], request)
    splits = prefixes is not None and prefixes.splits
    return [(request, _before_branch(request, n, plans)) for request, n in parts] if splits else parts


def _with_room(request: Request, n: int, cache: KVCache, taken: int) -> tuple[int, int]:
    """So many of the next `n` tokens as there are blocks for, if others take `taken` of them, and the blocks taken then. A part
    that must be whole is left to the cache, which refuses it."""
    if not cache.is_limited or request.slot is None:
        return n, taken
    own = len(cache.blocks_of(request.slot))
    n = min(n, (own + cache.n_available - taken) * BLOCK_TOKENS - request.position)
    return max(n, 0), taken + max(0, -(-(request.position + n) // BLOCK_TOKENS) - own)


def _before_branch(request: Request, n: int, plans: ImageRuns) -> int:
    """So many of the next `n` tokens that the run ends where others may part from the prompt, if it passes such a place."""
    first = request.position
    most = min([n, *(at * BLOCK_TOKENS - first for at in request.branches if at * BLOCK_TOKENS > first)])
    return n if most == n else plans.part_length(request.ids, first, most)


def share(request: Sharing, prefixes: PrefixCache, plans: ImageRuns) -> None:
    """Take the shared blocks that follow the request's position, as far as their states are known; at least the prompt's last
    token is left to process."""
    assert request.slot is not None
    if request.position % BLOCK_TOKENS:
        return
    index, most = request.position // BLOCK_TOKENS, (request.prompt_tokens - 1) // BLOCK_TOKENS
    found: list[int] = []
    for key in request.keys[index:most]:
        block = prefixes.find(key)
        if block is None:
            break
        found.append(block)
    n = len(found)
    while n and not prefixes.can_follow(request.keys[index + n - 1]):
        n -= 1
    if n < len(found):
        request.branches.add(index + len(found))
    if not n:
        return
    for block in found[:n]:
        prefixes.use(request.slot, block)
        plans.pass_over(request.ids[request.position : request.position + BLOCK_TOKENS], request.position, request.slot)
        request.position += BLOCK_TOKENS
    prefixes.take_states(request.slot, index + n, request.keys[index + n - 1])
    request.cached_tokens += 0 if request.is_resumed else n * BLOCK_TOKENS
    request.n_shared = index + n


def publish(request: Sharing, prefixes: PrefixCache) -> None:
    """Share the request's blocks whose tokens are all in the cache, each processed as part of a prompt."""
    assert request.slot is not None
    n = min(request.position, request.prompt_end) // BLOCK_TOKENS
    for at in range(request.n_shared + 1, n + 1):
        if at in request.branches and (at * BLOCK_TOKENS == request.position or not prefixes.splits):
            prefixes.keep_states(request.slot, at, request.keys[at - 1])
    for index in range(request.n_shared, n):
        prefixes.add(request.slot, index, request.keys[index])
    request.n_shared = n


def message_ends(request: Request, ends: Collection[int], *, splits: bool) -> set[int]:
    """After how many blocks others may part from a prompt: at the end of its first and its last message, and at its own.

    splits: whether runs end there, which costs time; then these places are checkpoints.APART tokens from each other, and the
    prompt's own end is one where it has no messages."""
    found = [i + 1 for i, token in enumerate(request.ids[: request.prompt_end]) if token in ends]
    places = [at // BLOCK_TOKENS for at in (*found[:1], *found[-1:], request.prompt_end)]
    if not splits:
        return {*places} - {0}
    chosen = [0]
    for at in places[: max(1, len(places) - 1)]:
        chosen += [at] if (at - chosen[-1]) * BLOCK_TOKENS >= checkpoints.APART else []
    return {*chosen} - {0}
