"""Time a bound plan: run it on the executor's timed form, which stamps each worker's part of each thunk.

The CPU's clock is the processor's counter (native/clock.py), calibrated once against time.perf_counter_ns. Other devices are
timed by their own clocks.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from camshaft.errors import PlanError
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.library import timed_executor
from camshaft.plan.runtime.workers import Runner, WorkerPool, inside_host_thunk
from camshaft.process import ForkLock

CALIBRATION_S = 0.02
# Stamps of different workers cannot be compared if the cores' counters differ by more.
SLACK_NS = 1000.0
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Counts: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class TimedRun:
    """One run of a plan of n thunks, times in ns since its start. `lanes` are the workers ('worker 0', ...), then devices.

    `start` and `end` [lanes, n] are NaN and `programs` [lanes, n] is 0 where a lane had no part of a thunk. `met` [workers, n] is
    when a worker passed the wait before a thunk, with or without a part of it; `waited` [workers, n + 1] is how long it waited
    there, the last column at the end of the run. `clockless` names devices without a clock. `began_ns` is a
    time.perf_counter_ns value.
    """

    lanes: tuple[str, ...]
    workers: int
    began_ns: float
    total_ns: float
    start: Floats
    end: Floats
    programs: Counts
    met: Floats
    waited: Floats
    clockless: tuple[str, ...] = ()


@dataclass(frozen=True)
class Clock:
    """The processor's counter as nanoseconds of time.perf_counter_ns: ns0 + (ticks - ticks0) * ns_per_tick."""

    ticks0: int
    ns0: float
    ns_per_tick: float

    def ns(self, ticks: Counts) -> Floats:
        """Converts ticks to nanoseconds."""
        return np.asarray(self.ns0 + (ticks - self.ticks0) * self.ns_per_tick, np.float64)


def _pair(tries: int = 9) -> tuple[int, float]:
    """Returns (ticks, ns) read together: the try in which the least time passed between the two reads."""
    clock, best = timed_executor().clock, (float("inf"), 0, 0.0)
    for _ in range(tries):
        before = time.perf_counter_ns()
        ticks = clock()
        after = time.perf_counter_ns()
        best = min(best, (after - before, ticks, (before + after) / 2))
    return best[1], best[2]


@functools.cache
def clock() -> Clock:
    """Returns this process's clock. The first call calibrates it over 20 ms, to about 5 ns per millisecond."""
    ticks0, ns0 = _pair()
    time.sleep(CALIBRATION_S)
    ticks1, ns1 = _pair()
    if ticks1 <= ticks0:
        raise PlanError(f"the processor's counter went from {ticks0} to {ticks1} in 20 ms: no clock to time thunks by")
    return Clock(ticks0, ns0, (ns1 - ns0) / (ticks1 - ticks0))


_lock = ForkLock()  # the timed executor stores the stamps of one run at a time
_runners: dict[int, Runner] = {}


def _runner(threads: int) -> Runner:
    """Returns the runner of the timed form with this many workers, which sleep while nothing is timed."""

    def executor() -> Any:
        return timed_executor().executor

    if threads not in _runners:
        _runners[threads] = Runner(executor) if threads == 1 else WorkerPool(threads, executor)
    return _runners[threads]


def stamped(threads: int, n_thunks: int, first: int, last: int, run: Callable[[Runner], None]) -> Counts:
    """Calls `run` with the timed form's runner, to run thunks [first, last) of a plan.

    Returns stamps [workers, last - first + 1, 4] in ticks; the last row is a worker's whole run. The caller's is stamped here,
    because it wakes the other workers before its own first stamp.
    """
    stamps: Counts = np.zeros((threads, n_thunks + 1, layout.STAMP_WORDS), np.int64)
    timed_executor().stamps(stamps.ctypes.data, n_thunks + 1)
    before = timed_executor().clock()
    run(_runner(threads))
    stamps[0, n_thunks, [layout.START, layout.END]] = before, timed_executor().clock()
    return stamps[:, [*range(first, last), n_thunks]]


@contextmanager
def timing() -> Iterator[None]:
    """Calibrates the clock and reserves the timed executor for this thread. Raises PlanError inside a host thunk."""
    if inside_host_thunk():
        raise PlanError("a host thunk's function timed a plan; wanted that done outside of runs")
    clock()
    with _lock:
        yield


@dataclass(frozen=True)
class DeviceTimes:
    """Times of thunks [first, last), which ran alone on a device.

    `submitted_ns` is a time.perf_counter_ns value; `elapsed_ns` has each thunk's time by the device's clock, None without one.
    """

    device: str
    first: int
    last: int
    submitted_ns: int
    elapsed_ns: tuple[int, ...] | None


class Lanes:
    """Collects the arrays of a TimedRun."""

    def __init__(self, workers: int, waits: Sequence[bool], devices: tuple[str, ...]) -> None:
        self.workers, self.devices, self.waits = workers, devices, waits
        shape = workers + len(devices), len(waits)
        self.start, self.end = np.full(shape, np.nan), np.full(shape, np.nan)
        self.programs = np.zeros(shape, np.int64)
        self.met = np.full((workers, shape[1]), np.nan)
        self.waited = np.zeros((workers, shape[1] + 1))
        self.clockless: list[str] = []

    def whole(self, stamps: Counts) -> TimedRun:
        """Returns the run of a plan that is on the host only."""
        times = clock().ns(stamps[..., : layout.SIZE])
        began, ended = float(times[0, -1, 0]), float(times[0, -1, 1])
        self.put(0, len(self.waits), times - began, stamps[..., layout.SIZE])
        return self.done(began, ended - began)

    def put(self, first: int, last: int, times: Floats, programs: Counts) -> None:
        """Adds `times` [workers, last - first + 1, 2] in ns of thunks [first, last); the last row is the whole run."""
        thunks, whole = times[:, :-1], times[:, -1]
        took_part = programs[:, :-1] > 0
        self.start[: self.workers, first:last] = np.where(took_part, thunks[..., 0], np.nan)
        self.end[: self.workers, first:last] = np.where(took_part, thunks[..., 1], np.nan)
        self.programs[: self.workers, first:last] = programs[:, :-1]
        self.met[:, first:last] = thunks[..., 0]
        self._check(times, took_part)
        gaps = thunks[:, 1:, 0] - thunks[:, :-1, 1]
        self.waited[:, first + 1 : last] = gaps * np.array(self.waits[first + 1 : last])
        if last > first:
            self.waited[:, last if last == len(self.waits) else first] += np.maximum(whole[0, 1] - thunks[:, -1, 1], 0)

    def _check(self, times: Floats, took_part: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """Raises PlanError if a worker's stamps are outside the caller's run, since the cores' counters then differ."""
        work, begin, end = times[:, :-1][took_part], times[0, -1, 0], times[0, -1, 1]
        early, late = (begin - work[:, 0]).max(initial=0), (work[:, 1] - end).max(initial=0)
        if max(early, late) > SLACK_NS:
            raise PlanError(
                f"the counters of this machine's cores differ by {max(early, late):.0f} ns: nothing is timed"
            )

    def put_device(self, each: DeviceTimes, began: float) -> None:
        """Adds a device's segment: its thunks one after the other from its submission."""
        if each.elapsed_ns is None:
            self.clockless.append(each.device)
            return
        lane = self.workers + self.devices.index(each.device)
        ends = each.submitted_ns - began + np.cumsum(each.elapsed_ns)
        self.end[lane, each.first : each.last] = ends
        self.start[lane, each.first : each.last] = ends - np.array(each.elapsed_ns)
        self.programs[lane, each.first : each.last] = 1

    def done(self, began: float, total: float) -> TimedRun:
        names = (*(f"worker {i}" for i in range(self.workers)), *self.devices)
        clockless = tuple(dict.fromkeys(self.clockless))
        times = self.start, self.end, self.programs, self.met, self.waited
        return TimedRun(names, self.workers, began, total, *times, clockless)
