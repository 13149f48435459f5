"""RemoteEngine: the engines of replicas behind one deployment handle, with the interface of an engine of this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from camshaft.cluster.front_model import FrontModel, FrontSlots
from camshaft.cluster.replica import News, sendable
from camshaft.errors import ModelError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Listener, Request, Update, request_of
from camshaft.generate.engine.request_queue import QueueFullError
from camshaft.generate.generation import FinishReason
from camshaft.generate.options import GenerateOptions

# Calls `Replica.answer` with keys=, wanted=, is_scored= and priority=.
Call = Callable[..., AsyncIterator[list[News]]]
_log = logging.getLogger("camshaft.cluster")


@dataclass
class _Counted:
    """A request's progress as its replica reports it; stands in for a Generation."""

    tokens: int = 0
    text: str = ""
    finish_reason: FinishReason | None = None


@dataclass
class _Sent:
    """Requests that were sent together, and the task that reads what comes back."""

    requests: list[Request]
    task: asyncio.Task[None] | None = None


class RemoteEngine(Engine):
    """Belongs to the thread of one event loop.

    Requests are checked here as an engine does, so that those that are wrong are refused before they are sent. Statistics are of
    the requests that went through here. A request counts as one that waits until its first token is here.

    call: sends requests to a replica.
    max_queue: how many requests may wait, at all replicas together."""

    def __init__(self, lm: FrontModel, call: Call, *, max_queue: int) -> None:
        super().__init__(lm, max_queue=max_queue, prefix_cache=False)
        self._call = call
        self._sent: dict[int, _Sent] = {}  # by the identity of a request

    def start(self) -> None:
        """Nothing: the replicas have their threads."""

    def submit_all(
        self,
        wanted: Sequence[tuple[Sequence[int], GenerateOptions, Listener]],
        *,
        scored: bool = False,
        priority: int = 0,
    ) -> list[Request]:
        """Send several requests to one replica. Raises as Engine.submit_all."""
        requests = [request_of(self.lm, *each, scored, priority) for each in wanted]
        if not self.is_alive:
            raise ModelError("the engine is closed")
        n_free = self._slots.n_slots - len(self._running)
        if len(self._waiting) + len(requests) > self.max_queue + n_free:
            raise QueueFullError(f"{len(self._waiting)} requests wait; the limit is {self.max_queue}")
        self._waiting += requests
        sent = _Sent(requests)
        self._sent |= {id(request): sent for request in requests}
        sent.task = asyncio.get_running_loop().create_task(self._follow(sent, scored))
        return requests

    @property
    def _slots(self) -> FrontSlots:
        return cast(FrontSlots, self.lm.plans.cache)

    async def _follow(self, sent: _Sent, scored: bool) -> None:
        """Tell the listeners what comes back. The end of a replica ends its requests with an error."""
        requests = sent.requests
        wanted = [(request.ids, sendable(request.options)) for request in requests]
        error: Exception = ModelError("the replica sent no end")
        try:
            async for several in self._call(
                keys=requests[0].keys, wanted=wanted, is_scored=scored, priority=requests[0].priority
            ):
                for news in several:
                    self._take(news, requests[news.index])
        except Exception as failure:  # of Ray, and of its many classes; what requests have wrong comes as news
            _log.warning("a replica failed: %s", failure)
            error = ModelError("the replica that answered has ended; ask again")
        finally:
            self._leave(requests, error)

    def _leave(self, requests: Sequence[Request], error: Exception) -> None:
        for request in requests:
            self._sent.pop(id(request), None)
            if request.clock.ended:
                continue
            if request.is_cancelled:
                self._end(request, "cancelled")
            else:
                self._tell(request, Update(error=error))

    def _take(self, news: News, request: Request) -> None:
        if request.clock.ended:
            return
        clock = request.clock
        if not clock.admitted and news.admitted_s:
            clock.admitted = clock.queued + news.admitted_s
            self._admit_sent(request)
        self.statistics.generated_tokens += news.generated_tokens - request.generated_tokens
        before = cast(Any, request.generation) or _Counted()
        told = _Counted(news.generated_tokens, before.text + news.update.text, news.update.finish_reason)
        request.cached_tokens, request.generation = news.cached_tokens, cast(Any, told)
        request.position = request.prompt_tokens + news.generated_tokens
        clock.first_token = clock.queued + news.first_token_s if news.first_token_s else 0.0
        self._tell(request, news.update)

    def _admit_sent(self, request: Request) -> None:
        """Count a request as one that runs, if there is a slot: a replica that was replaced may not be counted out yet."""
        self.statistics.prompt_tokens += request.prompt_tokens
        request.slot = self._slots.open_slot()
        if request.slot is not None:
            self._waiting.remove(request)
            self._running.append(request)

    def cancel(self, request: Request) -> None:
        """End a request; the call that has it ends when all its requests are to end."""
        request.cancel()
        sent = self._sent.get(id(request))
        if sent is not None and sent.task is not None and all(each.is_cancelled for each in sent.requests):
            sent.task.cancel()

    def close(self) -> None:
        """End all requests with a ModelError; may be called twice."""
        self._end_all(ModelError("the engine is closed"))
