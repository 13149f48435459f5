"""Find the waits a schedule needs: RAW, WAR and WAW hazards by byte range, never by buffer identity."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from camshaft.errors import PlanError
from camshaft.plan.buffers import Buffer, BufferSlice, BufferUse, Lifetime
from camshaft.plan.schedule import Order, Thunk

Range = tuple[int, int]


def byte_range(piece: BufferSlice, offsets: Mapping[Buffer, int]) -> tuple[object, Range]:
    """Returns a key of the memory that has the slice (its space's arena for a temporary, else the buffer) and the bytes there."""
    if piece.buffer.lifetime is not Lifetime.TEMP:
        return piece.buffer, (piece.offset, piece.end)
    if piece.buffer not in offsets:
        raise PlanError(f"temporary {piece.buffer.name!r} has no place in the arena; plan_memory gives it one")
    base = offsets[piece.buffer]
    return piece.buffer.space, (base + piece.offset, base + piece.end)


def own_buffers(thunks: Iterable[Thunk]) -> frozenset[Buffer]:
    """Returns the per-worker temporaries, which replicated thunks write. Raises PlanError if another thunk writes one too."""
    writers: dict[Buffer, set[bool]] = {}
    for thunk in thunks:
        for buffer in thunk.written:
            writers.setdefault(buffer, set()).add(thunk.replicated)
    for buffer, kinds in writers.items():
        if len(kinds) > 1:
            raise PlanError(f"temporary {buffer.name!r} is written everywhere and by one worker; wanted one of both")
    return frozenset(buffer for buffer, kinds in writers.items() if True in kinds)


@dataclass
class Group:
    """The thunks since the last wait: their indices, and the byte ranges that they read and write in each memory.

    `own` are buffers of which each worker has a copy; they need no waits, since a worker runs its thunks in order.
    """

    own: frozenset[Buffer] = frozenset()
    numbers: set[int] = field(default_factory=set)
    read: dict[object, list[Range]] = field(default_factory=lambda: defaultdict(list))
    written: dict[object, list[Range]] = field(default_factory=lambda: defaultdict(list))

    def conflict(self, uses: Iterable[BufferUse], offsets: Mapping[Buffer, int]) -> BufferUse | None:
        """Returns the first use that conflicts with the group."""
        for use in uses:
            if use.slice.buffer in self.own:
                continue
            memory, wanted = byte_range(use.slice, offsets)
            if _touches(self.written[memory], wanted):
                return use
            if use.access == "write" and _touches(self.read[memory], wanted):
                return use
        return None

    def must_end_before(self, index: int, thunk: Thunk, offsets: Mapping[Buffer, int], after: Order) -> bool:
        """Whether thunk `index` conflicts with the group, or must follow a thunk in it."""
        follows = bool(after) and not self.numbers.isdisjoint(after[index])
        return follows or self.conflict(thunk.uses, offsets) is not None

    def add_thunk(self, index: int, thunk: Thunk, offsets: Mapping[Buffer, int]) -> None:
        """Adds thunk `index` to the group."""
        self.numbers.add(index)
        self.add(thunk.uses, offsets)

    def add(self, uses: Iterable[BufferUse], offsets: Mapping[Buffer, int]) -> None:
        """Adds these uses to the group."""
        for use in uses:
            if use.slice.buffer in self.own:
                continue
            memory, used = byte_range(use.slice, offsets)
            (self.written if use.access == "write" else self.read)[memory].append(used)


def _touches(ranges: Sequence[Range], wanted: Range) -> bool:
    first, last = wanted
    return any(max(start, first) < min(end, last) for start, end in ranges)


def _waits(
    keys: Iterable[str], thunks: Sequence[Thunk], offsets: Mapping[Buffer, int], after: Order
) -> tuple[bool, ...]:
    """Returns whether each thunk conflicts with, or follows, one of the same key since that key's last wait.

    These are the fewest waits for thunks in this order.
    """
    waits, own = [], own_buffers(thunks)
    groups: dict[str, Group] = defaultdict(lambda: Group(own))
    for index, (key, thunk) in enumerate(zip(keys, thunks, strict=True)):
        waits.append(groups[key].must_end_before(index, thunk, offsets, after))
        if waits[-1]:
            groups[key] = Group(own)
        groups[key].add_thunk(index, thunk, offsets)
    return tuple(waits)


def insert_waits(thunks: Sequence[Thunk], offsets: Mapping[Buffer, int], after: Order = ()) -> tuple[bool, ...]:
    """Returns whether each thunk conflicts with, or follows, one on its device since that device's last wait.

    `offsets` has every TEMP buffer's offset in its space's arena; PlanError if one is missing. Waits between devices are found
    in segments.py.
    """
    return _waits((thunk.device for thunk in thunks), thunks, offsets, after)


def steps(thunks: Sequence[Thunk], offsets: Mapping[Buffer, int], after: Order = ()) -> list[int]:
    """Returns each thunk's step as if all ran on one device. A step ends at a wait."""
    return list(itertools.accumulate(_waits(("",) * len(thunks), thunks, offsets, after)))


def missing_wait(
    thunks: Sequence[Thunk], waits: Sequence[bool], offsets: Mapping[Buffer, int], after: Order = ()
) -> int | None:
    """Returns the first thunk that needs a wait, by the rule of insert_waits, and has none; None if the waits suffice."""
    own = own_buffers(thunks)
    groups: dict[str, Group] = defaultdict(lambda: Group(own))
    for index, (thunk, wait) in enumerate(zip(thunks, waits, strict=True)):
        group = groups[thunk.device] = Group(own) if wait else groups[thunk.device]
        if group.must_end_before(index, thunk, offsets, after):
            return index
        group.add_thunk(index, thunk, offsets)
    return None


@dataclass(frozen=True)
class Hazard:
    """Two items that access the same bytes, `piece`, at least one of them writing."""

    first: int
    second: int
    piece: BufferSlice
    first_access: str
    second_access: str


def hazards(items: Sequence[Iterable[BufferUse]]) -> Iterator[Hazard]:
    """Yields every pair of items that must not run concurrently if no buffers share memory, the earlier item first."""
    seen: dict[Buffer, list[tuple[int, BufferUse]]] = defaultdict(list)
    writes: dict[Buffer, list[tuple[int, BufferUse]]] = defaultdict(list)
    for index, uses in enumerate(items):
        for use in uses:
            buffer = use.slice.buffer
            for other, earlier in (seen if use.access == "write" else writes)[buffer]:
                if other != index and use.slice.overlaps(earlier.slice):
                    start = max(use.slice.offset, earlier.slice.offset)
                    piece = BufferSlice(buffer, start, min(use.slice.end, earlier.slice.end) - start)
                    yield Hazard(other, index, piece, earlier.access, use.access)
            seen[buffer].append((index, use))
            if use.access == "write":
                writes[buffer].append((index, use))
