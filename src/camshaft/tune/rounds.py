"""How samples of several kernels are taken: warm-up, rounds by turns, giving up. Knows nothing of plans."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from camshaft.errors import SettingError


@dataclass(frozen=True)
class Spread:
    """Median, least and most of some repeats."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def map(self, function: Callable[[float], float]) -> Spread:
        """Of a quantity that follows from this one, rising or falling."""
        return Spread(function(self.median), *sorted((function(self.min), function(self.max))))

    def rounded(self, digits: int = 4) -> dict[str, float]:
        """As JSON, to so many significant digits."""
        return {name: float(f"{value:.{digits}g}") for name, value in asdict(self).items()}


Clock = Callable[[], float]
# Whoever is so many times slower after warming up takes no part in the rounds.
HOPELESS = 4.0
IMPROVEMENT = 0.99


@dataclass(frozen=True)
class BenchmarkConfig:
    """How to measure.

    A sample is one run of a plan with as many uses of the kernel as last `sample_ns`. If `cold`, there are as many uses as have
    large inputs of twice the last cache in sum, each its own (cold.py): those come from memory. Warming up ends when a window
    of `window` runs has no better minimum than the one before it, by 1%, or after `warmup_s`. There are `runs` samples of each
    candidate, fewer when all have taken `budget_s` (but `least_runs`). Who is `give_up` times slower than the fastest, or than
    `incumbent_ns`, is not measured further. `threads` None means a plan's.
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
    """Nanoseconds of one use: the minimum, the median, and each round's. `gave_up` says that it was measured no further because
    others are faster; `uses` of the kernel make up a sample."""

    min_ns: float
    median_ns: float
    samples_ns: tuple[float, ...]
    uses: int
    warmup_runs: int
    gave_up: bool = False

    def ratio_to(self, other: Timing) -> float:
        """How many times the other's time it takes: the greater of what the medians of rounds that both ran, and the minima, say.
        On a busy machine either may be luck."""
        pairs = zip(self.samples_ns, other.samples_ns, strict=False)
        return max(statistics.median(mine / theirs for mine, theirs in pairs), self.min_ns / other.min_ns)


class Sampled(Protocol):
    """Something to measure: `sample` gives nanoseconds of one of the `uses` that it runs."""

    uses: int

    def sample(self) -> float: ...


def measure(benches: Sequence[Sampled], config: BenchmarkConfig, clock: Clock = time.perf_counter) -> list[Timing]:
    """A timing of each. Of several the first is the reference: it takes part in every round."""
    warm = [_warm_up(bench, config, clock) for bench in benches]
    fastest = min([min(samples) for samples in warm] + ([config.incumbent_ns] if config.incumbent_ns else []))
    reference = 0 if len(benches) > 1 else None
    live = [i for i, samples in enumerate(warm) if i == reference or min(samples) <= HOPELESS * fastest]
    rounds: list[list[float]] = [[] for _ in benches]
    started = clock()
    for turn in range(config.runs):
        if turn >= config.least_runs and clock() - started > config.budget_s:
            break
        for i in _rotated(live, turn):
            rounds[i].append(benches[i].sample())
            fastest = min(fastest, rounds[i][-1])
        if turn + 1 >= config.least_runs:
            live = [i for i in live if i == reference or min(rounds[i]) <= config.give_up * fastest]
    return [
        _timing(samples or [min(before)], bench.uses, len(before), i not in live)
        for i, (bench, before, samples) in enumerate(zip(benches, warm, rounds, strict=True))
    ]


def _warm_up(bench: Sampled, config: BenchmarkConfig, clock: Clock) -> list[float]:
    """Samples until a window has no better minimum than the one before it, or the time is up; at least one."""
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


def _rotated(live: list[int], turn: int) -> list[int]:
    """Another one begins each round, so that no one always follows the same neighbour."""
    start = turn % max(len(live), 1)
    return live[start:] + live[:start]


def _timing(samples: Sequence[float], uses: int, warmup_runs: int, gave_up: bool) -> Timing:
    return Timing(min(samples), statistics.median(samples), tuple(samples), uses, warmup_runs, gave_up)
