"""Drafts: speculation for several requests at once, by prompt lookup.

A run has the last token of every sequence first, and then what is drafted for some of them. Each token is drawn from the model's
own logits by its request's sampler, as without drafts, so that texts are the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from camshaft.errors import SettingError
from camshaft.generate.engine.request import Request, Update
from camshaft.generate.engine.statistics import Statistics
from camshaft.generate.memory.logits import move_row
from camshaft.generate.speculation.pace import MOST_ROWS
from camshaft.generate.speculation.speculator import MEASURE_PLAIN, NGRAM, NgramDrafter
from camshaft.generate.vision.tokens import PictureToken

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel

Results = list[tuple[Request, Update]]


class Drafts:
    """Drafts for the requests of an engine; `kind` None drafts nothing. Raises SettingError for a model that cannot check drafts
    of several sequences."""

    def __init__(self, lm: LanguageModel, kind: str | None, statistics: Statistics) -> None:
        if kind not in (None, NGRAM):
            raise SettingError(f"speculate={kind!r:.60}; an engine takes {NGRAM!r} or None")
        if kind is not None and (lm.plans.cache.is_recurrent or lm.plans.device is not None):
            why = "on a device" if lm.plans.device is not None else "with recurrent layers"
            raise SettingError(f"speculate={kind!r}: an engine cannot check drafts of a model {why}")
        self._lm, self.kind, self._statistics = lm, kind, statistics
        self._in_a_row = 0  # runs with drafts

    def begin(self, request: Request) -> None:
        """Prepare a request that has a slot."""
        if self.kind is not None:
            request.drafter = NgramDrafter()
            request.drafter.begin(self._lm.plans.costs)

    def drafted(self, requests: Sequence[Request]) -> list[list[int]]:
        """What may follow each request's tokens, as much as pays, in a run of MOST_ROWS tokens in all."""
        found: list[list[int]] = [[] for _ in requests]
        self._in_a_row += 1
        if self.kind is None or self._in_a_row % MEASURE_PLAIN == 0:
            return found
        n_rows = len(requests)
        for drafts, request in zip(found, requests, strict=True):
            if request.drafter is None or request.sampler is None or n_rows >= MOST_ROWS:
                continue
            wanted = request.options.max_tokens
            left = math.inf if wanted < 0 else wanted - request.generated_tokens - 1
            most = int(max(min(MOST_ROWS - n_rows, self._lm.context - request.position - 1, left), 0))
            found_after = request.drafter.draft(request.ids, request.sampler, most, 1, others=n_rows - 1)
            drafts += takewhile(lambda token: not isinstance(token, PictureToken), found_after)
            n_rows += len(drafts)
            request.drafted += len(drafts)
            self._statistics.drafted_tokens += len(drafts)
        if n_rows == len(requests):
            self._in_a_row = 0
        return found

    def run(self, run: Callable[[], None], n_rows: int) -> None:
        """Run and measure what it costs."""
        started = perf_counter()
        run()
        if self.kind is not None and n_rows <= MOST_ROWS:
            self._lm.plans.costs.add(n_rows, perf_counter() - started)

    def check(
        self, requests: Sequence[Request], drafts: Sequence[Sequence[int]], draw: Callable[[list[Request]], Results]
    ) -> Results:
        """Draw the token after each request's last one, and after each drafted one as long as these are what is drawn. `draw`
        draws from the first rows of the logits."""
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
