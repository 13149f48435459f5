"""Bind a schedule to memory and workers: thunk records and argument blocks for the native executor, callbacks for host thunks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.plan.buffers import Buffer, BufferSlice
from camshaft.plan.memory.allocate import aligned_bytes
from camshaft.plan.memory.arena import MemoryPlan
from camshaft.plan.memory.binding import BoundMemory, Bytes, Memory, bind_memory
from camshaft.plan.memory.hazards import missing_wait, own_buffers
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.library import memmove_address, native_executor
from camshaft.plan.runtime.runnable import NativePlan
from camshaft.plan.runtime.workers import Runner, Words, calling
from camshaft.plan.schedule import HostFunction, Schedule, Thunk

MAX_PROGRAMS = 2**62
_HOST_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def bind(
    schedule: Schedule,
    memory_plan: MemoryPlan,
    *,
    arena: np.ndarray[Any, np.dtype[Any]] | None = None,
    buffers: Mapping[Buffer, Memory] | None = None,
    threads: int = 1,
) -> BoundSchedule:
    """Binds a schedule to memory and `threads` workers.

    `buffers` gives the memory of every CONSTANT, STATE and IO buffer: a contiguous array, a bytes-like value, or an address that
    the caller keeps valid. `arena` is the caller's memory for temporaries; by default the plan allocates it. Raises PlanError
    for memory that is missing, too small, misaligned, overlapping, or read-only but written; for more threads than the arena
    has room for; and for a schedule that lacks a wait.
    """
    if memory_plan.own and threads > memory_plan.workers:
        raise PlanError(f"a plan whose arena is for {memory_plan.workers} workers got {threads}")
    memory = bind_memory(schedule, memory_plan, arena, buffers or {})
    check_waits(schedule, memory_plan)
    return BoundSchedule(schedule, memory_plan, memory, threads)


def check_waits(schedule: Schedule, memory_plan: MemoryPlan) -> None:
    """Raises PlanError if the schedule lacks a wait."""
    unordered = missing_wait(schedule.thunks, schedule.waits, memory_plan.offsets, schedule.after)
    if unordered is not None:
        raise PlanError(f"thunk {schedule.thunks[unordered].name!r} needs a wait before it and has none")


class BoundSchedule(NativePlan):
    """A schedule with addresses, made by `bind`. It keeps alive everything that native code points to."""

    _host: HostCalls

    def __init__(self, schedule: Schedule, memory_plan: MemoryPlan, memory: BoundMemory, threads: int) -> None:
        super().__init__(schedule.extents, len(schedule.thunks), threads)
        self.schedule = schedule
        self.memory_plan = memory_plan
        self.memory = memory
        block, index = self._block, self._index
        addresses = {extent: block.ctypes.data + 8 * place for extent, place in index.items()}
        self._host = HostCalls(memory, lambda extent: int(block[index[extent]]), self._runner, self._skip)
        records, self._args = _records(schedule, memory, addresses, threads, self._host.entry)
        self._set_records(records)

    @property
    def native(self) -> BoundSchedule:
        """Returns this plan."""
        return self

    @property
    def words(self) -> tuple[Words, Words, int]:
        """Returns the records, the argument blocks, and the address of the first extent's active value."""
        return self._records, self._args, self._block.ctypes.data

    def bytes_of(self, piece: BufferSlice) -> Bytes:
        """Returns the slice's memory as uint8 [nbytes], without a copy. A temporary is valid from its write to its last read."""
        self._refuse_closed()
        return self.memory.bytes_of(piece)

    def _waits(self) -> Sequence[bool]:
        return self.schedule.waits

    def _release(self) -> None:
        self._host.close()
        self.memory = BoundMemory(np.empty(0, np.uint8), {}, {})


def homes(schedule: Schedule, workers: int) -> Iterator[int]:
    """Yields the worker that gets the first program of each thunk; REPLICATED if every worker runs all programs.

    Between two waits a thunk starts at the worker after the previous thunk's last program, so that small thunks spread.
    """
    turn = 0
    for thunk, wait in zip(schedule.thunks, schedule.waits, strict=True):
        turn = 0 if wait else turn
        if thunk.replicated:
            yield layout.REPLICATED
            continue
        yield turn
        turn = (turn + thunk.programs.bound) % workers


def _records(
    schedule: Schedule,
    memory: BoundMemory,
    extents: Mapping[Extent, int],
    workers: int,
    host_entry: Callable[[Thunk], int],
) -> tuple[Words, Words]:
    """Returns the thunk records [n_thunks, 16], and the argument blocks that they point to.

    There is one row of argument blocks per worker if workers have their own buffers, else one row. `extents` maps each Extent to
    the address of its active value.
    """
    own = own_buffers(schedule.thunks)
    blocks = [_arguments(thunk, memory, extents) for thunk in schedule.thunks]
    lines = [[word for block in blocks for word in block] or [0]]
    for worker in range(1, workers if own else 1):
        lines.append([w for thunk in schedule.thunks for w in _arguments(thunk, memory, extents, worker)] or [0])
    args: Words = np.array(lines, np.int64)
    n_thunks = len(schedule.thunks)
    records: Words = aligned_bytes(max(n_thunks, 1) * layout.RECORD_WORDS * 8, 128).view(np.int64)
    rows = records.reshape(-1, layout.RECORD_WORDS)
    at = args.ctypes.data
    steps = zip(rows, schedule.thunks, blocks, schedule.waits, homes(schedule, workers), strict=False)
    for record, thunk, block, wait, home in steps:
        record[[layout.ENTRY, layout.ARGS, layout.WAIT, layout.HOME]] = _entry(thunk, host_entry), at, wait, home
        record[layout.STRIDE] = args.strides[0] if any(use.slice.buffer in own for use in thunk.uses) else 0
        _fill_programs(record, thunk, extents)
        at += 8 * len(block)
    return rows[:n_thunks], args


def _arguments(thunk: Thunk, memory: BoundMemory, extents: Mapping[Extent, int], worker: int = 0) -> list[int]:
    """Returns a thunk's argument block for a worker: addresses of slices and of active values; for memmove also size and
    function."""
    words = [memory.address(arg, worker) if isinstance(arg, BufferSlice) else extents[arg] for arg in thunk.args]
    if thunk.kind == "copy" and thunk.entry is None:
        words += [thunk.uses[0].slice.nbytes, memmove_address()]
    return words


def _entry(thunk: Thunk, host_entry: Callable[[Thunk], int]) -> int:
    if thunk.kind == "host":
        return host_entry(thunk)
    if thunk.entry is None:
        return native_executor().copy_address
    address = getattr(thunk.entry, "address", 0)
    if not isinstance(address, int) or address <= 0:
        raise PlanError(f"thunk {thunk.name!r} has the entry {thunk.entry!r}, which has no address")
    return address


def _fill_programs(record: Words, thunk: Thunk, extents: Mapping[Extent, int]) -> None:
    programs = thunk.programs
    if programs.bound > MAX_PROGRAMS:
        raise PlanError(f"thunk {thunk.name!r} may have {programs.bound} programs; the executor takes 2**62")
    record[[layout.CONSTANT, layout.N_FACTORS]] = programs.constant, len(programs.factors)
    for index, (extent, divisor) in enumerate(programs.factors):
        at = layout.FACTORS + 2 * index
        record[at : at + 2] = extents[extent], divisor


class HostCalls:
    """Callbacks for the host thunks of one plan, and the `failures` of its last run.

    `skip` is the word that makes the executor skip the remaining thunks.
    """

    def __init__(self, memory: BoundMemory, active: Callable[[Extent], int], runner: Runner, skip: Words) -> None:
        self._runner, self._memory, self._active, self._skip = runner, memory, active, skip
        self.failures: list[BaseException] = []
        self._callbacks: list[object] = []

    def entry(self, thunk: Thunk) -> int:
        """Returns the address of a native entry that calls the thunk's function with memoryviews and ints."""
        function, active = cast(HostFunction, thunk.entry), self._active
        args = [self._view(thunk, arg) if isinstance(arg, BufferSlice) else arg for arg in thunk.args]

        def call(_args: int, _first: int, _last: int) -> None:
            calling.runners.append(self._runner)
            try:
                function(*(active(arg) if isinstance(arg, Extent) else arg for arg in args))
            except BaseException as error:
                self.failures.append(error)
                self._skip[0] = 1
            finally:
                calling.runners.pop()

        callback = _HOST_ENTRY(call)
        self._callbacks.append(callback)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        assert address is not None
        return address

    def raise_failure(self) -> None:
        """Raises the run's first failure, with a note for each other one, and clears them."""
        if not self.failures:
            return
        first, *others = self.failures
        self.clear()
        for other in others:
            first.add_note(f"another host thunk of the same run failed too: {type(other).__name__}: {other}")
        raise first

    def clear(self) -> None:
        """Clears the failures."""
        self.failures.clear()
        self._skip[0] = 0

    def close(self) -> None:
        """Releases the callbacks; the executor must not be inside one."""
        self._callbacks.clear()
        self._memory = BoundMemory(self._memory.arena[:0], {}, {})

    def _view(self, thunk: Thunk, piece: BufferSlice) -> memoryview:
        view = self._memory.bytes_of(piece).data
        return view if thunk.writes(piece) else view.toreadonly()
