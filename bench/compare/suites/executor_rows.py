"""Rows of the executor's overhead: 100 dependent adds of 16 elements, against ggml's graph executor."""

from __future__ import annotations

from collections.abc import Iterator

from bench.compare.model_files import Watch
from bench.compare.suites.suite import OURS, Peer, Suite, Target, Task

THUNKS = 100
MAX_NS = {1: 15.0, 2: 160.0}


def executor(threads: int, watch: Watch) -> Iterator[Suite]:
    """Nanoseconds per add."""
    given = {"threads": threads}
    peers = Peer("ggml", "ggml:Adds", given), Peer(OURS, "ours/executor:Adds", given, peer_python=False)
    wanted = Target(ratio=1.0, figure=MAX_NS.get(threads))
    yield Suite("executor", threads, peers, (Task("dependent adds of 16", {"adds": THUNKS}, "ns", THUNKS, wanted),))
