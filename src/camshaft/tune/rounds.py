"""Time several kernels in interleaved rounds, with warm-up and early stopping of slow ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from camshaft.errors import SettingError


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of repeated measurements."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def map(self, function: Callable[[float], float]) -> Spread:
        """The spread of a monotonic function of the quantity."""
        return Spread(function(self.median), *sorted((function(self.min), function(self.max))))

    def rounded(self, digits: int = 4) -> dict[str, float]:
        """As a JSON object, rounded to significant digits."""
        return {name: float(f"{value:.{digits}g}") for name, value in asdict(self).items()}


Clock = Callable[[], float]
# Kernels slower than the fastest by this factor after warm-up are not sampled.
HOPELESS = 4.0
IMPROVEMENT = 0.99


@dataclass(frozen=True)
class BenchmarkConfig:
    """How to measure.

    A sample is one run of a plan with as many uses of the kernel as take `sample_ns`; if `cold`, as many as read twice the size
    of the last-level cache (see inputs.py). Warm-up ends when a window of `window` runs does not improve the minimum by 1%, or
    after `warmup_s`. Each kernel gets `runs` samples, fewer once all have taken `budget_s`, but at least `least_runs`. A kernel
    slower than the fastest (or than `incumbent_ns`) by the factor `give_up` is not measured further. `threads` None uses the
    default.
    """

    runs: int = 50
    least_runs: int = 5
    budget_s: float = 1.0
    sample_ns: float = 100_000.0
    window: int = 3
    warmup_s: float = 0.1
    give_up: float = 1.5
    incumbent_ns: float | None = None
    cold: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.least_runs <= self.runs or self.window < 1 or self.give_up <= 1.0:
            raise SettingError(f"{self}: wanted 1 <= least_runs <= runs, a window of 1 or more and give_up over 1")


@dataclass(frozen=True)
class Timing:
    """Nanoseconds per use: minimum, median, and each round's. `gave_up`: measuring stopped early because others are faster.
    `uses` is the number of uses per sample."""

    min_ns: float
    median_ns: float
    samples_ns: tuple[float, ...]
    uses: int
    warmup_runs: int
    gave_up: bool = False

    def ratio_to(self, other: Timing) -> float:
        """The ratio of this time to the other's: the greater of the median ratio over common rounds and the ratio of minima, as
        on a busy machine either alone may be too small by chance."""
        pairs = zip(self.samples_ns, other.samples_ns, strict=False)
        return max(statistics.median(mine / theirs for mine, theirs in pairs), self.min_ns / other.min_ns)


class Sampled(Protocol):
    """Something to measure; `sample` returns nanoseconds per use, averaged over `uses`."""

    uses: int

    def sample(self) -> float: ...


def measure(benches: Sequence[Sampled], config: BenchmarkConfig, clock: Clock = time.perf_counter) -> list[Timing]:
    """Time each bench. The first of several is the reference, which is sampled in every round."""
    warm = [_warm_up(bench, config, clock) for bench in benches]
    fastest = min([min(samples) for samples in warm] + ([config.incumbent_ns] if config.incumbent_ns else []))
    reference = 0 if len(benches) > 1 else None
    live = [i for i, samples in enumerate(warm) if i == reference or min(samples) <= HOPELESS * fastest]
    rounds: list[list[float]] = [[] for _ in benches]
    started = clock()
    for round_ in range(config.runs):
        if round_ >= config.least_runs and clock() - started > config.budget_s:
            break
        for i in _rotated(live, round_):
            rounds[i].append(benches[i].sample())
            fastest = min(fastest, rounds[i][-1])
        if round_ + 1 >= config.least_runs:
            live = [i for i in live if i == reference or min(rounds[i]) <= config.give_up * fastest]
    return [
        _timing(samples or [min(before)], bench.uses, len(before), i not in live)
        for i, (bench, before, samples) in enumerate(zip(benches, warm, rounds, strict=True))
    ]


def _warm_up(bench: Sampled, config: BenchmarkConfig, clock: Clock) -> list[float]:
    """Sample until a window does not improve the minimum, or the time is up; at least once."""
    samples: list[float] = []
    started, before = clock(), float("inf")
    while True:
        for _ in range(config.window):
            samples.append(bench.sample())
            if clock() - started > config.warmup_s:
                return samples
        now = min(samples[-config.window :])
        if now > before * IMPROVEMENT:
            return samples
        before = now


def _rotated(live: list[int], round_: int) -> list[int]:
    """Rotate the order each round, so that a kernel does not always follow the same one."""
    start = round_ % max(len(live), 1)
    return live[start:] + live[:start]


def _timing(samples: Sequence[float], uses: int, warmup_runs: int, gave_up: bool) -> Timing:
    return Timing(min(samples), statistics.median(samples), tuple(samples), uses, warmup_runs, gave_up)
