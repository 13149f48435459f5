"""Request: one sequence that the engine generates, the updates that its listener gets; Statistics of all requests."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from camshaft.errors import CamshaftError, ContextError, PromptError
from camshaft.generate.engine.prefix_cache import block_keys
from camshaft.generate.generation import FinishReason, Generation, TokenLogprob
from camshaft.generate.options import GenerateOptions, check_together
from camshaft.generate.sampling.sampler import Sampler
from camshaft.generate.speculation.speculator import Drafted

# Upper bounds in seconds of the histograms' buckets.
BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel


class TimeLimitError(CamshaftError):
    """A request had no token within the time that it may take."""


@dataclass(frozen=True)
class Update:
    """The result of one token: text (empty inside a character or a possible stop string), and log probabilities if
    wanted. The last update of a request has its finish reason, with the stop string that was reached, or its error; a cancelled
    request has none."""

    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    stop_string: str | None = None

    @property
    def is_last(self) -> bool:
        """Whether the request has ended."""
        return self.finish_reason is not None or self.error is not None


Listener = Callable[[Update], None]


@dataclass
class Clock:
    """Moments of a request in seconds of `time.perf_counter`; 0 if they have not come."""

    queued: float = field(default_factory=time.perf_counter)
    admitted: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0


class Request:
    """A prompt to continue. `cancel` may be called from any thread; all else belongs to the engine.

    `ids` are the prompt's tokens and the generated ones, of which the first `position` are in the KV cache. The first
    `prompt_end` are processed by the plans for prompts, the others one by one by those for generating. If it is scored, the first
    update has the log probabilities of the prompt's tokens after the first, and the last one that of an end token. `branches` are
    the numbers of blocks after which other prompts may diverge."""

    def __init__(
        self,
        ids: Sequence[int],
        options: GenerateOptions,
        listener: Listener,
        prompt_end: int,
        is_scored: bool = False,
        priority: int = 0,
    ) -> None:
        self.ids, self.prompt_tokens, self.prompt_end = list(ids), len(ids), prompt_end
        self.options, self.listener, self.clock = options, listener, Clock()
        self.keys = block_keys(self.ids[:prompt_end])  # of the blocks that may be shared
        self.branches: set[int] = set()
        self.position = self.n_shared = self.cached_tokens = 0
        self.is_scored, self.scores, self.priority = is_scored, list[TokenLogprob](), priority
        self.is_resumed = False
        self.slot: int | None = None
        self.sampler: Sampler | None = None
        self.end_tokens: frozenset[int] = frozenset()
        self.drawn = -1
        self.drafter: Drafted | None = None
        self.drafted = self.accepted = 0  # tokens
        self.generation: Generation | None = None
        self.deadline = math.inf  # of `time.perf_counter`
        self._cancelled = threading.Event()

    @property
    def is_fresh(self) -> bool:
        """Whether no token was drawn yet."""
        return len(self.ids) == self.prompt_tokens

    @property
    def is_behind(self) -> bool:
        """Whether tokens that were drawn before the last one are to be processed again."""
        return not self.is_prompting and self.position < len(self.ids) - 1

    def restart(self) -> None:
        """Begin again without a slot: what has been drawn stays, and its keys are computed again."""
        self.position, self.n_shared, self.is_resumed = 0, 0, True
        self.scores.clear()

    @property
    def is_late(self) -> bool:
        """Whether the time for the answer is over."""
        return self.deadline < time.perf_counter()

    @property
    def generated_tokens(self) -> int:
        """The number of generated tokens, without the end token."""
        return 0 if self.generation is None else self.generation.tokens

    @property
    def is_prompting(self) -> bool:
        """Whether tokens of the prompt are to be processed."""
        return self.position < self.prompt_end

    def is_complete(self) -> bool:
        """Whether the request's grammar lets nothing follow."""
        return self.sampler is not None and self.sampler.is_complete

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End the request at the next step; its listener is not called from then on."""
        self._cancelled.set()

    def take(self) -> int | FinishReason:
        """The drawn token, or the reason to end."""
        return "stop" if self.drawn in self.end_tokens else self.drawn


def request_of(
    lm: LanguageModel, ids: Sequence[int], options: GenerateOptions, listener: Listener, scored: bool, priority: int
) -> Request:
    """A request to continue the token ids. Raises ContextError if there are none, or they exceed the context."""
    check_together(options, "the engine")
    checked = lm.prompt_ids(ids, raw=True)
    n, context = len(checked), lm.context
    if not n:
        raise PromptError("the prompt is empty: it has no tokens to start from")
    if n > context:
        raise ContextError(f"the prompt has {n} tokens; the context is {context}: shorten it or raise context=")
    # A prompt alone is run in parts of that size, and a single token by the plan for generating if that rounds alike.
    is_tail = n % lm.plans.prompt_tokens.bound == 1 and not lm.plans.is_uneven
    return Request(checked, options, listener, n - is_tail, scored, priority)


@dataclass
class Histogram:
    """Numbers of values up to each bound of BUCKETS_S, with their sum and count."""

    counts: list[int] = field(default_factory=lambda: [0] * len(BUCKETS_S))
    total_s: float = 0.0
    n: int = 0

    def add(self, seconds: float) -> None:
        """Count one value."""
        self.total_s += seconds
        self.n += 1
        for i, bound in enumerate(BUCKETS_S):
            self.counts[i] += seconds <= bound


@dataclass
class Statistics:
    """Counts since the start. `prompt_tokens` includes `cached_tokens`, which were found in the prefix cache; of the
    `drafted_tokens` the `accepted_tokens` were drawn, and drafting took `drafting_s` seconds; `ended` has the requests by finish
    reason, 'cancelled' or 'error'."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafting_s: float = 0.0
    steps: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    queue_s: Histogram = field(default_factory=Histogram)
    first_token_s: Histogram = field(default_factory=Histogram)
    between_tokens_s: Histogram = field(default_factory=Histogram)

    def count_end(self, request: Request, how: str) -> None:
        """Count a request that has ended, with the mean time between its tokens."""
        clock = request.clock
        self.ended[how] += 1
        if clock.admitted:
            self.queue_s.add(clock.admitted - clock.queued)
        if clock.first_token:
            self.first_token_s.add(clock.first_token - clock.queued)
            if request.generated_tokens > 1:
                self.between_tokens_s.add((clock.ended - clock.first_token) / (request.generated_tokens - 1))
