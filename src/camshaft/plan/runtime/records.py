"""Make the thunk records and argument blocks that the executor walks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.plan.memory.binding import BoundMemory
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.library import memmove_address, native_executor
from camshaft.plan.runtime.workers import Words, aligned_bytes
from camshaft.plan.schedule import BufferSlice, Schedule, Thunk, own_buffers

MAX_PROGRAMS = 2**62
EntryOf = Callable[[Thunk], int]


def homes(schedule: Schedule, workers: int) -> Iterator[int]:
    """The worker that gets the first program of each thunk.

    Between two waits the next thunk starts where the last one's programs ended, so that small thunks spread. EVERYWHERE for
    one that each worker runs whole.
    """
    turn = 0
    for thunk, wait in zip(schedule.thunks, schedule.waits, strict=True):
        turn = 0 if wait else turn
        if thunk.replicated:
            yield layout.EVERYWHERE
            continue
        yield turn
        turn = (turn + thunk.programs.bound) % workers


def argument_words(thunk: Thunk, memory: BoundMemory, extents: Mapping[Extent, int], worker: int = 0) -> list[int]:
    """The thunk's argument block: addresses of slices, where each has its own those of the worker, and of active values;
    memmove's also size, function."""
    words = [memory.address(arg, worker) if isinstance(arg, BufferSlice) else extents[arg] for arg in thunk.args]
    if thunk.kind == "copy" and thunk.entry is None:
        words += [thunk.uses[0].slice.nbytes, memmove_address()]
    return words


def _entry(thunk: Thunk, host_entry: EntryOf) -> int:
    if thunk.kind == "host":
        return host_entry(thunk)
    if thunk.entry is None:
        return native_executor().copy_address
    address = getattr(thunk.entry, "address", 0)
    if not isinstance(address, int) or address <= 0:
        raise PlanError(f"thunk {thunk.name!r} has the entry {thunk.entry!r}, which has no address")
    return address


def _fill(
    record: Words,
    thunk: Thunk,
    entry: int,
    args: int,
    stride: int,
    wait: bool,
    home: int,
    extents: Mapping[Extent, int],
) -> None:
    if thunk.programs.bound > MAX_PROGRAMS:
        raise PlanError(f"thunk {thunk.name!r} may have {thunk.programs.bound} programs; the executor takes 2**62")
    record[[layout.ENTRY, layout.ARGS, layout.CONSTANT]] = entry, args, thunk.programs.constant
    record[layout.STRIDE] = stride
    record[[layout.WAIT, layout.HOME, layout.N_FACTORS]] = wait, home, len(thunk.programs.factors)
    for index, (extent, divisor) in enumerate(thunk.programs.factors):
        at = layout.FACTORS + 2 * index
        record[at : at + 2] = extents[extent], divisor


def thunk_records(
    schedule: Schedule, memory: BoundMemory, extents: Mapping[Extent, int], workers: int, host_entry: EntryOf
) -> tuple[Words, Words]:
    """The records [n_thunks, 16] and the argument blocks they point into, all of a worker's together where any of them has
    something of its own. `extents`: addresses of active values."""
    own = own_buffers(schedule.thunks)
    blocks = [argument_words(thunk, memory, extents) for thunk in schedule.thunks]
    lines = [[word for block in blocks for word in block] or [0]]
    for worker in range(1, workers if own else 1):
        lines.append([w for thunk in schedule.thunks for w in argument_words(thunk, memory, extents, worker)] or [0])
    args: Words = np.array(lines, np.int64)
    n_thunks = len(schedule.thunks)
    records: Words = aligned_bytes(max(n_thunks, 1) * layout.RECORD_WORDS * 8, 128).view(np.int64)
    rows = records.reshape(-1, layout.RECORD_WORDS)
    at = args.ctypes.data
    steps = zip(rows, schedule.thunks, blocks, schedule.waits, homes(schedule, workers), strict=False)
    for record, thunk, block, wait, home in steps:
        stride = args.strides[0] if any(use.slice.buffer in own for use in thunk.uses) else 0
        _fill(record, thunk, _entry(thunk, host_entry), at, stride, wait, home, extents)
        at += 8 * len(block)
    return rows[:n_thunks], args
