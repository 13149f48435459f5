"""Plan the arenas: one per memory space, with an offset for each temporary, by its lifetime."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from camshaft.backends.device import HOST
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.plan.buffers import Buffer, Lifetime
from camshaft.plan.memory.hazards import insert_waits, own_buffers, steps
from camshaft.plan.schedule import Order, Schedule, Thunk, buffers_of, extents_of

ALIGNMENT = 64
# Of a block: a list of each step alone would have a million entries of a training step, 110 MB.
STEPS = 64
OWN_ALIGNMENT = 128  # two cache lines: workers share none, not even by prefetch of the neighbor


@dataclass(frozen=True)
class MemoryPlan:
    """Arena offsets of the TEMP buffers, and the sizes of the arenas.

    `temp_nbytes_sum` is the size of all temporaries if none shared memory; `device_nbytes` the arena size of each other space.
    Each of `workers` workers has a copy of the `own` buffers: worker w's is at offset + w * own_nbytes.
    """

    offsets: Mapping[Buffer, int]
    arena_nbytes: int
    temp_nbytes_sum: int
    alignment: int = ALIGNMENT
    device_nbytes: Mapping[str, int] = field(default_factory=dict)
    own: frozenset[Buffer] = frozenset()
    own_nbytes: int = 0
    workers: int = 1

    def __repr__(self) -> str:
        return f"MemoryPlan({self.arena_nbytes} bytes for {self.temp_nbytes_sum} bytes of temporaries)"


@dataclass(frozen=True)
class _Live:
    """A temporary's first and last step, inclusive. A step is the thunks between two waits."""

    buffer: Buffer
    first: int
    last: int


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
        written.update(thunk.written)
        for use in thunk.uses:
            if use.slice.nbytes and use.slice.buffer.lifetime is Lifetime.TEMP and use.slice.buffer not in written:
                raise PlanError(
                    f"thunk {thunk.name!r} reads temporary {use.slice.buffer.name!r} before any write to it"
                )


def unshared_steps(thunks: Sequence[Thunk], after: Order = ()) -> list[int]:
    """Returns each thunk's step when no temporaries share memory."""
    temporaries = [buffer for buffer in buffers_of(thunks) if buffer.lifetime is Lifetime.TEMP]
    return steps(thunks, _unshared(temporaries), after)


def _liveness(thunks: Sequence[Thunk], temporaries: Sequence[Buffer], numbers: Sequence[int]) -> list[_Live]:
    """Returns the temporaries' lifetimes; `numbers` are the thunks' steps.

    With the steps of unshared memory, sharing adds no conflict between thunks that can run concurrently.
    """
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for step, thunk in zip(numbers, thunks, strict=True):
        for use in thunk.uses:
            first.setdefault(use.slice.buffer, step)
            last[use.slice.buffer] = step
    return [_Live(buffer, first[buffer], last[buffer]) for buffer in temporaries]


def _lowest_free(buffer: Buffer, taken: Iterable[tuple[int, int]]) -> int:
    """Returns the lowest aligned offset that overlaps none of the `taken` byte ranges."""
    alignment = max(buffer.alignment, ALIGNMENT)
    offset = 0
    for start, end in sorted(taken):
        if offset + buffer.nbytes <= start:
            break
        offset = max(offset, _round_up(end, alignment))
    return offset


def _place(lives: Iterable[_Live]) -> dict[Buffer, int]:
    """Returns offsets, assigned in order: each avoids the buffers placed before it that share its space and one of its steps."""
    offsets: dict[Buffer, int] = {}
    # the byte ranges in use: in a step, in all steps of a block, and those of both that begin in a step
    taken, whole, begun = (defaultdict[tuple[str, int], list[tuple[int, int]]](list) for _ in range(3))
    for live in lives:
        space, first, last = live.buffer.space, live.first, live.last
        # those of the first step and those that begin later: each once, as a step's activations live on for thousands of steps
        later = (begun[key] for key in ((space, step) for step in range(first + 1, last + 1)) if key in begun)
        offset = _lowest_free(live.buffer, chain(taken[space, first], whole[space, first // STEPS], *later))
        offsets[live.buffer] = offset
        place = offset, offset + live.buffer.nbytes
        begun[space, first].append(place)
        for block in range(first // STEPS, last // STEPS + 1):
            steps = range(max(first, block * STEPS), min(last + 1, (block + 1) * STEPS))
            if len(steps) == STEPS:
                whole[space, block].append(place)
            else:
                for step in steps:
                    taken[space, step].append(place)
    return offsets


def _place_by_order(temporaries: Iterable[Buffer], thunks: Sequence[Thunk], before: Sequence[int]) -> dict[Buffer, int]:
    """Returns offsets such that two buffers share bytes only if every thunk of one is before every thunk of the other."""
    users = dict.fromkeys(temporaries, 0)
    earlier = dict.fromkeys(users, -1)  # a bit for every thunk that is before all of a buffer's thunks
    for index, thunk in enumerate(thunks):
        for buffer in {use.slice.buffer for use in thunk.uses} & users.keys():
            users[buffer] |= 1 << index
            earlier[buffer] &= before[index]
    offsets: dict[Buffer, int] = {}
    for buffer in sorted(users, key=lambda b: -b.nbytes):
        taken = [
            (offset, offset + other.nbytes)
            for other, offset in offsets.items()
            if other.space == buffer.space and users[other] & ~earlier[buffer] and users[buffer] & ~earlier[other]
        ]
        offsets[buffer] = _lowest_free(buffer, taken)
    return offsets


def _largest_first(lives: Iterable[_Live]) -> list[_Live]:
    return sorted(lives, key=lambda live: -live.buffer.nbytes)


def plan_memory(
    thunks: Sequence[Thunk], after: Order = (), before: Sequence[int] | None = None, workers: int = 1
) -> MemoryPlan:
    """Assigns every TEMP buffer an offset: largest first, at the lowest free offset; live buffers never overlap.

    `after` is as in Schedule. `before` has, for each thunk, a bit for every thunk that has finished before it; buffers then share
    memory only if it orders their thunks. The outputs of replicated thunks are last, one copy for each of `workers` workers.
    Raises PlanError if a temporary is read before any thunk writes to it.
    """
    _refuse_unwritten(thunks)
    own = own_buffers(thunks)
    temporaries = [buffer for buffer in buffers_of(thunks) if buffer.lifetime is Lifetime.TEMP]
    shared, apart = [b for b in temporaries if b not in own], [b for b in temporaries if b in own]
    if before is None:
        offsets = _place(_largest_first(_liveness(thunks, shared, unshared_steps(thunks, after))))
    else:
        offsets = _place_by_order(shared, thunks, before)
    ends: dict[str, int] = {HOST: 0}
    for buffer, offset in offsets.items():
        ends[buffer.space] = max(ends.get(buffer.space, 0), _round_up(offset + buffer.nbytes, ALIGNMENT))
    # a worker accesses its copies in the order of the thunks
    mine = _place(_largest_first(_liveness(thunks, apart, range(len(thunks)))))
    own_nbytes = max((_round_up(offset + b.nbytes, OWN_ALIGNMENT) for b, offset in mine.items()), default=0)
    start = _round_up(ends.pop(HOST), OWN_ALIGNMENT if own else ALIGNMENT)
    offsets |= {buffer: start + offset for buffer, offset in mine.items()}
    return MemoryPlan(
        offsets=offsets,
        arena_nbytes=start + workers * own_nbytes,
        temp_nbytes_sum=sum(buffer.nbytes for buffer in temporaries),
        alignment=max([ALIGNMENT, *(buffer.alignment for buffer in temporaries if buffer.space == HOST)]),
        device_nbytes=ends,
        own=own,
        own_nbytes=own_nbytes,
        workers=workers,
    )


def make_schedule(
    thunks: Sequence[Thunk],
    extents: Sequence[Extent] = (),
    after: Order = (),
    before: Sequence[int] | None = None,
    workers: int = 1,
) -> tuple[Schedule, MemoryPlan]:
    """Returns the schedule of ordered thunks with its waits, and the arena plan that the waits assume.

    `extents` adds extents that no thunk uses; the other arguments are as in `plan_memory`. Raises PlanError like
    `plan_memory` and `Schedule`.
    """
    memory = plan_memory(thunks, after, before, workers)
    waits = insert_waits(thunks, memory.offsets, after)
    every = tuple(dict.fromkeys((*extents, *extents_of(thunks))))
    return Schedule(tuple(thunks), waits, every, buffers_of(thunks), after), memory
