"""Run a suite: every task by every peer, in interleaved rounds, until each has enough rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.compare.process import PeerError, PeerProcess, busy_core
from bench.compare.suites.suite import OURS, Peer, Suite, Task

ROUNDS = 5
MORE_ROUNDS = 5  # extra rounds for noisy rows: two noisy rounds of five move a median, of ten they do not
WIDE = 1.25  # a row is noisy if a peer's slowest round exceeds its fastest by this factor
TOLERANCE = 0.02  # of mean result magnitudes; quantizers and bf16 differ by less
Answers = dict[str, list[float]]
"""Seconds by peer, one value per round."""


class Running(Protocol):
    """A running peer."""

    name: str
    about: dict[str, Any]
    check: float | None

    def seconds(self, order: Mapping[str, Any]) -> float: ...
    def close(self) -> None: ...


Start = Callable[[Peer], Running]


@dataclass
class Measured:
    """A task's measurements so far; `absent` has the reason for each peer without any, `about` facts on each peer."""

    answers: Answers = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """The number of rounds that every available peer has."""
        return min((len(values) for values in self.answers.values()), default=0)


@dataclass(frozen=True)
class Limits:
    """`rounds` per task, and `more` if the first ones are noisy. No measurement starts after `until`, in seconds of
    time.monotonic."""

    rounds: int = ROUNDS
    until: float = float("inf")
    more: int = 0

    def wanted(self, found: Measured) -> int:
        """The number of rounds for a task. Only its first rounds decide, so that nobody can stop at a favourable moment."""
        first = [values[: self.rounds] for values in found.answers.values() if len(values) >= self.rounds]
        return self.rounds + (self.more if any(max(values) > WIDE * min(values) for values in first) else 0)

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.until


def starter(peer_python: str) -> Start:
    """Start peers as processes of their own."""
    return lambda peer: PeerProcess(peer, peer_python)


def run(
    suite: Suite, known: Mapping[str, Measured], limits: Limits, start: Start, keep: Callable[[Task, Measured], None]
) -> None:
    """Add rounds to `known` until each task has enough, calling `keep` with a task after each of its rounds.

    Starts no peer if nothing is missing. Each peer's first round at a task is a warm-up and does not count. A peer that fails at
    a task is absent from it from then on.
    """
    open_tasks = [task for task in suite.tasks if _needs_rounds(suite, known[task.name], task, limits)]
    if not open_tasks or limits.passed:
        return
    with ExitStack() as stack, busy_core(suite.busy):
        peers = _start(suite, open_tasks, known, start, stack)
        for round_ in range(-1, limits.rounds + limits.more):
            for task in open_tasks:
                if limits.passed:
                    return
                found = known[task.name]
                if round_ < 0 or found.rounds < limits.wanted(found):
                    _round(task, found, peers, suite.pause_s, counts=round_ >= 0)
                    keep(task, found)


def _needs_rounds(suite: Suite, found: Measured, task: Task, limits: Limits) -> bool:
    missing = [s.name for s in suite.peers if task.takes(s.name) and s.name not in found.answers | found.absent]
    return bool(missing) or found.rounds < limits.wanted(found)


def _start(
    suite: Suite, tasks: list[Task], known: Mapping[str, Measured], start: Start, stack: ExitStack
) -> list[Running]:
    """The peers that start; the others are absent from every task."""
    running = []
    for peer in suite.peers:
        takers = [known[task.name] for task in tasks if task.takes(peer.name)]
        if not takers:
            continue
        try:
            process = start(peer)
        except PeerError as error:
            for found in takers:
                _drop(found, peer.name, error)
            continue
        stack.callback(process.close)
        running.append(process)
        for found in takers:
            found.about[peer.name] = process.about
            found.absent.pop(peer.name, None)
    return running


def _round(task: Task, found: Measured, peers: list[Running], pause_s: float, *, counts: bool) -> None:
    """One round of every peer, with pauses between them."""
    order = task.order if counts or task.warm is None else task.warm
    fresh: dict[str, float] = {}
    checks: dict[str, float | None] = {}
    for peer in peers:
        if not task.takes(peer.name) or peer.name in found.absent:
            continue
        time.sleep(pause_s)  # until the previous peer's workers stop spinning
        try:
            fresh[peer.name] = peer.seconds(order)
            checks[peer.name] = peer.check
        except PeerError as error:
            _drop(found, peer.name, error)
    for name in _differing(checks):
        _drop(found, name, PeerError(f"computes another result: mean {checks[name]:.4g}, camshaft {checks[OURS]:.4g}"))
        fresh.pop(name)
    for name, seconds in fresh.items() if counts else ():
        found.answers.setdefault(name, []).append(seconds)


def _differing(checks: Mapping[str, float | None]) -> list[str]:
    """The peers whose results differ from camshaft's in mean magnitude."""
    ours = checks.get(OURS)
    if ours is None:
        return []
    return [n for n, value in checks.items() if value is not None and not abs(value - ours) <= TOLERANCE * abs(ours)]


def _drop(found: Measured, name: str, error: PeerError) -> None:
    found.absent[name] = str(error)
    found.answers.pop(name, None)
