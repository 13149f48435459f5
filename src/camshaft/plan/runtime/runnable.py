"""Runnable, the interface of every bound plan; NativePlan, a plan that the native executor runs.

Runnables: BoundSchedule (execute.py) and CachedPlan, which are NativePlans; MultiDeviceSchedule; and InstrumentedSchedule, which
wraps one of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.plan.memory.allocate import aligned_bytes
from camshaft.plan.runtime.workers import Runner, Words, idle, inside_host_thunk, runner_for

if TYPE_CHECKING:
    from camshaft.backends.device import Bytes
    from camshaft.plan.buffers import BufferSlice
    from camshaft.plan.memory.arena import MemoryPlan
    from camshaft.plan.runtime.execute import BoundSchedule, HostCalls
    from camshaft.plan.runtime.timed import Counts, TimedRun
    from camshaft.plan.schedule import Schedule


class Runnable(Protocol):
    """Thunks with memory and workers. Every extent starts at its bound."""

    @property
    def threads(self) -> int:
        """Returns the number of CPU workers."""

    @property
    def active(self) -> dict[Extent, int]:
        """Returns the active value of every extent."""

    def extent(self, extent: Extent) -> int:
        """Returns the extent's active value."""

    def set_extent(self, extent: Extent, value: int) -> None:
        """Sets the extent's active value, 0 to its bound, for later runs.

        Raises PlanError for a value out of range, another plan's extent, and while the plan runs or after it is closed.
        """

    def run(self, first: int = 0, last: int | None = None) -> None:
        """Runs thunks [first, last), by default all, and returns when the last has finished; releases the GIL meanwhile.

        Raises what a host thunk raised or a device reported, after all thunks have finished. Raises PlanError for a range
        outside the schedule, for a closed plan, and in a host thunk if the plan needs the workers that run the thunk.
        """

    def timed(self) -> TimedRun:
        """Runs every thunk once and returns when each ran. Devices run one after the other, so that each is timed alone.

        Raises PlanError inside a host thunk, if the cores' counters differ, and like `run`.
        """

    def close(self) -> None:
        """Releases the memory after any run in progress. The plan cannot run again; closing twice is allowed."""


class RunnableSchedule(Runnable, Protocol):
    """A Runnable that exposes its schedule and memory plan."""

    @property
    def schedule(self) -> Schedule: ...
    @property
    def memory_plan(self) -> MemoryPlan: ...
    @property
    def native(self) -> BoundSchedule | None:
        """Returns the plan if the native executor runs all of it without instrumentation, else None."""

    def bytes_of(self, piece: BufferSlice) -> Bytes:
        """Returns the slice's bytes, uint8 [nbytes]: a view on the host, a copy from a device.

        A temporary is valid from its write to its last read.
        """


class ClosablePlan(ABC):
    """A plan that cannot run once it is closed. A context manager that closes it."""

    _closed = False

    @abstractmethod
    def close(self) -> None:
        """See Runnable."""

    def _refuse_closed(self) -> None:
        if self._closed:
            raise PlanError("the plan is closed")

    def __repr__(self) -> str:
        return f"<{'closed ' if self._closed else ''}{type(self).__name__}>"

    def __enter__(self) -> Self:
        self._refuse_closed()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class NativePlan(ClosablePlan):
    """Thunk records that the native executor walks, and the active values of their extents.

    A subclass provides the records and keeps alive what they point to. Concurrent runs of one plan queue; callers synchronize
    setting extents and reading results with those runs.
    """

    _host: HostCalls | None = None

    def __init__(self, extents: Sequence[Extent], n_thunks: int, threads: int) -> None:
        self.threads = threads
        self._n_thunks = n_thunks
        self._n_extents = len(extents)
        self._index = {extent: index for index, extent in enumerate(extents)}
        self._block: Words = aligned_bytes(8 * max(len(extents), 1), 64).view(np.int64)
        self._block[: len(extents)] = [extent.bound for extent in extents]
        self._skip: Words = aligned_bytes(8, 64).view(np.int64)
        self._failed = self._skip.ctypes.data
        self._runner = runner_for(threads)

    def _set_records(self, records: Words) -> None:
        self._records, self._address = records, records.ctypes.data

    @property
    def active(self) -> dict[Extent, int]:
        """Returns the active value of every extent."""
        return {extent: int(self._block[index]) for extent, index in self._index.items()}

    @property
    def active_values(self) -> list[int]:
        """Returns the active values in the order of the extents."""
        values: list[int] = self._block[: self._n_extents].tolist()
        return values

    @property
    def is_running(self) -> bool:
        """Whether the executor is running this plan."""
        return self._runner.current is self

    def extent(self, extent: Extent) -> int:
        """Returns the extent's active value."""
        return int(self._block[self._place(extent)])

    def set_extent(self, extent: Extent, value: int) -> None:
        """See Runnable."""
        place = self._place(extent)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise PlanError(f"extent {extent.name!r} got {value!r:.80}; wanted a whole number from 0 to {extent.bound}")
        number = int(value)
        if not 0 <= number <= extent.bound:
            raise PlanError(f"extent {extent.name!r} got {number}; wanted 0 to {extent.bound}")
        self._refuse_closed()
        if self._runner.current is self:
            raise PlanError(f"extent {extent.name!r} was set while its plan runs")
        self._block[place] = number

    def run(self, first: int = 0, last: int | None = None, *, on: Runner | None = None) -> None:
        """See Runnable. After a failure, thunks behind the next wait are skipped.

        `on` runs the thunks on another runner with as many workers; the plan's own workers stay idle.
        """
        end = self._n_thunks if last is None else last
        if not 0 <= first <= end <= self._n_thunks:
            raise PlanError(f"thunks [{first}, {end}) of a plan that has {self._n_thunks}")
        runner, host = self._runner, self._host
        if inside_host_thunk() and (runner.workers > 1 or runner.current is self):
            raise PlanError("a host thunk's function ran a plan that needs the workers it is called by")
        with runner.lock:
            if self._closed:
                self._refuse_closed()
            runner.current = self
            try:
                (on or runner).launch(self._address, first, end, self._failed, end - first == self._n_thunks)
            except BaseException:  # Ctrl-C after the native call
                if host is not None:
                    host.clear()
                raise
            finally:
                runner.current = None
            if host is not None and host.failures:
                host.raise_failure()

    def timed(self) -> TimedRun:
        """See Runnable."""
        from camshaft.plan.runtime.timed import Lanes, timing  # rarely needed

        with timing():
            return Lanes(self.threads, self._waits(), ()).whole(self.stamps(0, self._n_thunks))

    def stamps(self, first: int, last: int) -> Counts:
        """Runs thunks [first, last) by the executor's timed form and returns the stamps. Requires `timing`."""
        from camshaft.plan.runtime.timed import stamped

        return stamped(self.threads, self._n_thunks, first, last, lambda on: self.run(first, last, on=on))

    def close(self) -> None:
        """See Runnable."""
        if inside_host_thunk() and self._runner.current is self:
            raise PlanError("a host thunk's function closed the plan that runs it")
        with idle(self._runner):
            self._closed = True
            self._release()

    @abstractmethod
    def _release(self) -> None:
        """Releases memory."""

    @abstractmethod
    def _waits(self) -> Sequence[bool]:
        """Returns whether a wait precedes each thunk."""

    def _place(self, extent: Extent) -> int:
        if not isinstance(extent, Extent):
            raise PlanError(f"got the extent {extent!r:.80}; wanted an Extent of this plan")
        if extent not in self._index:
            raise PlanError(f"extent {extent.name!r} (bound {extent.bound}) is not one of this plan's")
        return self._index[extent]
