"""Warm-up, rounds and early stopping on fake samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import pytest

from camshaft.errors import SettingError
from camshaft.tune.rounds import BenchmarkConfig, measure


class Played:
    """Gives the samples it was given, the last one for ever; notes in `log` that it did."""

    uses = 1

    def __init__(self, name: str, samples: Iterable[float], log: list[str] | None = None) -> None:
        self.name, self.log = name, [] if log is None else log
        *first, last = samples
        self._samples: Iterator[float] = chain(first, repeat(last))

    def sample(self) -> float:
        self.log.append(self.name)
        return next(self._samples)


def still() -> float:
    """A clock that stands."""
    return 0.0


CONFIG = BenchmarkConfig(runs=6, least_runs=3, window=2)


def test_warming_up_ends_when_a_window_is_no_better() -> None:
    (timing,) = measure([Played("a", [900, 800, 400, 300, 200, 200, 200, 200])], CONFIG, still)
    assert timing.warmup_runs == 8  # windows of 800, 300, 200 and 200
    assert timing.samples_ns == (200.0,) * 6
    assert not timing.gave_up


def test_warming_up_ends_when_its_time_is_up() -> None:
    times = iter(range(1000))
    bench = Played("a", [float(n) for n in range(100, 0, -1)])
    (timing,) = measure([bench], BenchmarkConfig(runs=1, least_runs=1, warmup_s=4.5), lambda: float(next(times)))
    assert timing.warmup_runs == 5


def test_candidates_take_turns_and_another_one_begins_each_round() -> None:
    log: list[str] = []
    measure([Played(name, [100], log) for name in "abc"], CONFIG, still)
    warm = 3 * 4
    assert log[warm : warm + 9] == list("abcbcacab")


def test_minimum_and_median() -> None:
    warm = [50.0] * 4
    (timing,) = measure([Played("a", [*warm, 9, 1, 5, 7, 3, 100])], CONFIG, still)
    assert (timing.min_ns, timing.median_ns) == (1, 6)


def test_the_slow_give_up_but_the_first_is_measured_to_the_end() -> None:
    log: list[str] = []
    slow, fast, slower = (Played(n, [ns], log) for n, ns in (("slow", 200), ("fast", 100), ("slower", 390)))
    timings = measure([slow, fast, slower], CONFIG, still)
    assert [t.gave_up for t in timings] == [False, False, True]
    assert [len(t.samples_ns) for t in timings] == [6, 6, 3]
    assert timings[0].ratio_to(timings[1]) == 2.0


def test_the_hopeless_take_part_in_no_round() -> None:
    log: list[str] = []
    timings = measure([Played("fast", [100], log), Played("hopeless", [401], log)], CONFIG, still)
    assert log.count("hopeless") == timings[1].warmup_runs
    assert timings[1].gave_up
    assert timings[1].samples_ns == (401,)


def test_one_that_is_slower_than_the_incumbent_gives_up() -> None:
    incumbent = BenchmarkConfig(runs=6, least_runs=3, window=2, incumbent_ns=100.0)
    (timing,) = measure([Played("a", [160])], incumbent, still)
    assert (timing.gave_up, len(timing.samples_ns)) == (True, 3)


def test_rounds_end_with_the_budget_but_not_before_the_least() -> None:
    now = [0.0]

    class Slow(Played):
        def sample(self) -> float:
            now[0] += 1.0
            return super().sample()

    (timing,) = measure([Slow("a", [100])], BenchmarkConfig(runs=20, least_runs=4, budget_s=0.5), lambda: now[0])
    assert len(timing.samples_ns) == 4


def test_to_be_faster_takes_the_median_and_the_minimum() -> None:
    config = BenchmarkConfig(runs=3, least_runs=3, window=1)
    steady = Played("steady", [100, 100, 100])
    lucky = Played("lucky", [100, 100, 120, 120, 50])  # one lucky sample
    a, b = measure([steady, lucky], config, still)
    assert b.min_ns == 50
    assert b.ratio_to(a) == 1.2


@pytest.mark.parametrize("wrong", [{"runs": 0}, {"least_runs": 0}, {"runs": 2, "least_runs": 3}, {"give_up": 1.0}])
def test_wrong_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingError, match="wanted 1 <= least_runs"):
        BenchmarkConfig(**wrong)  # type: ignore[arg-type]
