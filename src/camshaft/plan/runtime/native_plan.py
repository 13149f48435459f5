"""NativePlan: thunk records that the native executor walks, with the active values of their extents. BoundSchedule makes its
records of a schedule, CachedPlan reads them from the store."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.plan.runtime.workers import Runner, Words, aligned_bytes, idle, inside_host_thunk, runner_for

if TYPE_CHECKING:
    from camshaft.plan.runtime.host import HostCalls
    from camshaft.plan.runtime.timed import Counts, TimedRun


class NativePlan(ABC):
    """A Runnable, as runnable.py has it; a class on top of it gives the records and keeps alive what they point at.

    Runs of one plan from several Python threads queue; setting extents and reading results between such runs is the callers'
    to arrange. A context manager that closes itself.
    """

    _host: HostCalls | None = None

    def __init__(self, extents: Sequence[Extent], n_thunks: int, threads: int) -> None:
        self.threads = threads
        self._n_thunks = n_thunks
        self._closed = False
        self._n_extents = len(extents)
        self._index = {extent: index for index, extent in enumerate(extents)}
        self._block: Words = aligned_bytes(8 * max(len(extents), 1), 64).view(np.int64)
        self._block[: len(extents)] = [extent.bound for extent in extents]
        self._skip: Words = aligned_bytes(8, 64).view(np.int64)
        self._failed = self._skip.ctypes.data
        self._runner = runner_for(threads)

    def _walk(self, records: Words) -> None:
        """Says what the executor walks."""
        self._records, self._address = records, records.ctypes.data

    @property
    def active(self) -> dict[Extent, int]:
        """The active value of every extent."""
        return {extent: int(self._block[index]) for extent, index in self._index.items()}

    @property
    def active_values(self) -> list[int]:
        """The active values in the order of the extents."""
        values: list[int] = self._block[: self._n_extents].tolist()
        return values

    @property
    def is_running(self) -> bool:
        """Whether the executor is inside this plan."""
        return self._runner.current is self

    def extent(self, extent: Extent) -> int:
        """The extent's active value."""
        return int(self._block[self._place(extent)])

    def set_extent(self, extent: Extent, value: int) -> None:
        """As Runnable's."""
        place = self._place(extent)
        number = operator.index(value)
        if not 0 <= number <= extent.bound:
            raise PlanError(f"extent {extent.name!r} got {number}; wanted 0 to {extent.bound}")
        self._refuse_closed()
        if self._runner.current is self:
            raise PlanError(f"extent {extent.name!r} was set while its plan runs")
        self._block[place] = number

    def run(self, first: int = 0, last: int | None = None, *, on: Runner | None = None) -> None:
        """As Runnable's; thunks behind the wait after a failure are skipped. `on` gives other workers, as many as the plan's own,
        which stay idle."""
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
                (on or runner).launch(self._address, first, end, self._failed)
            except BaseException:  # Ctrl-C on the way out
                if host is not None:
                    host.forget()
                raise
            finally:
                runner.current = None
            if host is not None and host.failures:
                host.raise_failure()

    def timed(self) -> TimedRun:
        """As Runnable's."""
        from camshaft.plan.runtime.timed import Lanes, timing  # here: few plans are timed

        with timing():
            return Lanes(self.threads, self._waits(), ()).whole(self.stamps(0, self._n_thunks))

    def stamps(self, first: int, last: int) -> Counts:
        """Runs thunks [first, last) by the executor's timed form. Inside of `timing` only."""
        from camshaft.plan.runtime.timed import stamped

        return stamped(self.threads, self._n_thunks, first, last, lambda on: self.run(first, last, on=on))

    def close(self) -> None:
        """As Runnable's."""
        if inside_host_thunk() and self._runner.current is self:
            raise PlanError("a host thunk's function closed the plan that runs it")
        with idle(self._runner):
            self._closed = True
            self._release()

    @abstractmethod
    def _release(self) -> None:
        """Lets go of memory."""

    @abstractmethod
    def _waits(self) -> Sequence[bool]:
        """Whether a wait stands before each thunk."""

    def _place(self, extent: Extent) -> int:
        if extent not in self._index:
            raise PlanError(f"extent {extent.name!r} (bound {extent.bound}) is not one of this plan's")
        return self._index[extent]

    def _refuse_closed(self) -> None:
        if self._closed:
            raise PlanError("the plan is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
