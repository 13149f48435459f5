"""Profile a plan: time, waits and share of the machine's peak by thunk, op, part of the model and layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np

from camshaft.backends.device import HOST
from camshaft.errors import SettingError, count
from camshaft.observe.machine_peak import MachinePeak, machine_peak
from camshaft.observe.rows import GROUPS, Row, Work, grouped, layer_and_part, work_of
from camshaft.plan.buffers import Lifetime
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.lowering.node_thunks import NodeRange
from camshaft.plan.runtime.timed import Floats, TimedRun

Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Worker:
    """A worker's median time per run in ns: `busy_ns` in programs, `waited_ns` at waits; the rest is overhead."""

    name: str
    busy_ns: float
    waited_ns: float


@dataclass(frozen=True)
class Placement:
    """Bytes [offset, offset + nbytes) of a device's arena, used by a temporary from thunk `first` to thunk `last`."""

    name: str
    space: str
    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Profile:
    """Medians over `runs` runs. `thunks` are in plan order; `timeline` is the run of median length; `peak` is the CPU's with
    the same number of threads, None if no thunk runs there; `notes` are remarks such as missing clocks."""

    threads: int
    runs: int
    total_ns: float
    fastest_ns: float
    extents: dict[str, int]
    thunks: tuple[Row, ...]
    workers: tuple[Worker, ...]
    arena_nbytes: dict[str, int]
    placements: tuple[Placement, ...]
    peak: MachinePeak | None
    notes: tuple[str, ...]
    timeline: TimedRun = field(repr=False)

    def __repr__(self) -> str:
        times = f"{self.total_ns / 1000:.4g} us, fastest {self.fastest_ns / 1000:.4g} us"
        done = f"{count(self.runs, 'run')} of {count(len(self.thunks), 'thunk')} on {count(self.threads, 'thread')}"
        return f"Profile({times}; {done})"

    def by(self, what: str) -> tuple[Row, ...]:
        """Rows by 'thunk', 'op', 'part' or 'layer'. Raises SettingError for another grouping."""
        if what == "thunk":
            return self.thunks
        if what not in GROUPS:
            raise SettingError(f"a profile by {what!r}; wanted thunk, {', '.join(GROUPS)}")
        return grouped(self.thunks, what)

    @property
    def waited_share(self) -> float:
        """The fraction of all workers' time spent at waits."""
        return sum(w.waited_ns for w in self.workers) / (len(self.workers) * self.total_ns)

    def report(self) -> dict[str, Any]:
        """Everything except the timeline, for JSON."""
        plain = {name: vars(self)[name] for name in ("threads", "runs", "total_ns", "fastest_ns", "extents", "notes")}
        tables = {f"{what}s": [row.report() for row in self.by(what)] for what in ("op", "part", "layer", "thunk")}
        return plain | {
            "waited_share": self.waited_share,
            "workers": [asdict(w) for w in self.workers],
            "arena_nbytes": self.arena_nbytes,
            "peak": None if self.peak is None else asdict(self.peak),
            **tables,
        }

    def json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.report())


def profile(plan: ExecutionPlan, *, runs: int = 20, warmup: int = 3) -> Profile:
    """Profile a plan with its present inputs and extents; see ExecutionPlan.profile. Measures the machine's peak first, if it
    is not stored (takes seconds)."""
    if type(runs) is not int or type(warmup) is not int or runs < 1 or warmup < 0:
        raise SettingError(f"profile: {runs!r} runs after {warmup!r} warm-up runs; wanted 1 or more after 0 or more")
    for _ in range(warmup):
        plan.bound.timed()
    return profile_of(plan, [plan.bound.timed() for _ in range(runs)])


def profile_of(plan: ExecutionPlan, timed: Sequence[TimedRun], peak: MachinePeak | None = None) -> Profile:
    """The profile of timed runs. `peak` defaults to the stored peak, measured now if there is none."""
    schedule, memory = plan.bound.schedule, plan.bound.memory_plan
    totals = np.array([run.total_ns for run in timed])
    on_host = any(thunk.device == HOST for thunk in schedule.thunks)
    middle = timed[int(np.argsort(totals)[(len(timed) - 1) // 2])]
    if on_host and peak is None:
        peak = machine_peak(plan.bound.threads)
    total = float(np.median(totals))
    rows = _rows(plan, timed, total, peak)
    return Profile(
        threads=plan.bound.threads,
        runs=len(timed),
        total_ns=total,
        fastest_ns=float(totals.min()),
        extents={extent.name: value for extent, value in plan.bound.active.items()},
        thunks=rows,
        workers=_workers(timed),
        arena_nbytes={HOST: memory.arena_nbytes, **memory.device_nbytes},
        placements=_placements(plan),
        peak=peak if on_host else None,
        notes=(*_clockless(timed[0]), *_above_peak(rows, total, peak if on_host else None)),
        timeline=middle,
    )


def _clockless(run: TimedRun) -> list[str]:
    return [f"{name} has no clock for its thunks: their times are unknown" for name in run.clockless]


def _above_peak(rows: Sequence[Row], total_ns: float, peak: MachinePeak | None) -> list[str]:
    """A note if the run as a whole read and wrote over 10 % faster than the measured peak."""
    rate = sum(row.nbytes for row in rows if row.device == HOST) / total_ns * 1e9
    if peak is None or rate < 1.1 * peak.read_bytes_per_s:
        return []
    return [
        f"{rate / 1e9:.1f} GB/s is above the measured peak of {peak.read_bytes_per_s / 1e9:.1f}: operands came from a cache, or "
        "the peak was measured on a busy machine (camshaft profile --peak measures it again)"
    ]


def _median(values: list[Floats]) -> Floats:
    return np.asarray(np.median(np.stack(values), axis=0), np.float64)


def _spans(run: TimedRun, replicated: Flags) -> Floats:
    """Per thunk, ns from the first start to the last end; for a replicated thunk the mean of the workers' own times, which may
    not coincide. NaN if unknown."""
    some = ~np.isnan(run.start)
    first = np.where(some, run.start, np.inf).min(axis=0)
    last = np.where(some, run.end, -np.inf).max(axis=0)
    spans = np.where(some.any(axis=0), last - first, np.nan)
    own = np.nansum(run.end - run.start, axis=0) / np.maximum(some.sum(axis=0), 1)
    return np.asarray(np.where(replicated & some.any(axis=0), own, spans), np.float64)


def _rows(plan: ExecutionPlan, timed: Sequence[TimedRun], total: float, peak: MachinePeak | None) -> tuple[Row, ...]:
    schedule = plan.bound.schedule
    unknown = {i for i, t in enumerate(schedule.thunks) if t.device in timed[0].clockless}
    replicated = np.array([thunk.replicated for thunk in schedule.thunks], np.bool_)
    spans = np.nan_to_num(_median([_spans(run, replicated) for run in timed]))
    busy = _median([np.nansum(run.end - run.start, axis=0) for run in timed])
    waited = _median([run.waited.sum(axis=0) for run in timed])
    works = _works(plan, np.where(replicated, busy / timed[0].workers, busy))
    rows = []
    for i, (thunk, wait, work) in enumerate(zip(schedule.thunks, schedule.waits, works, strict=True)):
        layer, part = layer_and_part(thunk.name)
        workers = timed[0].workers if thunk.device == HOST else 1
        least = work.least_ns(peak) if peak is not None and thunk.device == HOST else None
        rows.append(
            Row(
                thunk.name,
                thunk.op,
                thunk.variant,
                thunk.device,
                layer,
                part,
                1,
                int(thunk.replicated),
                int(wait),
                None if i in unknown else float(spans[i]),
                float(busy[i]),
                float(busy[i]) / workers / total,
                float(waited[i]),
                work.nbytes,
                work.flops,
                work.kind,
                least,
            )
        )
    return tuple(rows)


def _works(plan: ExecutionPlan, times: Floats) -> list[Work]:
    """Each thunk's work: its node's, divided among the node's thunks in proportion to their times. A copy reads and writes its
    bytes."""
    active = plan.bound.active
    works = [Work(float(sum(u.slice.nbytes for u in thunk.uses)), 0.0, "f32") for thunk in plan.bound.schedule.thunks]
    for origin in plan.origins:
        whole = work_of(origin, active)
        for i, part in _parts(origin, times):
            works[i] = Work(whole.nbytes * part, whole.flops * part, whole.kind)
    return works


def _parts(origin: NodeRange, times: Floats) -> list[tuple[int, float]]:
    own = times[origin.first : origin.last]
    total = float(own.sum())
    even = 1 / max(len(own), 1)
    return [(origin.first + i, float(t) / total if total else even) for i, t in enumerate(own)]


def _workers(timed: Sequence[TimedRun]) -> tuple[Worker, ...]:
    n = timed[0].workers
    busy = _median([np.nansum(run.end - run.start, axis=1)[:n] for run in timed])
    waited = _median([run.waited.sum(axis=1) for run in timed])
    return tuple(Worker(timed[0].lanes[i], float(busy[i]), float(waited[i])) for i in range(n))


def _placements(plan: ExecutionPlan) -> tuple[Placement, ...]:
    """The arena placement of each temporary, from the first to the last thunk that uses it."""
    lives: dict[Any, list[int]] = {}
    for i, thunk in enumerate(plan.bound.schedule.thunks):
        for use in thunk.uses:
            if use.slice.buffer.lifetime is Lifetime.TEMP:
                lives.setdefault(use.slice.buffer, []).append(i)
    offsets = plan.bound.memory_plan.offsets
    placements = [Placement(b.name, b.space, offsets[b], b.nbytes, at[0], at[-1]) for b, at in lives.items()]
    return tuple(sorted(placements, key=lambda p: (p.space, p.first, p.offset)))
