"""BoundSchedule: a schedule bound to memory and workers, ready to run. The last step of plan/."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.plan.memory.arena import MemoryPlan
from camshaft.plan.memory.binding import BoundMemory, Bytes, Memory, bind_memory
from camshaft.plan.memory.hazards import missing_wait
from camshaft.plan.runtime.host import HostCalls
from camshaft.plan.runtime.records import thunk_records
from camshaft.plan.runtime.workers import Runner, Words, aligned_bytes, idle, inside_host_thunk, runner_for
from camshaft.plan.schedule import Buffer, BufferSlice, Schedule


class BoundSchedule:
    """A schedule with addresses. Made by `bind`; every extent starts at its bound.

    Holds on to everything that native code points at. Runs of one plan from several Python threads queue; setting
    extents and reading results between such runs is the callers' to arrange. A context manager that closes itself.
    """

    def __init__(self, schedule: Schedule, memory_plan: MemoryPlan, memory: BoundMemory, threads: int) -> None:
        self.schedule = schedule
        self.memory_plan = memory_plan
        self.threads = threads
        self._memory = memory
        self._n_thunks = len(schedule.thunks)
        self._closed = False
        self._block: Words = aligned_bytes(8 * max(len(schedule.extents), 1), 64).view(np.int64)
        self._index = {extent: index for index, extent in enumerate(schedule.extents)}
        self._block[: len(schedule.extents)] = [extent.bound for extent in schedule.extents]
        addresses = {extent: self._block.ctypes.data + 8 * index for extent, index in self._index.items()}
        block, index = self._block, self._index
        self._runner = runner_for(threads)
        self._host = HostCalls(memory, lambda extent: int(block[index[extent]]), self._runner)
        self._records, self._args = thunk_records(schedule, memory, addresses, threads, self._host.entry)
        self._address = self._records.ctypes.data

    @property
    def memory(self) -> BoundMemory:
        """Where its buffers lie."""
        return self._memory

    @property
    def words(self) -> tuple[Words, Words, int]:
        """The records, the argument blocks, and the address of the first extent's active value."""
        return self._records, self._args, self._block.ctypes.data

    @property
    def arena(self) -> Bytes:
        """The memory of all temporaries."""
        return self._memory.arena

    @property
    def active(self) -> dict[Extent, int]:
        """The active value of every extent."""
        return {extent: int(self._block[index]) for extent, index in self._index.items()}

    @property
    def active_values(self) -> list[int]:
        """The active values in the order of the schedule's extents."""
        values: list[int] = self._block[: len(self.schedule.extents)].tolist()
        return values

    @property
    def is_running(self) -> bool:
        """Whether the executor is inside this plan."""
        return self._runner.current is self

    def extent(self, extent: Extent) -> int:
        """The extent's active value."""
        return int(self._block[self._place(extent)])

    def set_extent(self, extent: Extent, value: int) -> None:
        """Makes `value`, 0 to the bound, the extent's active value for later runs.

        PlanError when the value is out of range, the extent is not this schedule's, or the plan runs or is closed.
        """
        place = self._place(extent)
        number = operator.index(value)
        if not 0 <= number <= extent.bound:
            raise PlanError(f"extent {extent.name!r} got {number}; wanted 0 to {extent.bound}")
        self._refuse_closed()
        if self._runner.current is self:
            raise PlanError(f"extent {extent.name!r} was set while its plan runs")
        self._block[place] = number

    def bytes_of(self, piece: BufferSlice) -> Bytes:
        """The slice's memory as a uint8 array [nbytes], no copy. A temporary's hold only from write to last read."""
        self._refuse_closed()
        return self._memory.bytes_of(piece)

    def run(self, first: int = 0, last: int | None = None, *, on: Runner | None = None) -> None:
        """Runs thunks [first, last), all by default, and returns when the last is done; Python threads go on meanwhile.
        `on` gives other workers, as many as the plan's own, which stay idle (timed.py).

        Raises what a host thunk raised, after all workers finished; thunks behind the next wait were then skipped.
        PlanError when the range is not the schedule's, the plan is closed, or a host thunk's function calls this
        for a plan that would wait for itself.
        """
        end = self._n_thunks if last is None else last
        if not 0 <= first <= end <= self._n_thunks:
            raise PlanError(f"thunks [{first}, {end}) of a plan that has {self._n_thunks}")
        runner = self._runner
        if inside_host_thunk() and (runner.workers > 1 or runner.current is self):
            raise PlanError("a host thunk's function ran a plan that needs the workers it is called by")
        host = self._host
        with runner.lock:
            if self._closed:
                self._refuse_closed()
            runner.current = self
            try:
                (on or runner).launch(self._address, first, end, host.failed)
            except BaseException:  # Ctrl-C on the way out
                host.forget()
                raise
            finally:
                runner.current = None
            if host.failures:
                host.raise_failure()

    def close(self) -> None:
        """Lets go of the memory, after a run in progress. The plan cannot run again; closing twice is allowed."""
        if inside_host_thunk() and self._runner.current is self:
            raise PlanError("a host thunk's function closed the plan that runs it")
        with idle(self._runner):
            self._closed = True
            self._host.close()
            self._memory = BoundMemory(np.empty(0, np.uint8), {}, {})

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


def bind(
    schedule: Schedule,
    memory_plan: MemoryPlan,
    *,
    arena: np.ndarray[Any, np.dtype[Any]] | None = None,
    buffers: Mapping[Buffer, Memory] | None = None,
    threads: int = 1,
) -> BoundSchedule:
    """Binds a schedule to memory and `threads` workers.

    `buffers` gives the memory of every CONSTANT, STATE and IO buffer: a contiguous array, a bytes-like value, or an
    address that the caller keeps valid. `arena` is the caller's memory for the temporaries, else the plan has its own.
    PlanError when memory is missing, too small, misaligned, read-only where written or overlapping, when there are more
    threads than the arena has room for, or when the schedule lacks a wait.
    """
    if memory_plan.own and threads > memory_plan.workers:
        raise PlanError(f"a plan whose arena is for {memory_plan.workers} workers got {threads}")
    memory = bind_memory(schedule, memory_plan, arena, buffers or {})
    check_waits(schedule, memory_plan)
    return BoundSchedule(schedule, memory_plan, memory, threads)


def check_waits(schedule: Schedule, memory_plan: MemoryPlan) -> None:
    """PlanError when the schedule lacks a wait."""
    unordered = missing_wait(schedule.thunks, schedule.waits, memory_plan.offsets, schedule.after)
    if unordered is not None:
        raise PlanError(f"thunk {schedule.thunks[unordered].name!r} needs a wait before it and has none")
