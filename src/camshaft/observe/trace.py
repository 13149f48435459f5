"""Write timed runs in Chrome's trace format for Perfetto: a row per worker, a bar per thunk and per wait."""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from camshaft.errors import reason_of
from camshaft.observe.profile import Profile
from camshaft.plan.runtime.timed import TimedRun
from camshaft.plan.schedule import Schedule

Event = dict[str, Any]
# About 200 MB of text. Later events are dropped and counted in the file.
MOST_EVENTS = 1_000_000


def lane_events(run: TimedRun, number: int, title: str) -> Iterator[Event]:
    """The name events of a plan (as process `number`) and its lanes."""
    yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": title}}
    for lane, name in enumerate(run.lanes):
        yield {"ph": "M", "name": "thread_name", "pid": number, "tid": lane, "args": {"name": name}}


def run_events(
    run: TimedRun,
    labels: list[tuple[str, str]],
    number: int,
    zero_ns: float = 0.0,
    replicated: frozenset[int] = frozenset(),
) -> Iterator[Event]:
    """A bar per lane and thunk, and per wait. `labels` are (name, op/variant) per thunk; times count from `zero_ns` of the
    run's clock. `replicated` are the thunks that every worker runs completely."""
    base = run.began_ns - zero_ns
    for lane in range(len(run.lanes)):
        for thunk, (name, kind) in enumerate(labels):
            if lane < run.workers and run.waited[lane, thunk] > 0:
                waited = float(run.waited[lane, thunk])
                yield _bar("wait", "wait", base + run.met[lane, thunk] - waited, waited, number, lane, {"before": name})
            start, end = run.start[lane, thunk], run.end[lane, thunk]
            if not math.isnan(start):
                args = {"thunk": thunk, "programs": int(run.programs[lane, thunk]), "replicated": thunk in replicated}
                yield _bar(name, kind, base + start, end - start, number, lane, args)
        if lane < run.workers and run.waited[lane, -1] > 0:
            waited = float(run.waited[lane, -1])
            yield _bar("wait", "wait", base + run.total_ns - waited, waited, number, lane, {"before": "the end"})


def _bar(name: str, kind: str, ts: float, duration: float, number: int, lane: int, args: dict[str, Any]) -> Event:
    times = {"ts": round(ts / 1e3, 4), "dur": round(float(duration) / 1e3, 4)}
    return {"ph": "X", "name": name, "cat": kind, **times, "pid": number, "tid": lane, "args": args}


def document(events: Iterable[Event]) -> dict[str, Any]:
    """The JSON document of the events."""
    return {"traceEvents": list(events), "displayTimeUnit": "ns"}


def profile_trace(profiles: dict[str, Profile]) -> dict[str, Any]:
    """The median run of each profile, each as a process that starts at time 0."""
    events: list[Event] = []
    for number, (title, profile) in enumerate(profiles.items(), start=1):
        labels = [(row.name, f"{row.op}/{row.variant}") for row in profile.thunks]
        events += lane_events(profile.timeline, number, title)
        replicated = frozenset(i for i, row in enumerate(profile.thunks) if row.n_replicated)
        events += run_events(profile.timeline, labels, number, profile.timeline.began_ns, replicated)
    return document(events)


class TraceFile:
    """The CAMSHAFT_TRACE file: collects all runs of all plans in this process, and is written at exit."""

    def __init__(self, path: Path) -> None:
        self.path, self._process = path, os.getpid()
        self._events: list[Event] = []
        self._plans, self._dropped = 0, 0
        self._zero_ns: float | None = None
        self._lock = threading.Lock()
        atexit.register(self.write)

    def plan(self) -> int:
        """Register a plan and return its number."""
        with self._lock:
            self._plans += 1
            return self._plans

    def add(self, run: TimedRun, schedule: Schedule, number: int, first: bool) -> None:
        """Add a run of plan `number`, with the lane names if it is the `first`."""
        labels = [(thunk.name, f"{thunk.op}/{thunk.variant}") for thunk in schedule.thunks]
        replicated = frozenset(i for i, thunk in enumerate(schedule.thunks) if thunk.replicated)
        with self._lock:
            if self._zero_ns is None:
                self._zero_ns = run.began_ns
            events = list(lane_events(run, number, f"plan {number}: {len(labels)} thunks")) if first else []
            events += run_events(run, labels, number, self._zero_ns, replicated)
            room = max(MOST_EVENTS - len(self._events), 0)
            self._dropped += len(events[room:])
            self._events += events[:room]

    def write(self) -> None:
        """Write the file, or warn that it cannot be written. Does nothing in a forked child."""
        if os.getpid() != self._process:
            return
        with self._lock:
            content = document(self._events) | {"otherData": {"dropped events": self._dropped}}
        try:
            self.path.write_text(json.dumps(content), "utf-8")
        except OSError as error:
            warnings.warn(f"CAMSHAFT_TRACE={self.path}: cannot be written: {reason_of(error)}", stacklevel=2)


_files: dict[Path, TraceFile] = {}
_lock = threading.Lock()


def trace_file(path: Path) -> TraceFile:
    """The trace for this path; one per process."""
    with _lock:
        absolute = path.absolute()
        if absolute not in _files:
            _files[absolute] = TraceFile(absolute)
        return _files[absolute]
