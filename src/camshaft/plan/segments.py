"""Segments: a schedule cut into runs of thunks of one device, and which earlier ones each waits for. After hazards.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from camshaft.backends.device import HOST
from camshaft.plan.hazards import Group
from camshaft.plan.schedule import Buffer, BufferUse, Order, Thunk


@dataclass(frozen=True)
class Segment:
    """Thunks [first, last), all of one device. `after`: indexes of segments that must have ended before it begins; those of
    the host have, since the thread that runs the plan runs them."""

    device: str
    first: int
    last: int
    after: tuple[int, ...] = ()


def cut(thunks: Sequence[Thunk], offsets: Mapping[Buffer, int], order: Order = ()) -> tuple[Segment, ...]:
    """The segments in order. A segment waits for an earlier one of another device that it conflicts with, by byte range, or
    of which `order` says that it follows a thunk."""
    segments: list[Segment] = []
    running: dict[int, Group] = {}  # segments of devices that nothing has waited for yet
    for device, first, last in _pieces(thunks):
        uses = [use for thunk in thunks[first:last] for use in thunk.uses]
        asked = {number for earlier in order[first:last] for number in earlier}
        after = tuple(
            index
            for index, group in running.items()
            if segments[index].device != device
            and (not group.numbers.isdisjoint(asked) or group.conflict(uses, offsets) is not None)
        )
        for index in after:
            del running[index]
        if device != HOST:
            running[len(segments)] = _open(range(first, last), thunks, offsets)
        segments.append(Segment(device, first, last, after))
    return tuple(segments)


def _pieces(thunks: Sequence[Thunk]) -> Iterator[tuple[str, int, int]]:
    first = 0
    for index, thunk in enumerate(thunks):
        if index + 1 == len(thunks) or thunks[index + 1].device != thunk.device:
            yield thunk.device, first, index + 1
            first = index + 1


def _open(numbers: Sequence[int], thunks: Sequence[Thunk], offsets: Mapping[Buffer, int]) -> Group:
    """What a segment still does to memory once it was submitted: what it copies out of the host has been read by then."""
    group = Group(set(numbers))
    for thunk in (thunks[number] for number in numbers):
        group.add((use for use in thunk.uses if not _is_upload(thunk, use)), offsets)
    return group


def _is_upload(thunk: Thunk, use: BufferUse) -> bool:
    return thunk.kind == "copy" and use.access == "read" and use.slice.buffer.space == HOST
