"""Waits from hazards: RAW, WAR and WAW by byte range, never by buffer identity. After memory.py, before execute.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from camshaft.errors import PlanError
from camshaft.plan.schedule import Buffer, BufferSlice, Lifetime, Thunk

Range = tuple[int, int]
_ARENA = object()


def byte_range(piece: BufferSlice, offsets: Mapping[Buffer, int]) -> tuple[object, Range]:
    """The memory that a slice lies in and its bytes there: the arena for a planned buffer, else the buffer itself."""
    if piece.buffer.lifetime is not Lifetime.TEMP:
        return piece.buffer, (piece.offset, piece.end)
    if piece.buffer not in offsets:
        raise PlanError(f"temporary {piece.buffer.name!r} has no place in the arena; plan_memory gives it one")
    base = offsets[piece.buffer]
    return _ARENA, (base + piece.offset, base + piece.end)


@dataclass
class _Group:
    """What the thunks since the last wait have read and written, per memory."""

    read: dict[object, list[Range]] = field(default_factory=lambda: defaultdict(list))
    written: dict[object, list[Range]] = field(default_factory=lambda: defaultdict(list))

    def conflicts(self, thunk: Thunk, offsets: Mapping[Buffer, int]) -> bool:
        for use in thunk.uses:
            memory, wanted = byte_range(use.slice, offsets)
            if _touches(self.written[memory], wanted):
                return True
            if use.access == "write" and _touches(self.read[memory], wanted):
                return True
        return False

    def add(self, thunk: Thunk, offsets: Mapping[Buffer, int]) -> None:
        for use in thunk.uses:
            memory, used = byte_range(use.slice, offsets)
            (self.written if use.access == "write" else self.read)[memory].append(used)


def _touches(ranges: Sequence[Range], wanted: Range) -> bool:
    first, last = wanted
    return any(max(start, first) < min(end, last) for start, end in ranges)


def insert_waits(thunks: Sequence[Thunk], offsets: Mapping[Buffer, int]) -> tuple[bool, ...]:
    """waits[i] for each thunk: True where it conflicts with one since the last wait. In order, this is the fewest.

    `offsets` places every TEMP buffer in the arena. PlanError when one has no place.
    """
    waits = []
    group = _Group()
    for thunk in thunks:
        waits.append(group.conflicts(thunk, offsets))
        group = _Group() if waits[-1] else group
        group.add(thunk, offsets)
    return tuple(waits)


def missing_wait(thunks: Sequence[Thunk], waits: Sequence[bool], offsets: Mapping[Buffer, int]) -> int | None:
    """The first thunk that conflicts with one since the last of these waits, or None when they suffice."""
    group = _Group()
    for index, (thunk, wait) in enumerate(zip(thunks, waits, strict=True)):
        group = _Group() if wait else group
        if group.conflicts(thunk, offsets):
            return index
        group.add(thunk, offsets)
    return None
