"""Runs stands: every task by every side in turn, round after round, until each has its rounds. Gives what was measured so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.compare.process import SideError, SideProcess, busy_core
from bench.compare.suite import OURS, Side, Suite, Task

ROUNDS = 5
MORE_ROUNDS = 5  # for a row that was disturbed: two noisy rounds of five move a median, of ten they do not
WIDE = 1.25  # times its least answer, a side's greatest: rounds of a quiet machine stay under it
TOLERANCE = 0.02  # of mean sizes: quantizers and bf16 differ by less
Answers = dict[str, list[float]]
"""Seconds by side, a figure a round."""


class Running(Protocol):
    """A side that is up."""

    name: str
    about: dict[str, Any]
    check: float | None

    def seconds(self, order: Mapping[str, Any]) -> float: ...
    def close(self) -> None: ...


Start = Callable[[Side], Running]


@dataclass
class Measured:
    """A task's answers so far; `absent` says why a side has none, `about` what each side is."""

    answers: Answers = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """How many every side that is there has."""
        return min((len(values) for values in self.answers.values()), default=0)


@dataclass(frozen=True)
class Limits:
    """`rounds` of each task, and so many `more` where a side's were far apart; no turn begins after the clock passed `until`, in
    seconds of time.monotonic."""

    rounds: int = ROUNDS
    until: float = float("inf")
    more: int = 0

    def wanted(self, found: Measured) -> int:
        """The rounds of a task. What its first ones say decides, whatever the later ones add: nobody stops when it suits."""
        first = [values[: self.rounds] for values in found.answers.values() if len(values) >= self.rounds]
        return self.rounds + (self.more if any(max(values) > WIDE * min(values) for values in first) else 0)

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.until


def starter(peer_python: str) -> Start:
    """Starts sides as processes of their own."""
    return lambda side: SideProcess(side, peer_python)


def run(
    suite: Suite, known: Mapping[str, Measured], limits: Limits, start: Start, keep: Callable[[Task, Measured], None]
) -> None:
    """Adds rounds to what is `known` by task until each has its number, and hands each task to `keep` after every round.

    Nothing starts where nothing is missing. Each side's first turn at a task does not count, in this run as in the ones before. A
    side that fails at a task is absent from it from then on.
    """
    open_tasks = [task for task in suite.tasks if _wants(suite, known[task.name], task, limits)]
    if not open_tasks or limits.passed:
        return
    with ExitStack() as stack, busy_core(suite.busy):
        sides = _start(suite, open_tasks, known, start, stack)
        for turn in range(-1, limits.rounds + limits.more):
            for task in open_tasks:
                if limits.passed:
                    return
                found = known[task.name]
                if turn < 0 or found.rounds < limits.wanted(found):
                    _turn(task, found, sides, suite.pause_s, counts=turn >= 0)
                    keep(task, found)


def _wants(suite: Suite, found: Measured, task: Task, limits: Limits) -> bool:
    missing = [s.name for s in suite.sides if task.takes(s.name) and s.name not in found.answers | found.absent]
    return bool(missing) or found.rounds < limits.wanted(found)


def _start(
    suite: Suite, tasks: list[Task], known: Mapping[str, Measured], start: Start, stack: ExitStack
) -> list[Running]:
    """The sides that are there; the others are absent from every task."""
    running = []
    for side in suite.sides:
        takers = [known[task.name] for task in tasks if task.takes(side.name)]
        if not takers:
            continue
        try:
            process = start(side)
        except SideError as error:
            for found in takers:
                _drop(found, side.name, error)
            continue
        stack.callback(process.close)
        running.append(process)
        for found in takers:
            found.about[side.name] = process.about
            found.absent.pop(side.name, None)
    return running


def _turn(task: Task, found: Measured, sides: list[Running], pause_s: float, *, counts: bool) -> None:
    """One turn of every side. A side that has more rounds than another is not asked again: turns stay beside each other."""
    order = task.order if counts or task.warm is None else task.warm
    fresh: dict[str, float] = {}
    checks: dict[str, float | None] = {}
    for side in sides:
        if not task.takes(side.name) or side.name in found.absent:
            continue
        time.sleep(pause_s)  # until the other side's workers have stopped spinning
        try:
            fresh[side.name] = side.seconds(order)
            checks[side.name] = side.check
        except SideError as error:
            _drop(found, side.name, error)
    for name in _differing(checks):
        _drop(found, name, SideError(f"computes something else: {checks[name]:.4g}, camshaft {checks[OURS]:.4g}"))
        fresh.pop(name)
    for name, seconds in fresh.items() if counts else ():
        found.answers.setdefault(name, []).append(seconds)


def _differing(checks: Mapping[str, float | None]) -> list[str]:
    """The peers whose results are not of camshaft's mean size."""
    ours = checks.get(OURS)
    if ours is None:
        return []
    return [n for n, value in checks.items() if value is not None and not abs(value - ours) <= TOLERANCE * abs(ours)]


def _drop(found: Measured, name: str, error: SideError) -> None:
    found.absent[name] = str(error)
    found.answers.pop(name, None)
