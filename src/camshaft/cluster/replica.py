"""Replica: the deployment that has a model and its engine, and answers calls of RemoteEngine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from camshaft.cluster.specs import started_model
from camshaft.errors import CamshaftError, ContextError, GrammarError, LogitsError, ModelError, SettingError
from camshaft.generate.engine.request import Listener, Request, TimeLimitError, Update
from camshaft.generate.engine.request_queue import QueueFullError
from camshaft.generate.grammar.grammar import Grammar
from camshaft.generate.options import GenerateOptions
from camshaft.serve.models.spec import ModelSpec

Wanted = Sequence[tuple[list[int], GenerateOptions]]


@dataclass(frozen=True)
class News:
    """An update of the answer `index`, and what its request has counted: tokens, and seconds since it was queued (0: not yet)."""

    index: int
    update: Update
    cached_tokens: int
    generated_tokens: int
    admitted_s: float
    first_token_s: float


class Replica:
    """A model and its engine, on one node."""

    def __init__(self, spec: ModelSpec) -> None:
        self._served = started_model(spec)

    def check_health(self) -> None:
        """Raise if the engine has ended, so that this replica is replaced."""
        if not self._served.is_alive:
            raise ModelError("the engine has ended")

    async def answer(
        self, *, keys: Sequence[bytes], wanted: Wanted, is_scored: bool, priority: int = 0
    ) -> AsyncIterator[list[News]]:
        """Run requests, and yield what comes of them; to stop reading ends them. `keys` is for the router."""
        engine, loop = self._served.engine, asyncio.get_running_loop()
        updates: asyncio.Queue[tuple[int, Update]] = asyncio.Queue()

        def listener(index: int) -> Listener:
            def listen(update: Update) -> None:  # in the engine's thread
                loop.call_soon_threadsafe(updates.put_nowait, (index, update))

            return listen

        try:
            compiled = [(ids, await self._compiled(options)) for ids, options in wanted]
            requests = engine.submit_all(
                [(*each, listener(i)) for i, each in enumerate(compiled)], scored=is_scored, priority=priority
            )
        except CamshaftError as error:
            yield [News(i, Update(error=portable(error)), 0, 0, 0.0, 0.0) for i in range(len(wanted))]
            return
        n_open = len(requests)
        try:
            while n_open:
                found = [await updates.get()]
                while not updates.empty():
                    found.append(updates.get_nowait())
                n_open -= sum(update.is_last for _, update in found)
                yield [news_of(index, update, requests[index]) for index, update in found]
        finally:
            for request in requests:
                if not request.clock.ended:
                    engine.cancel(request)

    async def _compiled(self, options: GenerateOptions) -> GenerateOptions:
        """The options with their grammar compiled beside the engine, which would wait for it."""
        if options.grammar is None:
            return options
        compiled = await asyncio.to_thread(self._served.lm.grammars.compiled, options.grammar)
        return replace(options, grammar=compiled)


def sendable(options: GenerateOptions) -> GenerateOptions:
    """The options with a grammar that is not compiled, since that cannot be sent."""
    given = options.grammar
    return options if given is None else replace(options, grammar=Grammar(given.kind, given.text))


def news_of(index: int, update: Update, request: Request) -> News:
    """An update with what its request has counted."""
    if update.error is not None:
        update = Update(error=portable(update.error))
    clock = request.clock
    times = [max(at - clock.queued, 0.0) for at in (clock.admitted, clock.first_token)]
    return News(index, update, request.cached_tokens, request.generated_tokens, *times)


# Those of which the class decides the status of the answer, or are of one request.
_SENT: tuple[type[CamshaftError], ...] = (
    QueueFullError,
    TimeLimitError,
    ContextError,
    GrammarError,
    SettingError,
    LogitsError,
    ModelError,
)


def portable(error: Exception) -> Exception:
    """An error that can be sent, of the same class as far as it decides the status of the answer."""
    if isinstance(error, CamshaftError):
        # Classes with a constructor of their own do not take the message.
        kind = next((kind for kind in _SENT if isinstance(error, kind)), CamshaftError)
        return kind(str(error))
    return RuntimeError(f"{type(error).__name__}: {error}")
