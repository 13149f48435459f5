"""Queue: the requests of an engine that wait and run, how they come in, and which gives way where blocks do not suffice."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from camshaft.errors import CamshaftError, ModelError
from camshaft.generate.engine.prefix_cache import PrefixCache
from camshaft.generate.engine.request import Listener, Request, request_of
from camshaft.generate.generation import Closing
from camshaft.generate.memory.cache_specs import BLOCK_TOKENS
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.generate.options import GenerateOptions

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel

MAX_QUEUE = 256
by_priority = attrgetter("priority")


class QueueFullError(CamshaftError):
    """As many requests wait as may."""


class Queue(Closing):
    """The part of an engine that callers use, from any thread."""

    def __init__(self, lm: LanguageModel, max_queue: int, time_limit_s: float) -> None:
        self.lm, self.max_queue, self._time_limit_s = lm, max_queue, time_limit_s
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False

    @property
    def n_waiting(self) -> int:
        """The number of requests without a slot."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """The number of requests with a slot."""
        return len(self._running)

    @property
    def running(self) -> list[Request]:
        """The requests with a slot."""
        return [*self._running]

    @property
    def is_alive(self) -> bool:
        """Whether requests are taken."""
        return not self._is_closing and (self._thread is None or self._thread.is_alive())

    def submit(self, ids: Sequence[int], options: GenerateOptions, listener: Listener) -> Request:
        """Queue a request to continue the token ids. `listener` gets an Update per token, in the engine's thread.

        Raises ContextError if the prompt is empty or exceeds the context, QueueFullError, and ModelError after `close`."""
        return self.submit_all([(ids, options, listener)])[0]

    def submit_all(
        self,
        wanted: Sequence[tuple[Sequence[int], GenerateOptions, Listener]],
        *,
        scored: bool = False,
        priority: int = 0,
    ) -> list[Request]:
        """Queue several requests, or none if there is no place for all of them. Raises as `submit`.

        scored: also report the log probabilities of the prompts' tokens, as `options.logprobs` has them for answers.
        priority: requests with a lower number get slots, and their prompts processed, before others; equal ones in order."""
        requests = [request_of(self.lm, *each, scored, priority) for each in wanted]
        for request in requests:
            request.deadline = request.clock.queued + self._time_limit_s
        with self._changed:
            if not self.is_alive:
                raise ModelError("the engine is closed")
            if len(self._waiting) + len(requests) > self.max_queue:
                raise QueueFullError(f"{len(self._waiting)} requests wait; the limit is {self.max_queue}")
            self._waiting = deque(sorted([*self._waiting, *requests], key=by_priority))
            self._changed.notify()
        return requests

    def cancel(self, request: Request) -> None:
        """End a request at the next step, whether it waits or runs; its listener is not called from then on."""
        request.cancel()
        with self._changed:
            self._changed.notify()

    def _open(self) -> list[Request]:
        """The requests that have not ended."""
        with self._changed:
            return [*self._running, *self._waiting]


def needed_blocks(cache: KVCache, requests: Sequence[Request], ahead: int) -> int:
    """The blocks that requests with a slot need beyond those that they have, for their tokens and `ahead` more of each."""
    return sum(
        max(0, _blocks(cache, len(request.ids) + ahead) - len(cache.blocks_of(request.slot)))
        for request in requests
        if request.slot is not None
    )


def _blocks(cache: KVCache, n_tokens: int) -> int:
    return -(-min(n_tokens, cache.context) // BLOCK_TOKENS)


def has_room(cache: KVCache, prefixes: PrefixCache | None, request: Request, running: Sequence[Request]) -> bool:
    """Whether a waiting request fits beside the running ones, each with a block to continue."""
    shared = 0 if prefixes is None else prefixes.n_used(request.keys)
    own = _blocks(cache, len(request.ids) + BLOCK_TOKENS) - shared
    return own + needed_blocks(cache, running, BLOCK_TOKENS) <= cache.n_available


def gives_way(running: Sequence[Request]) -> Request:
    """The request that gives way: of those with the highest number of priority the last one that got a slot."""
    return max(enumerate(running), key=lambda each: (each[1].priority, each[0]))[1]
