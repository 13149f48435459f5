"""Cuts a schedule into segments, each of thunks on one device, and finds which earlier segments each must wait for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from camshaft.backends.device import HOST
from camshaft.plan.buffers import Buffer, BufferUse
from camshaft.plan.memory.hazards import Group
from camshaft.plan.schedule import Order, Thunk


@dataclass(frozen=True)
class Segment:
    """Thunks [first, last), all on one device.

    `after` lists the segments that must have ended before it starts. Host segments are not listed: the thread that submits
    segments runs them itself.
    """

    device: str
    first: int
    last: int
    after: tuple[int, ...] = ()


def cut(thunks: Sequence[Thunk], offsets: Mapping[Buffer, int], order: Order = ()) -> tuple[Segment, ...]:
    """Returns the segments in order.

    A segment waits for an earlier segment on another device if both access the same bytes and one writes, or if `order` puts a
    thunk of that one before one of its own. It waits for an earlier segment on its own device that downloads to host bytes
    which it uploads, because a device reads host bytes when a segment is submitted.
    """
    segments: list[Segment] = []
    running: dict[int, Group] = {}  # device segments that no segment waits for yet
    for device, first, last in _runs(thunks, offsets):
        uses = [use for thunk in thunks[first:last] for use in thunk.uses]
        uploads = [use for thunk in thunks[first:last] for use in _uploads(thunk)]
        ordered = {number for earlier in order[first:last] for number in earlier}
        own = {index for index in running if segments[index].device == device}
        after = tuple(
            index
            for index, group in running.items()
            if group.conflict(uploads if index in own else uses, offsets) is not None
            or (index not in own and not group.numbers.isdisjoint(ordered))
        )
        for index in after:
            del running[index]
        if device != HOST:
            running[len(segments)] = _accesses_after_submit(range(first, last), thunks, offsets)
        segments.append(Segment(device, first, last, after))
    return tuple(segments)


def _runs(thunks: Sequence[Thunk], offsets: Mapping[Buffer, int]) -> Iterator[tuple[str, int, int]]:
    """Yields (device, first, last) of consecutive thunks on one device; none uploads bytes that an earlier one downloads."""
    first, group = 0, Group()
    for index, thunk in enumerate(thunks):
        if index and (thunk.device != thunks[first].device or group.conflict(_uploads(thunk), offsets) is not None):
            yield thunks[first].device, first, index
            first, group = index, Group()
        group.add(thunk.uses, offsets)
    if thunks:
        yield thunks[first].device, first, len(thunks)


def _accesses_after_submit(numbers: Sequence[int], thunks: Sequence[Thunk], offsets: Mapping[Buffer, int]) -> Group:
    """Returns the accesses of a submitted segment: all but its reads of host bytes, which the submission has done."""
    group = Group(numbers=set(numbers))
    for thunk in (thunks[number] for number in numbers):
        uploads = _uploads(thunk)
        group.add((use for use in thunk.uses if use not in uploads), offsets)
    return group


def _uploads(thunk: Thunk) -> tuple[BufferUse, ...]:
    """Returns the host bytes that a device's copy reads."""
    if thunk.kind != "copy" or thunk.device == HOST:
        return ()
    return tuple(use for use in thunk.uses if use.access == "read" and use.slice.buffer.space == HOST)
