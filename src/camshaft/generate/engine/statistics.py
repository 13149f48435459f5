"""Statistics: what an engine has done since its start."""

from __future__ import annotations

from collections import Counter
from dataclasses import field

from camshaft.dataclass import dataclass
from camshaft.generate.engine.request import Request

# Upper bounds in seconds of the histograms' buckets.
BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


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
