"""Choose the prompt tokens of a step, and take those that are in the prefix cache already."""

from __future__ import annotations

from collections.abc import Iterable

from camshaft.generate.engine.prefix_cache import PrefixCache
from camshaft.generate.engine.request import Request
from camshaft.generate.memory.kv_cache import BLOCK_TOKENS
from camshaft.generate.vision.runs import PictureRuns

Part = tuple[Request, int]


def choose(
    requests: Iterable[Request],
    prefixes: PrefixCache | None,
    budget: int,
    most_rows: int,
    plans: PictureRuns,
) -> list[Part]:
    """The number of tokens of each prompt to process now, first come first served, `budget` in all.

    A prompt whose next block is being processed for another one waits until it can share that block. One that is scored needs the
    logits of each token, of which a run has `most_rows`, and shares no block of others."""
    parts: list[Part] = []
    coming: set[bytes] = set()
    for request in requests:
        if prefixes is not None and not request.is_scored:
            share(request, prefixes, plans)
        index, inside = divmod(request.position, BLOCK_TOKENS)
        if not request.is_prompting or (
            not inside and request.keys[index : index + 1] and request.keys[index] in coming
        ):
            continue
        n = min(request.prompt_end - request.position, budget, most_rows if request.is_scored else budget)
        n = n and plans.part_length(request.ids, request.position, n, is_first=not parts)
        if not n or not most_rows:
            break
        parts.append((request, n))
        budget -= n
        most_rows -= n if request.is_scored else 1
        if prefixes is not None:
            coming.update(request.keys[index : (request.position + n) // BLOCK_TOKENS])
    return parts


def share(request: Request, prefixes: PrefixCache, plans: PictureRuns) -> None:
    """Take the shared blocks that follow the request's position; at least the prompt's last token is left to process."""
    assert request.slot is not None
    while request.position % BLOCK_TOKENS == 0 and request.position + BLOCK_TOKENS < request.prompt_tokens:
        index = request.position // BLOCK_TOKENS
        block = prefixes.find(request.keys[index]) if index < len(request.keys) else None
        if block is None:
            return
        prefixes.use(request.slot, block)
        plans.pass_over(request.ids[request.position : request.position + BLOCK_TOKENS], request.position, request.slot)
        request.position += BLOCK_TOKENS
        request.cached_tokens += BLOCK_TOKENS
        request.n_shared = index + 1


def publish(request: Request, prefixes: PrefixCache) -> None:
    """Share the request's blocks whose tokens are all in the cache, each processed as part of a prompt."""
    assert request.slot is not None
    n = min(request.position, request.prompt_end) // BLOCK_TOKENS
    for index in range(request.n_shared, n):
        prefixes.add(request.slot, index, request.keys[index])
    request.n_shared = n
