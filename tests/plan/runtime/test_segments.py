"""Segments of several devices on random thunks: whatever order their waits allow, the bytes are those of one after the other."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_kernels import kernel
from random_graphs import Bytes, interpret, run_program, thunk_lists

from camshaft.backends.device import HOST
from camshaft.plan.buffers import Buffer, BufferSlice, BufferUse, Lifetime
from camshaft.plan.memory.arena import MemoryPlan, make_schedule
from camshaft.plan.runtime.segments import Segment, cut
from camshaft.plan.schedule import Order, Schedule, Thunk, copy_thunk

SPACES = (HOST, "one", "two")


@st.composite
def placed_lists(draw: st.DrawFn) -> list[Thunk]:
    """Thunks over buffers of the host and of two devices. Those of a device read and write its own and the host's, as copies do;
    one whose buffers lie on both devices is left out."""
    thunks = draw(thunk_lists())
    buffers = dict.fromkeys(use.slice.buffer for thunk in thunks for use in thunk.uses)
    moved = {b: replace(b, space=draw(st.sampled_from(SPACES))) for b in buffers}
    placed, begun = [], {b for b in moved.values() if b.lifetime is not Lifetime.TEMP}
    for thunk in thunks:
        uses = tuple(
            replace(u, slice=BufferSlice(moved[u.slice.buffer], u.slice.offset, u.slice.nbytes)) for u in thunk.uses
        )
        away = {use.slice.buffer.space for use in uses} - {HOST}
        fresh = [use for use in uses if use.slice.buffer not in begun]
        whole = all(use.access == "write" and use.slice == use.slice.buffer.slice() for use in fresh)
        if len(away) < 2 and whole:
            device = away.pop() if away else draw(st.sampled_from(SPACES))
            kind = "kernel" if device == HOST else "copy"
            placed.append(replace(thunk, uses=uses, args=tuple(u.slice for u in uses), kind=kind, device=device))
            begun.update(use.slice.buffer for use in uses)
    return placed


@st.composite
def orders(draw: st.DrawFn, n_thunks: int) -> Order:
    """A few dependencies that a caller asks for."""
    return tuple(tuple(sorted(draw(st.sets(st.integers(0, i - 1), max_size=2)))) if i else () for i in range(n_thunks))


@dataclass
class Machine:
    """The host's thread and two devices, which go on by themselves. What a device's thunk reads of the host is read when its
    segment is submitted; a queue's thunks may run side by side up to the next one with a wait."""

    schedule: Schedule
    memory: Mapping[Buffer, Bytes]
    rng: random.Random
    queues: dict[str, list[tuple[int, int, dict[BufferUse, bytes]]]] = field(default_factory=dict)

    def run(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            for earlier in segment.after:
                self.until(segments[earlier].last, segments[earlier].device)
            numbers = range(segment.first, segment.last)
            queue = self.queues.setdefault(segment.device, [])
            for number in numbers:
                taken = self.taken(self.schedule.thunks[number]) if segment.device != HOST else {}
                queue += [(number, p, taken) for p in range(self.schedule.thunks[number].programs.constant)]
            if segment.device == HOST:
                self.until(segment.last, HOST)
        for device in self.queues:
            self.until(len(self.schedule.thunks), device)

    def taken(self, thunk: Thunk) -> dict[BufferUse, bytes]:
        pieces = {use: use.slice for use in thunk.uses if use.access == "read" and use.slice.buffer.space == HOST}
        return {use: self.memory[s.buffer][s.offset : s.end].tobytes() for use, s in pieces.items()}

    def until(self, last: int, device: str) -> None:
        """Goes on until the device has ended all thunks before number `last`. The host's are only run when it waits for them."""
        while any(number < last for number, _, _ in self.queues.get(device, [])):
            some = [d for d, queue in self.queues.items() if queue and (d != HOST or device == HOST)]
            queue = self.queues[self.rng.choice(some)]
            group = [queue[0]]
            for entry in queue[1:]:
                if entry[0] != group[-1][0] and self.schedule.waits[entry[0]]:
                    break
                group.append(entry)
            entry = self.rng.choice(group)
            queue.remove(entry)
            number, program, taken = entry
            run_program(self.schedule.thunks[number], program, self.memory, taken)


def memory_of(buffers: Sequence[Buffer], plan: MemoryPlan | None) -> dict[Buffer, Bytes]:
    """Bytes by name; temporaries share their space's arena where there is a plan."""
    sizes = {HOST: plan.arena_nbytes, **plan.device_nbytes} if plan else {}
    arenas = {space: np.random.default_rng(1).integers(0, 256, n, np.uint8) for space, n in sizes.items()}
    memory = {}
    for i, buffer in enumerate(buffers):
        own = np.random.default_rng(i).integers(0, 256, buffer.nbytes, np.uint8)
        shared = plan is not None and buffer.lifetime is Lifetime.TEMP
        at = plan.offsets[buffer] if shared and plan else 0
        memory[buffer] = arenas[buffer.space][at : at + buffer.nbytes] if shared else own
    return memory


@pytest.mark.full
@given(st.data(), placed_lists(), st.integers(0, 2**32))
def test_any_order_that_waits_and_segments_allow_gives_the_same_bytes(
    data: st.DataObject, thunks: list[Thunk], seed: int
) -> None:
    after = data.draw(st.one_of(st.just(()), orders(len(thunks))))
    schedule, plan = make_schedule(thunks, after=after)
    in_order, mixed = memory_of(schedule.buffers, None), memory_of(schedule.buffers, plan)
    for _ in range(2):
        interpret(thunks, [True] * len(thunks), in_order, lambda programs: None)
        Machine(schedule, mixed, random.Random(seed)).run(cut(thunks, plan.offsets, after))
        for buffer in schedule.buffers:
            if buffer.lifetime is not Lifetime.TEMP:
                assert np.array_equal(in_order[buffer], mixed[buffer]), buffer.name


def test_an_upload_waits_for_what_its_own_device_copied_to_the_host() -> None:
    """Uploads are read when their segment is submitted, so the copy before it has ended in a segment of its own."""
    there, back = (Buffer(name, 64, Lifetime.STATE, space="one") for name in ("there", "back"))
    host, other = Buffer("host", 64, Lifetime.STATE), Buffer("other", 64, Lifetime.STATE)
    down, up = copy_thunk("down", there.slice(), host.slice()), copy_thunk("up", host.slice(), back.slice())
    assert cut([down, up], {}) == (Segment("one", 0, 1), Segment("one", 1, 2, (0,)))
    use = (BufferUse(other.slice(), "write"),)
    between = Thunk("between", "test", "", "", "kernel", kernel("tick"), (), use)
    assert [s.after for s in cut([down, between, up], {})] == [(), (), (0,)]
    assert cut([up, down], {}) == (Segment("one", 0, 2),), "the other way round they share one"
