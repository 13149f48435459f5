"""What every script in bench/ shares; it is the package's own. Imported by its neighbours."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from bench.compare.figures import Spread, facts_line, machine, seconds_per_call, table, write

__all__ = [
    "Spread", "add_processor_time", "clock", "clock_name", "compared", "facts_line", "in_rounds", "machine",
    "seconds_per_call", "table", "with_clock", "write",
]  # fmt: skip


def add_processor_time(parser: argparse.ArgumentParser) -> None:
    """Adds the option --processor-time."""
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="measure the time of the peers' threads on a core, for a busy machine; with --threads 1",
    )


def with_clock(parser: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    """Tells the peers, by the environment, which clock to use. Workers that wait count too, so it is for one thread."""
    if options.processor_time:
        if getattr(options, "threads", 1) not in (1, [1]):
            parser.error("--processor-time is for --threads 1: workers that wait spend processor time too")
        os.environ["BENCH_CLOCK"] = "processor"
    return options


def clock_name() -> str:
    """'processor' or 'wall'."""
    return os.environ.get("BENCH_CLOCK", "wall")


def clock() -> float:
    """Seconds of this process's threads on a core, or of the wall, as `with_clock` chose."""
    return time.process_time() if clock_name() == "processor" else time.perf_counter()


def in_rounds(calls: Mapping[str, Callable[[], object]], rounds: int, window_s: float = 0.02) -> dict[str, Spread]:
    """Seconds per call: in each round every call has a window of so many seconds, after one that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    counts: dict[str, int] = {}
    for round_ in range(-1, rounds):
        for name, call in calls.items():
            if name not in counts:
                call()
                started = clock()
                call()
                counts[name] = max(1, round(window_s / max(clock() - started, 1e-7)))
            started = clock()
            for _ in range(counts[name]):
                call()
            if round_ >= 0:
                taken[name].append((clock() - started) / counts[name])
    return {name: Spread.of(found) for name, found in taken.items()}


def compared(what: Mapping[str, Any], spent: Mapping[str, Spread], ours: str = "camshaft") -> dict[str, Any]:
    """A row: what was measured, the clock, each library's nanoseconds, and how many times theirs is ours, by medians and by the
    least times."""
    mine, others = spent[ours], {name: s for name, s in spent.items() if name != ours}
    return {
        **what,
        "clock": clock_name(),
        "ns": {name: s.map(lambda x: x * 1e9).rounded() for name, s in spent.items()},
        "times": {name: round(s.median / mine.median, 3) for name, s in others.items()},
        "times_least": {name: round(s.min / mine.min, 3) for name, s in others.items()},
    }
