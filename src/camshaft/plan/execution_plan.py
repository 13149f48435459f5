"""ExecutionPlan: a graph bound and ready to run, with named inputs and outputs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from camshaft.backends.device import HOST
from camshaft.errors import PlanError, count, shortened
from camshaft.extent import Extent
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Array
from camshaft.ops.spec import Dim, TensorSpec
from camshaft.plan.hooks import hook
from camshaft.plan.lowering.node_thunks import NodeRange
from camshaft.plan.memory.arena import MemoryPlan
from camshaft.plan.memory.device_memory import DeviceArray
from camshaft.plan.run_arguments import active_shape, active_sizes, check_flags, input_arrays, out_arrays
from camshaft.plan.runtime.runnable import RunnableSchedule
from camshaft.plan.schedule import Schedule, Thunk
from camshaft.plan.submission import Submission, Submitter
from camshaft.selection.choice import Choice


def explain(schedule: Schedule, memory: MemoryPlan, threads: int, choices: Iterable[Choice]) -> str:
    """Returns a line per thunk ('|' marks a wait before it), why each other variant was not chosen, and each space's arena."""
    lines = [
        f"{count(len(schedule.thunks), 'thunk')}, {count(sum(schedule.waits), 'wait')}, {count(threads, 'thread')}; arena "
        f"{memory.arena_nbytes} bytes for {memory.temp_nbytes_sum} bytes of temporaries"
    ]
    for index, (thunk, wait) in enumerate(zip(schedule.thunks, schedule.waits, strict=True)):
        order = ", ".join(schedule.thunks[i].name for i in schedule.after[index]) if schedule.after else ""
        lines.append(f"{'|' if wait else ' '}{index:4d} {_line(thunk)}{f'; after {order}' if order else ''}")
    lost = {f"{c.op.name}/{x.variant} ({x.backend}): {x.reason}" for c in choices for x in c.losers}
    lines += ["not chosen:", *(f"  {text}" for text in sorted(lost))] if lost else []
    return "\n".join(lines + _arenas(memory))


def _line(thunk: Thunk) -> str:
    kind = "" if thunk.kind == "kernel" else f" ({thunk.kind})"
    where = "" if thunk.device == HOST else f" on {thunk.device}"
    return f"{thunk.name}: {thunk.op}/{thunk.variant}{kind}{where}, {thunk.programs.bound} programs; {thunk.reason}"


def _arenas(memory: MemoryPlan) -> list[str]:
    places = [(b.space, f"  {offset:9d} +{b.nbytes:9d} {b.name}") for b, offset in memory.offsets.items()]
    lines = ["arena:", *(text for space, text in places if space == HOST)]
    for device, nbytes in memory.device_nbytes.items():
        lines += [f"arena on {device}, {nbytes} bytes:", *(text for space, text in places if space == device)]
    return lines


@dataclass(frozen=True)
class ExecutionPlan:
    """A compiled graph, bound to memory and ready to run.

    `inputs`, `outputs` and `states` map names to views of the plan's memory; a state on a device is a DeviceArray, with read()
    and write(). `away` maps the inputs and outputs in device memory to DeviceArrays. `lent` names the inputs in the caller's
    memory. `graph` is the graph after all passes; `choices` has one entry per node.
    """

    bound: RunnableSchedule
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    states: dict[str, Array | DeviceArray]
    away: Mapping[str, DeviceArray]
    specs: Mapping[str, TensorSpec]
    choices: Sequence[Choice] = field(repr=False)
    graph: Graph = field(repr=False)
    limits: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)
    lent: frozenset[str] = frozenset()
    compile_s: float = 0.0
    origins: Sequence[NodeRange] = field(default=(), repr=False)
    _submitter: Submitter = field(default_factory=Submitter, repr=False)
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __repr__(self) -> str:
        ins, outs = (", ".join(tensors) or "none" for tensors in (self.graph.inputs, self.graph.outputs))
        return f"ExecutionPlan({shortened(f'{ins} -> {outs}')}; {count(len(self.bound.schedule.thunks), 'thunk')})"

    def set_extent(self, extent: Extent, value: int) -> None:
        """Sets the active value of an extent for later runs. Raises PlanError outside 0 to its bound."""
        self.bound.set_extent(extent, value)

    def run(
        self,
        inputs: Mapping[str, object] | None = None,
        /,
        *,
        keep: bool = False,
        out: Array | Mapping[str, Array] | None = None,
        view: bool = False,
        **named: object,
    ) -> dict[str, Array]:
        """Copies the inputs in, runs every thunk and returns arrays of the host outputs by name.

        Every input is given, by keyword or in a dict, unless `keep`: then one that is not given keeps its last value, at first
        zeros. Inputs in the caller's memory (compile's `memory`) need not be given. An axis that is an Extent may be shorter
        than its bound, which sets the extent. Outputs on a device stay in `away`.

        `out` is an array, or a dict of arrays by output: C-contiguous, of the output's dtype and active shape, and not the plan's
        own memory. The outputs are copied there; others get new arrays. With `view` nothing is copied: the results are views of
        the plan's memory, valid until the next run.

        Not reentrant: use `submit` from several threads. Raises PlanError for a missing or unknown input, a wrong shape or
        dtype, an `out` that does not fit, and while another run is in progress; a run that it refuses changes nothing.
        """
        check_flags(keep=keep, view=view)
        if view and out is not None:
            raise PlanError("run: got out and view=True; wanted one of them, as a view copies nothing")
        with self._alone():
            targets = self._take(input_arrays(self, inputs, named, keep=keep), out)
            self.bound.run()
            if view:
                return {name: self._active(name, array) for name, array in self.outputs.items()}
            return self._results(targets)

    @contextmanager
    def _alone(self, *, wait: bool = False) -> Iterator[None]:
        """Locks the plan for one run. Raises PlanError if another run has locked it, unless `wait`."""
        if not self._turn.acquire(blocking=wait):
            raise PlanError("run: the plan is running already; wanted one run at a time (submit() queues them)")
        try:
            yield
        finally:
            self._turn.release()

    def _take(self, values: Mapping[str, Array], out: object = None) -> dict[str, Array]:
        """Copies the inputs in and sets the extents from their shapes. Returns the arrays of `out`, which it checks before."""
        active = active_sizes(self, values)
        targets = out_arrays(self, out, active)
        for extent, size in active.items():
            self.set_extent(extent, size)
        for name, value in values.items():
            self.inputs[name][tuple(slice(size) for size in value.shape)] = value
        return targets

    def _results(self, targets: Mapping[str, Array]) -> dict[str, Array]:
        """Copies the outputs to the `targets`, else to new arrays."""
        results = {}
        for name, array in self.outputs.items():
            view = self._active(name, array)
            if name in targets:
                np.copyto(targets[name], view)
            results[name] = targets[name] if name in targets else view.copy()
        return results

    def _active(self, name: str, array: Array) -> Array:
        """Returns the active elements of a plain output, or all bytes of a blocked one."""
        shape = active_shape(self, name, {})
        return array[tuple(map(slice, shape))] if shape else array

    def explain(self) -> str:
        """Returns a text listing: thunks with variant, device and reason; waits; arenas; why other variants were not chosen."""
        return explain(self.bound.schedule, self.bound.memory_plan, self.bound.threads, self.choices)

    def profile(self, *, runs: int = 20, warmup: int = 3, **inputs: object) -> Any:
        """Measures `runs` timestamped runs after `warmup` runs and returns an observe.profile.Profile.

        Inputs that are not named keep their last values. Every run updates the states. Raises SettingError for no runs.
        """
        with self._alone():
            self._take(input_arrays(self, None, inputs, keep=True))
            return hook("profile")(self, runs=runs, warmup=warmup)

    def submit(
        self, inputs: Mapping[str, object] | None = None, /, *, keep: bool = False, **named: object
    ) -> Submission:
        """Queues a run on the plan's own thread and returns a Submission to wait for.

        `keep` and missing inputs as in `run`. Runs execute in submission order. Inputs are copied now; extents that they don't
        set are read when the run starts.
        """
        check_flags(keep=keep)
        values = {name: value.copy() for name, value in input_arrays(self, inputs, named, keep=keep).items()}

        def run() -> dict[str, Array]:
            with self._alone(wait=True):
                self._take(values)
                self.bound.run()
                return self._results({})

        return self._submitter.submit(run)

    def close(self) -> None:
        """Releases the plan's memory after any run in progress; `inputs` and `outputs` stay readable.

        The plan cannot run again; submitted runs that have not started fail.
        """
        self.bound.close()
        self._submitter.close()
        self.states.clear()

    def __enter__(self) -> Self:
        if self._submitter.closed:
            raise PlanError("the plan is closed")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
