"""Rows of the executor itself: 100 dependent adds of 16 elements, a wait after each on two threads, against ggml's graph."""

from __future__ import annotations

from collections.abc import Iterator

from bench.compare.model_files import Watch
from bench.compare.suite import OURS, Side, Suite, Target, Task

THUNKS = 100
MOST_NS = {1: 15.0, 2: 160.0}


def executor(threads: int, watch: Watch) -> Iterator[Suite]:
    """Nanoseconds per add."""
    given = {"threads": threads}
    sides = Side("ggml", "ggml:Adds", given), Side(OURS, "ours_executor:Adds", given, peer=False)
    wanted = Target(ratio=1.0, figure=MOST_NS.get(threads))
    yield Suite("executor", threads, sides, (Task("dependent adds of 16", {"adds": THUNKS}, "ns", THUNKS, wanted),))
