"""Speculator: drafts the next tokens of a generation, so that one run of the model checks several."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from camshaft.generate.speculation.ngram import CLASSES, NgramIndex, length_class
from camshaft.generate.speculation.pace import MOST_ROWS, Pace, RunCosts
from camshaft.generate.vision.tokens import ImageToken

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.sampling.sampler import Sampler

Speculate: TypeAlias = Union[str, "LanguageModel"]
Lock: TypeAlias = AbstractContextManager[Any]
NGRAM, AUTO = "ngram", "auto"
# How often the first drafted token was right in texts of several kinds, by the length of what is repeated; and a model's.
_NGRAM_SHARES: dict[int | None, float] = {2: 0.2, 3: 0.3, 5: 0.5, 9: 0.7}
MODEL_SHARE = 0.7
MODEL_COST = 0.3  # of drafting a token, before it is measured
# Tokens without a draft after which a draft model that does not pay is tried again; twice as many after each trial.
_TRY_AGAIN, _LAST_TRY = 64, 4096
_TRIED = 3  # tokens of such a trial
_REMEMBERED = 7
MEASURE_PLAIN = 32  # runs with drafts in a row, after which a run of one token is measured again


def without_auto(of: Speculate | None, lm: LanguageModel) -> Speculate | None:
    """What drafts: for 'auto' prompt lookup where a run that checks drafts has the bits of runs of one token and costs little
    more, else nothing."""
    return of if of != AUTO else NGRAM if lm.plans.checks_drafts else None


@dataclass
class Speculation:
    """Counts of speculation in one generation. `runs` checked `drafted` tokens in all, of which `accepted` were the tokens
    that the model drew; `kind` is 'ngram', or the draft model's name."""

    kind: str
    runs: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def acceptance(self) -> float:
        """Accepted per drafted token; 0 if none was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


class Drafted:
    """The draft for a text, compared with the tokens sampled. `_class` is the draft's kind in its pace."""

    def __init__(self) -> None:
        self._class: int | None = None
        self._next: list[int] = []
        self._pace: Pace

    @property
    def share(self) -> float:
        """How often tokens of such a draft are right."""
        return self._pace.share(self._class)

    def saw(self, token: int) -> bool:
        """Compare what was drawn; whether it is what was drafted."""
        if not self._next:
            return False
        right = self._next.pop(0) == token
        self._pace.saw(self._class, right)
        self._next = self._next if right else []
        return right


class NgramDrafter(Drafted):
    """Drafts by prompt lookup. Whether a draft would have been right is known without running it."""

    kind = NGRAM

    def __init__(self) -> None:
        super().__init__()
        self._index = NgramIndex()

    def begin(self, costs: RunCosts) -> None:
        """Start a generation."""
        self._pace = Pace(costs, dict(_NGRAM_SHARES))
        self._class, self._next = CLASSES[0], []

    def find(self, tokens: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that may follow, and at least one if there is any. Images are not drafted: no text has theirs."""
        self._index.follow(tokens)
        found, length = self._index.draft(max(most, 1))
        self._next = [*takewhile(lambda token: not isinstance(token, ImageToken), found)]
        self._class = length_class(length) if self._next else self._class
        return list(self._next)

    def draft(self, tokens: Sequence[int], sampler: Sampler, most: int, known: int) -> list[int]:
        """Tokens that may follow, as many as pay."""
        found = self.find(tokens, most)
        return found[: self._pace.length(self._class, most, known)] if found else []

    def prepare(self) -> None:
        """Nothing to take."""

    def rest(self) -> None:
        """Nothing to give."""

    def close(self) -> None:
        """Nothing to free."""


class Trials:
    """When to try a draft model again that does not pay."""

    def __init__(self) -> None:
        self._waited, self._wait = 0, _TRY_AGAIN

    def count(self) -> int:
        """Count a run without a draft; the number of tokens to draft on trial, mostly 0."""
        self._waited += 1
        if self._waited < self._wait:
            return 0
        self._waited, self._wait = 0, min(2 * self._wait, _LAST_TRY)
        return _TRIED


class ModelDrafter(Drafted):
    """Drafts by a draft model, while that pays."""

    def __init__(self, draft: LanguageModel, lm: LanguageModel) -> None:
        super().__init__()
        from camshaft.generate.speculation.draft_model import DraftSession, check_draft

        check_draft(draft, lm)
        self.kind, self._session = draft.name, DraftSession(draft)
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)  # of a drafted token

    def begin(self, costs: RunCosts) -> None:
        """Start a generation."""
        self._costs, self._pace = costs, Pace(costs, {None: MODEL_SHARE})
        self._next, self._trials = [], Trials()

    def draft(self, tokens: Sequence[int], sampler: Sampler, most: int, known: int) -> list[int]:
        """Tokens that may follow, as many as pay."""
        each = self._costs.in_runs(median(self._seconds)) if self._seconds else None
        n = self._pace.length(None, most, known, MODEL_COST if each is None else each)
        n = n or min(self._trials.count(), most)
        started = perf_counter()
        self._next = self._session.draft(tokens, sampler, n) if n > 0 else []
        if self._next:
            self._seconds.append((perf_counter() - started) / len(self._next))
        return list(self._next)

    def prepare(self) -> None:
        """Take a slot of the draft model, for which another thread's generation may have to end."""
        self._session.prepare()

    def rest(self) -> None:
        """Let others take the slot when they need one."""
        self._session.rest()

    def close(self) -> None:
        """Free the slot."""
        self._session.close()


class Speculator:
    """Drafts for one session, generation after generation.

    Every token is drawn from the model's own logits by the session's sampler, with its seed and step: a draft only decides which
    rows of logits are there already. So texts and their distribution are those without speculation."""

    def __init__(self, of: Speculate, lm: LanguageModel) -> None:
        """'auto' drafts as 'ngram', once a text has repeated and plans were made in the background. Raises ModelError if `of` is
        a model with another vocabulary."""
        self.of, self._plans, self._costs, self._context = of, lm.plans, lm.plans.costs, lm.context
        self._missed = False  # a draft that would have paid had to be left out
        self._drafter = NgramDrafter() if isinstance(of, str) else ModelDrafter(of, lm)
        self._open: list[int] = []  # drafted tokens that are run and not drawn yet
        self.prepare, self.rest, self.close = self._drafter.prepare, self._drafter.rest, self._drafter.close

    def locks(self, lock: Lock) -> list[Lock]:
        """The locks of a step: the model's and the draft model's. All steps take them in one order, so that two models may
        draft for each other."""
        return [lock] if isinstance(self.of, str) else sorted({lock, self.of.lock}, key=id)

    def begin(self) -> Speculation:
        """Start a generation; returns what counts its drafts."""
        self._drafter.begin(self._costs)
        self.counts, self._open, self._in_a_row = Speculation(self._drafter.kind), [], 0
        return self.counts

    def run(self, advance: Callable[[Sequence[int]], None], tokens: Sequence[int], known: int, sampler: Sampler,
            left: float) -> None:  # fmt: skip
        """Draft what may follow `tokens`, of which the last `known` are not in the cache yet, and run both by `advance`. `left`
        tokens are wanted at most."""
        self._in_a_row += 1
        room = min(MOST_ROWS - known, self._context - len(tokens), left - 1)
        measures = self._in_a_row % MEASURE_PLAIN == 0
        drafts = [] if measures else self._drafter.draft(tokens, sampler, int(max(room, 0)), known)
        if self.of == AUTO:
            allowed = drafts[: max(self._plans.draft_plans.most_rows - known, 0)]
            self._missed, drafts = len(allowed) < len(drafts), allowed
        started = perf_counter()
        advance(drafts)
        self._costs.add(known + len(drafts), perf_counter() - started)
        self._open = list(drafts)
        if not drafts:
            self._in_a_row = 0
        else:
            self.counts.runs += 1
            self.counts.drafted += len(drafts)

    def saw(self, token: int) -> None:
        """Count a token that was drawn."""
        if self._drafter.saw(token) and self._missed:
            self._plans.draft_plans.count_missed()
        if self._open:
            right = self._open.pop(0) == token
            self.counts.accepted += right
            self._open = self._open if right else []
