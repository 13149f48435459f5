"""Engine: many requests at once from one model, with continuous batching and shared prefixes.

A step runs every generating sequence by one token, then as many tokens of prompts as its budget has. The two are separate runs
of plans: the plans for prompts and those for generating round differently, so in one mixed run a request's tokens would depend
on its neighbours. As it is, a request gets the bits that it gets alone, whatever runs beside it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from camshaft.errors import CamshaftError, ModelError, SettingError
from camshaft.generate.engine.drafts import Results
from camshaft.generate.engine.prefix_cache import PrefixCache
from camshaft.generate.engine.preparation import ahead
from camshaft.generate.engine.request import Request, Statistics, Update
from camshaft.generate.engine.request_queue import MAX_QUEUE, Queue, by_priority, gives_way, has_room, needed_blocks
from camshaft.generate.engine.runner import Runner, late
from camshaft.generate.model_plans import MAX_DECODE_SEQUENCES, PROMPT_TOKENS
from camshaft.generate.speculation.pace import MOST_ROWS
from camshaft.generate.speculation.speculator import Speculate
from camshaft.generate.vision.tokens import has_images
from camshaft.process import renewed

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel

PROMPT_BUDGET = 256  # prompt tokens of a step while others generate: bounds the time between their tokens
_log = logging.getLogger("camshaft.engine")


class Engine(Queue):
    """Runs requests of one model. `start` begins a thread that runs them; without it, `step` does.

    prompt_budget: prompt tokens of a step while other requests generate.
    max_queue: how many requests may wait for a slot.
    speculate: 'ngram' drafts what followed the same tokens earlier in a text, an open model with the same vocabulary drafts by
    itself, while few requests run and it pays; texts are the same. Its owner closes that model, after the engine. 'auto' drafts
    as 'ngram' for models of which that is so token by token, and nothing for others.
    prefix_cache: whether prompts share the blocks of their common beginnings: those of models with recurrent layers or windows up
    to the ends of messages and to places where prompts were seen to part.
    time_limit_s: seconds from its arrival that a request may take; then it ends with what it has, as 'length', or with a
    TimeLimitError if it has no token.
    prepares: whether `start` also begins to make the plans for several requests, in a thread of its own; else the first batch of
    each size waits for its plan.

    At most `sessions` requests of the model run at once. If the model was opened with `cache_tokens`, requests wait until the
    cache has room for them, and where those that run grow beyond it the last one gives way: its keys are computed again later, by
    the plans of before, so that its tokens have the same bits."""

    def __init__(
        self,
        lm: LanguageModel,
        *,
        prompt_budget: int = PROMPT_BUDGET,
        max_queue: int = MAX_QUEUE,
        prefix_cache: bool = True,
        speculate: Speculate | None = None,
        time_limit_s: float = math.inf,
        prepares: bool = False,
    ) -> None:
        for name, value in (("prompt_budget", prompt_budget), ("max_queue", max_queue)):
            if type(value) is not int or value < 1:
                raise SettingError(f"{name}={value!r}; wanted a whole number from 1 up")
        super().__init__(lm, max_queue, time_limit_s)
        self._budget = prompt_budget
        cache = lm.plans.cache
        self.prefixes = (cache.prefixes or PrefixCache(cache)) if prefix_cache else None
        self.statistics = Statistics()
        # Slot -> the prompt of its last request; None for one with images, whose embeddings would stay in memory.
        self.last_prompts: dict[int, list[int] | None] = {}
        self._runner = Runner(lm, self.prefixes, self.statistics, speculate)
        self.preparation = ahead(lm, speculates=self.drafts_by is not None) if prepares else None
        renewed(self)

    def renew(self) -> None:
        """Forget the threads and the requests, in a forked child: `start` creates a new thread, and plans are made when
        needed."""
        self._changed, self._thread, self.preparation = threading.Condition(), None, None
        self._waiting.clear()
        for request in [*self._running]:
            self._free(request)

    @property
    def drafts_by(self) -> str | None:
        """'ngram', the name of the draft model, or None without speculation."""
        return self._runner.drafts.kind

    def start(self) -> None:
        """Begin the thread that runs the steps."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_steps, name="camshaft-engine", daemon=True)
            self._thread.start()
            if self.preparation is not None:
                self.preparation.start()

    def _run_steps(self) -> None:
        """Run steps until `close`. An error outside a request's own work ends the engine and all its requests."""
        try:
            while True:
                with self._changed:
                    while not (self._is_closing or self._waiting or self._running):
                        self._changed.wait()
                    if self._is_closing:
                        return
                self.step()
        except Exception as error:
            _log.exception("the engine failed")
            self._end_all(ModelError(f"the engine failed: {error}"))

    def step(self) -> None:
        """Admit requests that wait, generate a token of each sequence, and process prompts within the budget."""
        with self.lm.lock:
            for request in self._open():
                if request.is_cancelled:
                    self._end(request, "cancelled")
                elif request.is_late:
                    self._tell(request, late(request))
        self._admit()
        with self.lm.lock:
            before = self.lm.plans.n_runs
            self._make_room()
            self._try(self._runner.replay, [r for r in self._running if r.is_behind])
            generating = [r for r in self._running if not (r.is_prompting or r.is_behind)]
            alone = len(generating) == len(self._running) <= MAX_DECODE_SEQUENCES
            generate = partial(self._runner.generate, draft_budget=self._budget if alone else 0)
            for first in range(0, len(generating), MAX_DECODE_SEQUENCES):
                self._try(generate, generating[first : first + MAX_DECODE_SEQUENCES])
            budget = self._budget if generating else PROMPT_TOKENS
            prompting = sorted((r for r in self._running if r.is_prompting), key=by_priority)
            self._try(partial(self._runner.process_prompts, budget=budget), prompting)
            if self._running and self.lm.plans.cache.is_limited and self.lm.plans.n_runs == before:
                self._give_way()
            self.statistics.steps += 1

    def _make_room(self) -> None:
        """Have requests give way until those that generate have blocks for their next tokens."""
        cache, ahead = self.lm.plans.cache, MOST_ROWS if self.drafts_by else 1
        while cache.is_limited and len(self._running) > 1:
            generating = [r for r in self._running if not r.is_prompting]
            if needed_blocks(cache, generating, ahead) <= cache.n_available:
                return
            self._give_way()

    def _give_way(self) -> None:
        """Put the running request of lowest rank back into the queue, ahead of others of its priority. A lone one, which has no
        room beside sessions that are not requests, ends with an error."""
        request = gives_way(self._running)
        if len(self._running) == 1:
            self._tell(request, Update(error=self.lm.plans.cache.full_error))
            return
        self.statistics.preemptions += 1
        self._free(request)
        request.restart()
        with self._changed:
            self._waiting = deque(sorted([request, *self._waiting], key=by_priority))

    def _may_admit(self) -> bool:
        cache = self.lm.plans.cache
        if not (self._running and cache.is_limited):
            return True
        with self.lm.lock:
            return has_room(cache, self.prefixes, self._waiting[0], self._running)

    def _admit(self) -> None:
        cache = self.lm.plans.cache
        while self._waiting and self._may_admit():
            try:
                slot = cache.open_slot(wait=not self._running)
            except CamshaftError as error:
                if not self._running:
                    self._tell(self._waiting[0], Update(error=error))
                return
            cache.slots.use(slot)
            with self._changed:
                request = self._waiting.popleft()
            self._running.append(request)
            request.slot, request.clock.admitted = slot, request.clock.admitted or time.perf_counter()
            self._try(self._runner.begin, [request])

    def _try(self, run: Callable[[list[Request]], Results], requests: list[Request]) -> None:
        """Run requests and notify their listeners; an error ends those requests, and no others."""
        try:
            results = run(requests) if requests else []
        except Exception as error:
            results = [(request, Update(error=error)) for request in requests]
        for request, update in results:
            self._tell(request, update)

    def _tell(self, request: Request, update: Update) -> None:
        if update.error is not None and not isinstance(update.error, CamshaftError):
            _log.error("a request failed", exc_info=update.error)
        if update.is_last:
            self._end(request, update.finish_reason or "error")
        if request.is_cancelled:
            return
        try:
            request.listener(update)
        except Exception:
            _log.exception("the listener of a request failed")
            request.cancel()

    def _end(self, request: Request, how: str) -> None:
        """Free the request's slot, or take it out of the queue."""
        with self._changed:
            if request in self._waiting:
                self._waiting.remove(request)
        if request.slot is not None:
            prompt = request.ids[: request.prompt_end]
            self.last_prompts[request.slot] = None if has_images(prompt) else prompt
            self._free(request)
        request.clock.ended = time.perf_counter()
        self.statistics.cached_tokens += request.cached_tokens
        self.statistics.count_end(request, how)

    def _free(self, request: Request) -> None:
        self._running.remove(request)
        self._runner.drafts.end(request)
        if request.slot is not None:
            self.lm.plans.cache.close_slot(request.slot)
        request.slot = None

    def close(self) -> None:
        """End all requests with a ModelError, and the thread; may be called twice."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        if self.preparation is not None:
            self.preparation.close()
        self._end_all(ModelError("the engine is closed"))

    def _end_all(self, error: Exception) -> None:
        """Take no more requests, and end those that there are."""
        self._is_closing = True
        with self.lm.lock:
            for request in self._open():
                self._tell(request, Update(error=error))
