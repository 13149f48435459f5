"""Cut a schedule into segments of thunks on one device, and find which earlier segments each waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from camshaft.backends.device import HOST
from camshaft.plan.memory.hazards import Group
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
    of which `order` says that it follows a thunk; and for one of its own that copies to the host what it copies from there,
    since a device reads the host's bytes when a segment is submitted."""
    segments: list[Segment] = []
    running: dict[int, Group] = {}  # segments of devices that nothing has waited for yet
    for device, first, last in _pieces(thunks, offsets):
        uses = [use for thunk in thunks[first:last] for use in thunk.uses]
        uploads = [use for thunk in thunks[first:last] for use in _uploads(thunk)]
        asked = {number for earlier in order[first:last] for number in earlier}
        own = {index for index in running if segments[index].device == device}
        after = tuple(
            index
            for index, group in running.items()
            if group.conflict(uploads if index in own else uses, offsets) is not None
            or (index not in own and not group.numbers.isdisjoint(asked))
        )
        for index in after:
            del running[index]
        if device != HOST:
            running[len(segments)] = _open(range(first, last), thunks, offsets)
        segments.append(Segment(device, first, last, after))
    return tuple(segments)


def _pieces(thunks: Sequence[Thunk], offsets: Mapping[Buffer, int]) -> Iterator[tuple[str, int, int]]:
    """Runs of thunks of one device, of which none uploads what one before it downloads."""
    first, group = 0, Group()
    for index, thunk in enumerate(thunks):
        if index and (thunk.device != thunks[first].device or group.conflict(_uploads(thunk), offsets) is not None):
            yield thunks[first].device, first, index
            first, group = index, Group()
        group.add(thunk.uses, offsets)
    if thunks:
        yield thunks[first].device, first, len(thunks)


def _open(numbers: Sequence[int], thunks: Sequence[Thunk], offsets: Mapping[Buffer, int]) -> Group:
    """What a segment still does to memory once it was submitted: what it copies out of the host has been read by then."""
    group = Group(numbers=set(numbers))
    for thunk in (thunks[number] for number in numbers):
        uploads = _uploads(thunk)
        group.add((use for use in thunk.uses if use not in uploads), offsets)
    return group


def _uploads(thunk: Thunk) -> tuple[BufferUse, ...]:
    """What a device's copy reads of the host."""
    if thunk.kind != "copy" or thunk.device == HOST:
        return ()
    return tuple(use for use in thunk.uses if use.access == "read" and use.slice.buffer.space == HOST)
