"""Drafts: speculation for several requests at once, by prompt lookup or by a draft model.

A run has the last token of every sequence, followed by the drafts of some. Each token is sampled from the model's
own logits by its request's sampler, as without drafts, so texts are the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from camshaft.errors import SettingError
from camshaft.generate.engine.draft_followers import DraftFollowers
from camshaft.generate.engine.request import Request, Statistics, Update
from camshaft.generate.memory.logits import move_row
from camshaft.generate.speculation.pace import MOST_ROWS, RunCosts, lengths
from camshaft.generate.speculation.speculator import AUTO, MEASURE_PLAIN, NGRAM, NgramDrafter, Speculate, without_auto

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel

Results = list[tuple[Request, Update]]


class Source(Protocol):
    """Drafts tokens for the requests of an engine. Every request that it has begun has a `drafter`."""

    def begin(self, request: Request) -> None:
        """Prepare a request that has a slot."""

    def found(self, request: Request, most: int) -> int:
        """How many tokens there are to draft for a request, `most` at most."""

    def cost(self, n_texts: int) -> float:
        """Returns the cost of drafting a token for this many texts, as a multiple of a run of one token."""

    def chosen(self, requests: Sequence[Request], wanted: list[int], mosts: Sequence[int], budget: int) -> list[int]:
        """The numbers of tokens to draft now, where `wanted` would pay. `budget`: prompt tokens that may be processed for it."""

    def draft(self, requests: Sequence[Request], wanted: Sequence[int]) -> list[list[int]]:
        """Returns drafts for each request, of `wanted` tokens or fewer."""

    def turn(self) -> AbstractContextManager[bool]:
        """A context for calls of `chosen` and `draft`; yields False if nothing can be drafted now."""

    def end(self, request: Request) -> None:
        """Free what a request has; may be called twice."""


class _Lookup:
    """Prompt lookup for several requests."""

    def __init__(self, costs: RunCosts) -> None:
        self._costs, self._found = costs, dict[int, list[int]]()

    def begin(self, request: Request) -> None:
        request.drafter = NgramDrafter()
        request.drafter.begin(self._costs)

    def found(self, request: Request, most: int) -> int:
        assert isinstance(request.drafter, NgramDrafter)
        self._found[id(request)] = request.drafter.find(request.ids, most)[:most]
        return len(self._found[id(request)])

    def cost(self, n_texts: int) -> float:
        return 0.0

    def chosen(self, requests: Sequence[Request], wanted: list[int], mosts: Sequence[int], budget: int) -> list[int]:
        return wanted

    def draft(self, requests: Sequence[Request], wanted: Sequence[int]) -> list[list[int]]:
        found, self._found = self._found, {}
        return [found.get(id(request), [])[:n] for request, n in zip(requests, wanted, strict=True)]

    def turn(self) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def end(self, request: Request) -> None:
        request.drafter = None


class Drafts:
    """Drafts for the requests of an engine; `of` None drafts nothing. Raises SettingError for a model that cannot check drafts
    of several sequences, ModelError for a draft model with another vocabulary."""

    def __init__(self, lm: LanguageModel, of: Speculate | None, statistics: Statistics) -> None:
        if isinstance(of, str) and of not in (AUTO, NGRAM):
            raise SettingError(
                f"speculate={of!r:.60}; an engine takes {AUTO!r}, {NGRAM!r}, an open LanguageModel or None"
            )
        self._is_auto, of = of == AUTO, without_auto(of, lm)
        self.kind = of if of is None or isinstance(of, str) else of.name
        if of is not None and (lm.plans.cache.is_recurrent or lm.plans.device is not None):
            why = "on a device" if lm.plans.device is not None else "with recurrent layers"
            raise SettingError(f"speculate={self.kind!r}: an engine cannot check drafts of a model {why}")
        self._lm, self._statistics = lm, statistics
        self._source: Source | None = None
        if of is not None:
            self._source = _Lookup(lm.plans.costs) if isinstance(of, str) else DraftFollowers(of, lm)
        self._in_a_row = 0  # runs with drafts

    def begin(self, request: Request) -> None:
        """Prepare a request that has a slot."""
        if self._source is not None:
            self._source.begin(request)

    def end(self, request: Request) -> None:
        """Free what a request has; may be called twice."""
        if self._source is not None:
            self._source.end(request)

    def drafted(self, requests: Sequence[Request], budget: int) -> list[list[int]]:
        """Returns the drafts of each request, as long as pays, in a run of at most MOST_ROWS tokens. A draft model may process
        `budget` tokens of prompts for it."""
        nothing: list[list[int]] = [[] for _ in requests]
        self._in_a_row += 1
        if self._source is None or len(requests) >= MOST_ROWS or self._in_a_row % MEASURE_PLAIN == 0:
            return nothing
        if self._is_auto and not self._lm.plans.checks_drafts:  # since the model has adapters
            return nothing
        started, costs = perf_counter(), self._lm.plans.costs
        mosts = [self._source.found(each, self._most(each, len(requests))) for each in requests]
        offers = [(r.drafter.share if r.drafter else 0.0, most) for r, most in zip(requests, mosts, strict=True)]
        wanted = lengths(offers, len(requests), costs, self._source.cost(len(requests)))
        with self._source.turn() as is_ours:
            if is_ours:
                wanted = self._source.chosen(requests, wanted, mosts, budget)
            if not is_ours or not any(wanted):
                self._in_a_row = 0
                return nothing
            drafts = self._source.draft(requests, wanted)
        for request, each in zip(requests, drafts, strict=True):
            request.drafted += len(each)
            self._statistics.drafted_tokens += len(each)
        self._statistics.drafting_s += perf_counter() - started
        return drafts

    def _most(self, request: Request, n_rows: int) -> int:
        if request.drafter is None or request.sampler is None:
            return 0
        wanted = request.options.max_tokens
        left = math.inf if wanted < 0 else wanted - request.generated_tokens - 1
        return int(max(min(MOST_ROWS - n_rows, self._lm.context - request.position - 1, left), 0))

    def run(self, run: Callable[[], None], n_rows: int) -> None:
        """Run, and measure the time."""
        started = perf_counter()
        run()
        if self._source is not None and n_rows <= MOST_ROWS:
            self._lm.plans.costs.add(n_rows, perf_counter() - started)

    def check(
        self, requests: Sequence[Request], drafts: Sequence[Sequence[int]], draw: Callable[[list[Request]], Results]
    ) -> Results:
        """Sample the token after each request's last one, and after each drafted token as long as drafts match the samples.
        `draw` samples from the first rows of the logits."""
        results = draw([*requests])
        ended = {id(request) for request, update in results if update.is_last}
        firsts = np.cumsum([len(requests), *map(len, drafts)]).tolist()  # rows of the drafts
        going = [
            (r, [*d], first) for r, d, first in zip(requests, drafts, firsts, strict=False) if r.drafter is not None
        ]
        while going:
            for request, _, _ in going:
                assert request.drafter is not None
                request.drafter.saw(request.drawn)
            going = [(r, d[1:], row + 1) for r, d, row in going if d and d[0] == r.drawn and id(r) not in ended]
            for i, (request, _, row) in enumerate(going):
                move_row(self._lm.plans.logits, row - 1, i)
                request.position += 1
                request.accepted += 1
            self._statistics.accepted_tokens += len(going)
            drawn = draw([request for request, _, _ in going])
            ended |= {id(request) for request, update in drawn if update.is_last}
            results += drawn
        return results
