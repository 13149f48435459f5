"""BoundSchedule: a schedule bound to memory and workers, ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from camshaft.errors import PlanError
from camshaft.plan.memory.arena import MemoryPlan
from camshaft.plan.memory.binding import BoundMemory, Bytes, Memory, bind_memory
from camshaft.plan.memory.hazards import missing_wait
from camshaft.plan.runtime.host import HostCalls
from camshaft.plan.runtime.native_plan import NativePlan
from camshaft.plan.runtime.records import thunk_records
from camshaft.plan.runtime.workers import Words
from camshaft.plan.schedule import Buffer, BufferSlice, Schedule


class BoundSchedule(NativePlan):
    """A schedule with addresses. Made by `bind`; holds on to everything that native code points at."""

    _host: HostCalls

    def __init__(self, schedule: Schedule, memory_plan: MemoryPlan, memory: BoundMemory, threads: int) -> None:
        super().__init__(schedule.extents, len(schedule.thunks), threads)
        self.schedule = schedule
        self.memory_plan = memory_plan
        self._memory = memory
        block, index = self._block, self._index
        addresses = {extent: block.ctypes.data + 8 * place for extent, place in index.items()}
        self._host = HostCalls(memory, lambda extent: int(block[index[extent]]), self._runner, self._skip)
        records, self._args = thunk_records(schedule, memory, addresses, threads, self._host.entry)
        self._walk(records)

    @property
    def native(self) -> BoundSchedule:
        """Itself."""
        return self

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

    def bytes_of(self, piece: BufferSlice) -> Bytes:
        """The slice's memory as a uint8 array [nbytes], no copy. A temporary's hold only from write to last read."""
        self._refuse_closed()
        return self._memory.bytes_of(piece)

    def _waits(self) -> Sequence[bool]:
        return self.schedule.waits

    def _release(self) -> None:
        self._host.close()
        self._memory = BoundMemory(np.empty(0, np.uint8), {}, {})


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
