"""A draft model for several requests: it follows their texts in slots of its own, and drafts for all of them in one run.

Drafting never delays requests for long: a prompt that the draft model has not seen is processed within the engine's budget, while
no request waits for its own prompt, and only where as many tokens follow as make up for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import TYPE_CHECKING

from camshaft.errors import SettingError, SlotsInUseError, shortened
from camshaft.generate.engine.prefix_cache import PrefixCache
from camshaft.generate.engine.prompts import publish, share
from camshaft.generate.engine.request import Request
from camshaft.generate.memory.logits import move_row
from camshaft.generate.sampling.sampler import Sampler
from camshaft.generate.speculation.draft_model import check_draft, follow
from camshaft.generate.speculation.pace import MOST_ROWS, Pace, RunCosts
from camshaft.generate.speculation.speculator import MODEL_COST, MODEL_SHARE, Drafted, Trials
from camshaft.generate.vision.tokens import has_images

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel

MOST_DRAFTED = MOST_ROWS - 1  # requests: a run that checks drafts has a token of each, and one draft at least
# Tokens that a run of the draft model takes of one text: the last drafted one and the one drawn after it, where all were right.
_FEW = 2
# Prompt tokens for which a draft model is not behind too far, per token that the request may still generate: a run of the prompt
# plan processes a token in a tenth of the time of a run of one or less.
_MADE_UP = 8


class Follower(Drafted):
    """A request as the draft model sees it. The first `position` of the request's tokens are in the draft model's cache, and
    behind them the keys of `ahead`, which were drafted. `n_shared` to `branches` are as a request's."""

    def __init__(self, request: Request, pace: Pace, of_all: Pace) -> None:
        super().__init__()
        self._pace, self._of_all = pace, of_all
        self.slot: int | None = None
        self.sampler: Sampler | None = None
        self.ahead: list[int] = []
        self.keys, self.prompt_tokens, self.prompt_end = request.keys, request.prompt_tokens, request.prompt_end
        self.ids = request.ids
        self.position = self.n_shared = self.cached_tokens = 0
        self.is_resumed = False
        self.branches: set[int] = set()

    def catch_up(self) -> None:
        """Count the drafted tokens that were drawn as processed; the others' keys are written over."""
        while self.ahead and self.position < len(self.ids) - 1 and self.ahead[0] == self.ids[self.position]:
            self.position += 1
            del self.ahead[0]
        self.ahead = []

    @property
    def behind(self) -> int:
        """The tokens to process, of which the last one always is."""
        return len(self.ids) - self.position

    def drafted(self, tokens: Sequence[int]) -> None:
        """These were drafted, all but the last one are in the cache; compare them with what is drawn from now on."""
        self.position, self.ahead, self._next = len(self.ids), list(tokens[:-1]), list(tokens)

    def saw(self, token: int) -> bool:
        """Compare what was drawn; whether it is what was drafted."""
        if self._next:
            self._of_all.saw(None, self._next[0] == token)
        return super().saw(token)


class DraftFollowers:
    """Drafts of a draft model for the requests of an engine. The caller of all methods has the model's lock; several models may
    have one draft model; none waits for another's turn."""

    def __init__(self, draft: LanguageModel, lm: LanguageModel) -> None:
        """Raises ModelError for another vocabulary, SettingError for a model that cannot go back in several texts."""
        check_draft(draft, lm)
        cache, name = draft.plans.cache, shortened(draft.name, 60)
        if draft is lm:
            raise SettingError(f"speculate={name!r} is the model itself; wanted a smaller one")
        if cache.is_recurrent or draft.plans.device is not None:
            why = "on a device" if draft.plans.device is not None else "with recurrent layers"
            raise SettingError(f"speculate={name!r}: in an engine a model {why} cannot draft")
        self._draft, self._costs = draft, lm.plans.costs
        self._prefixes = cache.prefixes or PrefixCache(cache)
        self._own_costs = RunCosts()
        self._seen = Pace(self._costs, {None: MODEL_SHARE})  # of all requests: a new one begins with it
        self._trials = Trials()
        self._followers: dict[int, Follower] = {}

    def begin(self, request: Request) -> None:
        """Prepare a request. The draft model sees no images."""
        if not has_images(request.ids):
            request.drafter = Follower(request, Pace(self._costs, {None: self._seen.share(None)}), self._seen)

    def end(self, request: Request) -> None:
        """Free the request's slot in the draft model, or leave that to whoever has it now; may be called twice."""
        follower, request.drafter = request.drafter, None
        if isinstance(follower, Follower) and follower.slot is not None:
            self._draft.plans.cache.leave_slot(follower.slot)
            with self._draft.lock.if_free() as is_ours:
                if is_ours:
                    self._draft.plans.cache.close_left()

    def turn(self) -> AbstractContextManager[bool]:
        """The use of the draft model, whose lock `chosen` and `draft` need; False while another engine drafts by it."""
        return self._draft.lock.if_free()

    def found(self, request: Request, most: int) -> int:
        """Limited to the draft model's context; 0 for a text of which it would have to read too much."""
        follower = request.drafter
        if not isinstance(follower, Follower) or most <= 0:
            return 0
        follower.catch_up()
        wanted = request.options.max_tokens
        room = self._draft.context - len(request.ids)
        left = room if wanted < 0 else min(room, wanted - request.generated_tokens)
        return 0 if follower.behind > _FEW + _MADE_UP * left else max(min(most, room), 0)

    def cost(self, n_texts: int) -> float:
        """As measured, or as expected before."""
        seconds = self._own_costs.seconds(n_texts)
        measured = None if seconds is None else self._costs.in_runs(seconds)
        return MODEL_COST * self._own_costs.of(n_texts) if measured is None else measured

    def chosen(self, requests: Sequence[Request], wanted: list[int], mosts: Sequence[int], budget: int) -> list[int]:
        """What would pay, or a trial now and then where nothing does, of the texts that the draft model has read. It reads others
        within the budget; without one, others' prompts wait, and nothing is drafted. Nor is it before the model's own runs were
        measured, whose time drafting is to save."""
        if budget <= 0 or self._costs.in_runs(1.0) is None:
            return [0] * len(requests)
        if not any(wanted) and any(mosts):
            n, left, wanted = self._trials.count(), MOST_ROWS - len(requests), []
            for most in mosts:  # of all, so that the cost of drafting for this many is measured again
                wanted.append(min(n, most, left))
                left -= wanted[-1]
        for i, request in enumerate(requests):
            if wanted[i] and not self._is_ready(request):
                budget -= self._read(request, budget)
                wanted[i] *= self._is_ready(request)
        return wanted

    def _is_ready(self, request: Request) -> bool:
        follower = _follower(request)
        return follower.slot is not None and follower.behind <= _FEW

    def _read(self, request: Request, budget: int) -> int:
        """Process tokens of a request, all but the last one and up to the budget; returns their number."""
        follower, plans = _follower(request), self._draft.plans
        if budget <= 0 or (follower.slot is None and not self._open(follower)):
            return 0
        assert follower.slot is not None
        if follower.position < follower.prompt_end:
            share(follower, self._prefixes, plans)
        n = min(follower.behind - 1, budget, plans.prompt_tokens.bound)
        if n <= 0:
            return 0
        first, end = follower.position, follower.position + n
        plans.cache.reserve(follower.slot, end)
        plans.run(follower.ids[first:end], range(first, end), [follower.slot] * n, ())
        follower.position = end
        publish(follower, self._prefixes)
        return n

    def _open(self, follower: Follower) -> bool:
        """Take a slot; False if others have all of them."""
        cache = self._draft.plans.cache
        cache.close_left()
        try:
            follower.slot = cache.open_slot()
        except SlotsInUseError:
            return False
        cache.slots.use(follower.slot)
        return True

    def draft(self, requests: Sequence[Request], wanted: Sequence[int]) -> list[list[int]]:
        """Draft for all requests side by side, a run for each further token."""
        found: list[list[int]] = [[] for _ in requests]
        going = [(r, n, each) for r, n, each in zip(requests, wanted, found, strict=True) if n]
        for request, n, _ in going:
            follower = _follower(request)
            assert follower.slot is not None
            assert request.sampler is not None
            self._draft.plans.cache.reserve(follower.slot, len(request.ids) + n)
            follower.sampler = follow(follower.sampler, request.sampler, self._draft.context)
        while going:
            started = perf_counter()
            tokens = self._step(going)
            self._own_costs.add(len(going), perf_counter() - started)
            going = [
                (r, n, each)
                for (r, n, each), token in zip(going, tokens, strict=True)
                if self._took(each, token) and len(each) < n
            ]
        for request, each in zip(requests, found, strict=True):
            if each:
                _follower(request).drafted(each)
        return found

    def _took(self, found: list[int], token: int) -> bool:
        """Keep a drafted token; False for NaN, or a logit without a token."""
        if 0 <= token < self._draft.tokenizer.n_vocab:
            found.append(token)
            return True
        return False

    def _step(self, going: Sequence[tuple[Request, int, list[int]]]) -> list[int]:
        """Run the last tokens of each text, and draw what may follow."""
        plans = self._draft.plans
        ids, positions, slots, rows = list[int](), list[int](), list[int](), list[int]()
        for request, _, found in going:
            follower = _follower(request)
            assert follower.slot is not None
            new, end = found[-1:] or request.ids[follower.position :], len(request.ids) + len(found)
            ids += new
            positions += range(end - len(new), end)
            slots += [follower.slot] * len(new)
            rows.append(len(ids) - 1)
        plans.run_decode(ids, positions, slots)
        for i, row in enumerate(rows):
            move_row(plans.logits, row, i)
        samplers = [sampler for request, _, _ in going if (sampler := _follower(request).sampler) is not None]
        return self._draft.samplers.draw(samplers, [[*request.ids, *found] for request, _, found in going])


def _follower(request: Request) -> Follower:
    assert isinstance(request.drafter, Follower)
    return request.drafter
