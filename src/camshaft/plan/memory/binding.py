"""Bind a schedule's host buffers to memory, with checks."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.backends.device import HOST
from camshaft.errors import PlanError
from camshaft.plan.buffers import Buffer, BufferSlice, Lifetime
from camshaft.plan.memory.allocate import host_memory
from camshaft.plan.memory.arena import MemoryPlan
from camshaft.plan.schedule import Schedule

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Memory = np.ndarray[Any, np.dtype[Any]] | memoryview | bytearray | bytes | int


@dataclass(frozen=True)
class BoundMemory:
    """Every host buffer as bytes at its final address; keeps memory that was given as arrays alive.

    Each worker has a copy of the `own` buffers: worker w's is at address + w * own_nbytes.
    """

    arena: Bytes
    pieces: Mapping[Buffer, Bytes]
    addresses: Mapping[Buffer, int]
    own: frozenset[Buffer] = frozenset()
    own_nbytes: int = 0

    def address(self, piece: BufferSlice, worker: int = 0) -> int:
        """Returns the address of the slice's first byte in the worker's copy."""
        mine = worker * self.own_nbytes if piece.buffer in self.own else 0
        return self.addresses[piece.buffer] + mine + piece.offset

    def bytes_of(self, piece: BufferSlice) -> Bytes:
        """Returns the slice as uint8 [nbytes], without a copy."""
        return self.pieces[piece.buffer][piece.offset : piece.end]


def _as_bytes(buffer: Buffer, given: Memory, written: bool) -> Bytes:
    """Returns the first `buffer.nbytes` of the given memory. Raises PlanError if it is too small, misaligned or read-only."""
    if isinstance(given, int):
        piece: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * buffer.nbytes).from_address(given))
    elif isinstance(given, np.ndarray):
        if not given.flags.c_contiguous:
            raise PlanError(f"buffer {buffer.name!r} got an array with strides {given.strides}; wanted it contiguous")
        piece = given.reshape(-1).view(np.uint8)
    else:
        piece = np.frombuffer(given, np.uint8)
    if piece.nbytes < buffer.nbytes:
        raise PlanError(f"buffer {buffer.name!r} got {piece.nbytes} bytes; wanted {buffer.nbytes}")
    if buffer.nbytes and piece.ctypes.data % buffer.alignment:
        raise PlanError(
            f"buffer {buffer.name!r} got address {piece.ctypes.data:#x}; wanted {buffer.alignment}-byte alignment"
        )
    if written and not piece.flags.writeable:
        raise PlanError(f"buffer {buffer.name!r} is written by a thunk but got read-only memory")
    return piece[: buffer.nbytes]


def _bind_arena(memory: MemoryPlan, given: np.ndarray[Any, np.dtype[Any]] | None) -> Bytes:
    if given is None:
        return host_memory("the arena", memory.arena_nbytes, memory.alignment)
    arena = Buffer("the arena", memory.arena_nbytes, Lifetime.TEMP, memory.alignment)
    return _as_bytes(arena, given, written=True)


def _placed(schedule: Schedule, memory: MemoryPlan, arena: Bytes) -> Iterator[tuple[Buffer, Bytes]]:
    for buffer in schedule.buffers:
        if buffer.lifetime is not Lifetime.TEMP or buffer.space != HOST:
            continue
        offset = memory.offsets.get(buffer)
        if offset is None or offset < 0 or offset + buffer.nbytes > arena.nbytes or offset % buffer.alignment:
            raise PlanError(f"temporary {buffer.name!r} is at offset {offset} of an arena of {arena.nbytes} bytes")
        yield buffer, arena[offset : offset + buffer.nbytes]


def _given(
    schedule: Schedule, buffers: Mapping[Buffer, Memory], written: set[Buffer]
) -> Iterator[tuple[Buffer, Bytes]]:
    wanted = [b for b in schedule.buffers if b.lifetime is not Lifetime.TEMP and b.space == HOST]
    missing = [buffer.name for buffer in wanted if buffer not in buffers]
    unknown = [buffer.name for buffer in buffers if buffer not in wanted]
    if missing or unknown:
        raise PlanError(f"a plan got no memory for {missing}, and memory for {unknown}, which it does not take")
    for buffer in wanted:
        yield buffer, _as_bytes(buffer, buffers[buffer], buffer in written)


def _refuse_overlap(pieces: Mapping[Buffer, Bytes], arena: Bytes, written: set[Buffer]) -> None:
    """Raises PlanError if a written buffer overlaps another: hazard detection assumes that given buffers share no memory."""
    named = [(b.name, b in written, p) for b, p in pieces.items() if b.lifetime is not Lifetime.TEMP]
    named.append(("the arena", True, arena))
    spans = sorted((p.ctypes.data, p.nbytes, name, is_written) for name, is_written, p in named if p.nbytes)
    # Sorted by start: the next span can overlap an earlier one only if it overlaps the one with the largest end.
    furthest: dict[bool, tuple[int, str]] = {False: (0, ""), True: (0, "")}
    for start, nbytes, name, is_written in spans:
        end, other = furthest[not is_written]
        if start < end:
            first, second = (name, other) if is_written else (other, name)
            raise PlanError(f"buffers {first!r} and {second!r} got memory that overlaps, and {first!r} is written")
        furthest[False] = max(furthest[False], (start + nbytes, name))
        if is_written:
            furthest[True] = max(furthest[True], (start + nbytes, name))


def bind_memory(
    schedule: Schedule,
    memory: MemoryPlan,
    arena: np.ndarray[Any, np.dtype[Any]] | None,
    buffers: Mapping[Buffer, Memory],
) -> BoundMemory:
    """Gives every host buffer its bytes: temporaries from the arena (the caller's or a new one), all others from `buffers`.

    An int is an address that the caller keeps valid. Raises PlanError for memory that is missing, too small, misaligned,
    read-only but written, or overlapping with one of the two written.
    """
    written = {buffer for thunk in schedule.thunks for buffer in thunk.written}
    own = _bind_arena(memory, arena)
    pieces = dict(_placed(schedule, memory, own)) | dict(_given(schedule, buffers, written))
    _refuse_overlap(pieces, own, written)
    addresses = {buffer: piece.ctypes.data for buffer, piece in pieces.items()}
    return BoundMemory(own, pieces, addresses, memory.own, memory.own_nbytes)
