"""Reports a load: percentiles of times, tokens per second and goodput."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from camshaft.errors import count
from camshaft.serve.load.run import Record
from camshaft.serve.load.stream import AnswerError
from camshaft.serve.load.workload import Workload

POINTS = (50, 95, 99)


@dataclass(frozen=True)
class Limits:
    """When an answer is a good one: seconds to its first token, and mean seconds between the tokens after it."""

    first_token_s: float = 2.0
    between_tokens_s: float = 0.2

    def hold(self, record: Record) -> bool:
        """Whether an answer that is whole keeps them."""
        return record.first_token_s <= self.first_token_s and record.between_tokens_s <= self.between_tokens_s


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of seconds, with their mean and the largest; the nearest value from above."""

    p50: float
    p95: float
    p99: float
    mean: float
    max: float

    @staticmethod
    def of(values: Sequence[float]) -> Percentiles:
        """Those of values, of which there is one at least."""
        ordered = sorted(values)
        p50, p95, p99 = (ordered[max(0, -(-len(ordered) * point // 100) - 1)] for point in POINTS)
        return Percentiles(p50, p95, p99, sum(ordered) / len(ordered), ordered[-1])


@dataclass(frozen=True)
class LoadReport:
    """The figures of one load. Tokens per second are those of answers, from the first request to the last answer's end; goodput
    is the answers per second that keep the limits. `times` has the seconds behind the percentiles, for charts."""

    workload: Workload
    limits: Limits
    seconds: float
    failed: int
    errors: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    tokens_per_s: float
    answers_per_s: float
    goodput_per_s: float
    first_token_s: Percentiles
    between_tokens_s: Percentiles
    answer_s: Percentiles
    times: dict[str, list[float]] = field(repr=False)

    @property
    def json(self) -> dict[str, Any]:
        """All but the single times."""
        return {name: value for name, value in vars(self).items() if name != "times"}


def report_of(workload: Workload, records: Sequence[Record], limits: Limits) -> LoadReport:
    """The report of a load. Raises AnswerError if no request had an answer."""
    errors = Counter(record.error for record in records if record.error is not None)
    whole = [record for record in records if record.error is None]
    if not whole:
        (error, n), *_ = errors.most_common(1)
        raise AnswerError(
            f"no answer to {count(len(records), 'request')}: {error}" + (f" ({n} times)" if n > 1 else "")
        )
    seconds = max(record.ended for record in records) - min(record.sent for record in records)
    tokens = sum(record.answer_tokens for record in whole)
    times = {
        "first_token_s": [record.first_token_s for record in whole],
        "between_tokens_s": [gap for record in whole for gap in record.gaps_s] or [0.0],
        "answer_s": [record.total_s for record in whole],
    }
    return LoadReport(
        workload=workload,
        limits=limits,
        seconds=seconds,
        failed=len(records) - len(whole),
        errors=dict(errors),
        prompt_tokens=sum(record.prompt_tokens for record in whole),
        cached_tokens=sum(record.cached_tokens for record in whole),
        answer_tokens=tokens,
        tokens_per_s=tokens / seconds,
        answers_per_s=len(whole) / seconds,
        goodput_per_s=sum(map(limits.hold, whole)) / seconds,
        times=times,
        **{name: Percentiles.of(values) for name, values in times.items()},
    )
