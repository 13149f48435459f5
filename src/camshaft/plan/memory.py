"""The arena: where each temporary lies, by liveness. After graph lowering, before hazards.py reads the offsets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from camshaft.errors import PlanError
from camshaft.graph.extent import Extent
from camshaft.plan.hazards import insert_waits
from camshaft.plan.schedule import Buffer, Lifetime, Schedule, Thunk, buffers_of, extents_of

ALIGNMENT = 64


@dataclass(frozen=True)
class MemoryPlan:
    """Arena offsets of the TEMP buffers; the arena's size and alignment; the sum of all temporaries, unshared."""

    offsets: Mapping[Buffer, int]
    arena_nbytes: int
    temp_nbytes_sum: int
    alignment: int = ALIGNMENT


@dataclass(frozen=True)
class _Live:
    """A temporary from its first to its last step, both included. A step is a run of thunks between two waits."""

    buffer: Buffer
    first: int
    last: int

    def meets(self, other: _Live) -> bool:
        return self.first <= other.last and other.first <= self.last


def _round_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _unshared(temporaries: Iterable[Buffer]) -> dict[Buffer, int]:
    offsets, end = {}, 0
    for buffer in temporaries:
        offsets[buffer] = _round_up(end, max(buffer.alignment, ALIGNMENT))
        end = offsets[buffer] + buffer.nbytes
    return offsets


def _refuse_unwritten(thunks: Sequence[Thunk]) -> None:
    written: set[Buffer] = set()
    for thunk in thunks:
        written.update(use.slice.buffer for use in thunk.uses if use.access == "write")
        for use in thunk.uses:
            if use.slice.buffer.lifetime is Lifetime.TEMP and use.slice.buffer not in written:
                raise PlanError(
                    f"thunk {thunk.name!r} reads temporary {use.slice.buffer.name!r} before any write to it"
                )


def _liveness(thunks: Sequence[Thunk], temporaries: Sequence[Buffer]) -> list[_Live]:
    # Steps are those of unshared memory: sharing then never makes two thunks conflict that could run side by side.
    steps = list(itertools.accumulate(insert_waits(thunks, _unshared(temporaries))))
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for step, thunk in zip(steps, thunks, strict=True):
        for use in thunk.uses:
            first.setdefault(use.slice.buffer, step)
            last[use.slice.buffer] = step
    return [_Live(buffer, first[buffer], last[buffer]) for buffer in temporaries]


def _lowest_free(live: _Live, placed: Iterable[tuple[int, _Live]]) -> int:
    """The lowest aligned offset whose bytes no placed buffer holds while `live` lives. `placed` is in offset order."""
    alignment = max(live.buffer.alignment, ALIGNMENT)
    offset = 0
    for taken, other in placed:
        if not live.meets(other):
            continue
        if offset + live.buffer.nbytes <= taken:
            break
        offset = max(offset, _round_up(taken + other.buffer.nbytes, alignment))
    return offset


def plan_memory(thunks: Sequence[Thunk]) -> MemoryPlan:
    """Places every TEMP buffer: largest first into the lowest free offset; two that live at one time never overlap.

    PlanError when a temporary is read before any thunk writes to it.
    """
    _refuse_unwritten(thunks)
    temporaries = [buffer for buffer in buffers_of(thunks) if buffer.lifetime is Lifetime.TEMP]
    placed: list[tuple[int, _Live]] = []
    for live in sorted(_liveness(thunks, temporaries), key=lambda live: -live.buffer.nbytes):
        placed.append((_lowest_free(live, placed), live))
        placed.sort(key=lambda entry: entry[0])
    return MemoryPlan(
        offsets={live.buffer: offset for offset, live in placed},
        arena_nbytes=_round_up(max((offset + live.buffer.nbytes for offset, live in placed), default=0), ALIGNMENT),
        temp_nbytes_sum=sum(buffer.nbytes for buffer in temporaries),
        alignment=max([ALIGNMENT, *(buffer.alignment for buffer in temporaries)]),
    )


def make_schedule(thunks: Sequence[Thunk], extents: Sequence[Extent] = ()) -> tuple[Schedule, MemoryPlan]:
    """Thunks in order to a schedule with its waits, and the arena that the waits were found for.

    `extents` adds some that no thunk names. PlanError as in `plan_memory` and `Schedule`.
    """
    memory = plan_memory(thunks)
    waits = insert_waits(thunks, memory.offsets)
    every = tuple(dict.fromkeys((*extents, *extents_of(thunks))))
    return Schedule(tuple(thunks), waits, every, buffers_of(thunks)), memory
