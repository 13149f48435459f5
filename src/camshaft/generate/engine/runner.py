"""Runner: the runs of a model for the requests of one step, and the updates that follow from them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from camshaft.errors import GrammarError, LogitsError
from camshaft.generate.engine import prompts
from camshaft.generate.engine.drafts import Drafts, Results
from camshaft.generate.engine.prefix_cache import PrefixCache
from camshaft.generate.engine.request import Request, Statistics, TimeLimitError, Update
from camshaft.generate.generation import Generation, TokenLogprob
from camshaft.generate.model_plans import MAX_DECODE_SEQUENCES
from camshaft.generate.speculation.speculator import Speculate

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel


class Runner:
    """Runs the plans of one model. The caller of `generate` and `process_prompts` has the model's lock."""

    def __init__(
        self, lm: LanguageModel, prefixes: PrefixCache | None, statistics: Statistics, speculate: Speculate | None
    ) -> None:
        self._lm, self._prefixes, self._statistics = lm, prefixes, statistics
        self.drafts = Drafts(lm, speculate, statistics)

    def begin(self, requests: list[Request]) -> Results:
        """Prepare requests that have a slot."""
        for request in requests:
            lm, options = self._lm, request.options
            self.drafts.begin(request)
            if request.is_resumed:
                continue
            request.sampler, request.end_tokens = lm.sampler(options.sampling, options.grammar), lm.end_tokens(options)
            text, take = lm.tokenizer.stream(shown=options.shown_tokens), request.take
            request.generation = Generation(request.prompt_tokens, take, text, options, is_complete=request.is_complete)
            self._statistics.prompt_tokens += request.prompt_tokens
            if self._prefixes is not None and self._prefixes.has_states:
                request.branches |= prompts.message_ends(request, lm.tokenizer.eos_ids, splits=self._prefixes.splits)
        return []

    def generate(self, requests: list[Request], draft_budget: int) -> Results:
        """Generate a token of each of up to MAX_DECODE_SEQUENCES sequences, and more where drafts are right; a full context ends
        one. A draft model may process `draft_budget` tokens of prompts."""
        self._lm.check_open()
        plans, context = self._lm.plans, self._lm.context
        results = [(r, _full(r)) for r in requests if r.position == context]
        requests = [r for r in requests if r.position < context]
        if not requests:
            return results
        drafts = self.drafts.drafted(requests, draft_budget)
        slots = [self._reserve(request, 1 + len(each)) for request, each in zip(requests, drafts, strict=True)]
        ids, positions = [r.ids[-1] for r in requests], [r.position for r in requests]
        for request, slot, each in zip(requests, [*slots], drafts, strict=True):
            ids += each
            positions += range(request.position + 1, request.position + 1 + len(each))
            slots += [slot] * len(each)
        self.drafts.run(lambda: plans.run_decode(ids, positions, slots), len(ids))
        for request in requests:
            request.position += 1
        return results + self.drafts.check(requests, drafts, self._draw)

    def replay(self, requests: list[Request]) -> Results:
        """Process again what requests had drawn before they gave way, up to MAX_DECODE_SEQUENCES tokens of each: by the plans for
        generating, so that their keys have the bits of before."""
        self._lm.check_open()
        for request in requests:
            first = request.position
            ids = request.ids[first:-1][:MAX_DECODE_SEQUENCES]
            slot = self._reserve(request, len(ids))
            self._lm.plans.run_decode(ids, range(first, first + len(ids)), [slot] * len(ids))
            request.position += len(ids)
        return []

    def process_prompts(self, requests: list[Request], budget: int) -> Results:
        """Process up to `budget` prompt tokens; draw the first token after the prompts that are complete then."""
        self._lm.check_open()
        plans = self._lm.plans
        budget = min(budget, plans.prompt_tokens.bound)
        parts = prompts.choose(requests, self._prefixes, budget, plans.logit_rows.bound, plans)
        ids, positions, slots, rows = list[int](), list[int](), list[int](), list[int]()
        scored: list[tuple[Request, int, int]] = []  # row among `ids`, and the token that follows it
        for request, n in parts:
            end = request.position + n
            if request.is_scored and request.is_fresh:
                following = request.ids[request.position + 1 : end + 1]
                scored += [(request, len(ids) + i, token) for i, token in enumerate(following)]
            ids += request.ids[request.position : end]
            positions += range(request.position, end)
            slots += [self._reserve(request, n)] * n
            if end == request.prompt_tokens and request.is_fresh:
                rows.append(len(ids) - 1)
        if not ids:
            return []
        # A single token with `rows` would run by the plan for generating, which rounds differently.
        rows += [row for _, row, _ in scored]
        plans.run(ids, positions, slots, rows if len(ids) > 1 else (), alike=True)
        for i, (request, _, token) in enumerate(scored, len(rows) - len(scored)):
            request.scores.append(self._lm.token_logprob(i, token, request.options.logprobs or 0))
        for request, n in parts:
            request.position += n
            if self._prefixes is not None:
                prompts.publish(request, self._prefixes)
        return self._draw([r for r, _ in parts if r.position == r.prompt_tokens and r.is_fresh])

    def _reserve(self, request: Request, n: int) -> int:
        assert request.slot is not None
        self._lm.plans.cache.reserve(request.slot, request.position + n)
        return request.slot

    def _draw(self, requests: list[Request]) -> Results:
        """Draw a token of each request; the first rows of the logits are theirs."""
        if not requests:
            return []
        samplers = [r.sampler for r in requests if r.sampler is not None]
        tokens = self._lm.samplers.draw(samplers, [r.ids for r in requests])
        return [(r, self._drawn(r, row, token)) for row, (r, token) in enumerate(zip(requests, tokens, strict=True))]

    def _drawn(self, request: Request, row: int, token: int) -> Update:
        assert request.sampler is not None
        try:
            request.drawn = request.sampler.check(token, request.position, request.generated_tokens)
        except (GrammarError, LogitsError) as error:
            return Update(error=error)
        request.ids.append(token)
        logprobs = self._logprobs(request, row)
        generation = request.generation
        assert generation is not None
        before = generation.tokens
        text = generation.advance()
        if generation.finish_reason is None and generation.is_full:
            text += generation.advance()
        n = generation.tokens - before
        self._statistics.generated_tokens += n
        request.clock.first_token = request.clock.first_token or time.perf_counter()
        if request.is_scored:
            logprobs = (*request.scores, *logprobs)
            request.scores.clear()
        elif not n:
            logprobs = ()
        return Update(text, logprobs, generation.finish_reason, stop_string=generation.stop_string)

    def _logprobs(self, request: Request, row: int) -> tuple[TokenLogprob, ...]:
        wanted = request.options.logprobs
        if wanted is None or (request.drawn in request.end_tokens and not request.is_scored):
            return ()
        return (self._lm.token_logprob(row, request.drawn, wanted),)


def _full(request: Request) -> Update:
    """The end of a request that may have no further token."""
    assert request.generation is not None
    return Update(request.generation.finish("length"), finish_reason="length")


def late(request: Request) -> Update:
    """The end of a request whose time is over: with what it has, or with an error if that is nothing."""
    if not request.generated_tokens:
        return Update(error=TimeLimitError("the time for an answer is over before its first token; try again later"))
    return _full(request)
