"""Arena and waits on random graphs: nothing alive overlaps, no hazard lacks a wait, no allowed order changes a byte."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_kernels import add, buffer, thunk
from random_graphs import check_bytes, groups, interpret, memory_for, thunk_lists

from camshaft.errors import PlanError
from camshaft.plan.buffers import Buffer, BufferUse, Lifetime
from camshaft.plan.memory.arena import MemoryPlan, make_schedule, plan_memory
from camshaft.plan.memory.hazards import insert_waits, missing_wait
from camshaft.plan.schedule import Thunk, buffers_of


def span(use: BufferUse, memory: MemoryPlan) -> tuple[object, int, int]:
    """Where a use really lies: the arena or its own buffer, first and last byte."""
    if use.slice.buffer.lifetime is not Lifetime.TEMP:
        return use.slice.buffer, use.slice.offset, use.slice.end
    base = memory.offsets[use.slice.buffer]
    return "arena", base + use.slice.offset, base + use.slice.end


def conflict(a: Thunk, b: Thunk, memory: MemoryPlan) -> bool:
    """By brute force: some byte is used by both and written by one."""
    for one, other in itertools.product(a.uses, b.uses):
        (here, start, end), (there, start2, end2) = span(one, memory), span(other, memory)
        if here == there and "write" in (one.access, other.access) and max(start, start2) < min(end, end2):
            return True
    return False


def lives(thunks: Sequence[Thunk], temporary: Buffer) -> range:
    """The thunks from a buffer's first to its last use."""
    used = [i for i, item in enumerate(thunks) if any(use.slice.buffer is temporary for use in item.uses)]
    return range(used[0], used[-1] + 1)


@given(thunk_lists())
def test_live_temporaries_never_overlap(thunks: list[Thunk]) -> None:
    memory = plan_memory(thunks)
    temporaries = [b for b in buffers_of(thunks) if b.lifetime is Lifetime.TEMP]
    assert set(memory.offsets) == set(temporaries)
    assert memory.arena_nbytes <= sum(-(-b.nbytes // 256) * 256 for b in temporaries)
    for item in temporaries:
        assert memory.offsets[item] % max(item.alignment, 64) == 0
        assert 0 <= memory.offsets[item] <= memory.arena_nbytes - item.nbytes
    for a, b in itertools.combinations(temporaries, 2):
        if set(lives(thunks, a)) & set(lives(thunks, b)):
            start_a, start_b = memory.offsets[a], memory.offsets[b]
            assert start_a + a.nbytes <= start_b or start_b + b.nbytes <= start_a


def test_temporaries_that_live_over_many_steps_never_overlap() -> None:
    """What a graph of gradients has: results of 150 layers are read again in the opposite order, at other sizes."""
    rng, x = random.Random(3), buffer("x", 64, Lifetime.IO)
    forward = [buffer(f"f{i}", 64 * rng.randint(1, 9)) for i in range(150)]
    backward = [buffer(f"b{i}", 64 * rng.randint(1, 9)) for i in range(150)]
    chain = [x, *forward, *backward]
    thunks = [add(a.slice(), a.slice(), b.slice()) for a, b in itertools.pairwise(chain[:151])]
    pairs = zip(chain[150:], reversed(forward), backward, strict=False)
    thunks += [add(a.slice(), f.slice(), b.slice()) for a, f, b in pairs]
    offsets = plan_memory(thunks).offsets
    spans = {b: lives(thunks, b) for b in offsets}
    for a, b in itertools.combinations(offsets, 2):
        if max(spans[a].start, spans[b].start) < min(spans[a].stop, spans[b].stop):
            assert offsets[a] + a.nbytes <= offsets[b] or offsets[b] + b.nbytes <= offsets[a]


@given(thunk_lists())
def test_every_hazard_has_a_wait_between(thunks: list[Thunk]) -> None:
    schedule, memory = make_schedule(thunks)
    for group in groups(thunks, schedule.waits):
        assert not any(conflict(a, b, memory) for a, b in itertools.combinations(group, 2))
    assert missing_wait(thunks, schedule.waits, memory.offsets) is None
    assert not schedule.waits[0]


@given(thunk_lists(), st.data())
def test_no_wait_can_be_spared_and_each_one_spared_is_noticed(thunks: list[Thunk], data: st.DataObject) -> None:
    schedule, memory = make_schedule(thunks)
    waits = [index for index, wait in enumerate(schedule.waits) if wait]
    if waits:
        gone = data.draw(st.sampled_from(waits))
        fewer = [wait and index != gone for index, wait in enumerate(schedule.waits)]
        assert missing_wait(thunks, fewer, memory.offsets) == gone


@given(thunk_lists())
def test_sharing_memory_adds_no_wait(thunks: list[Thunk]) -> None:
    schedule, _ = make_schedule(thunks)
    apart, end = {}, 0
    for item in schedule.buffers:
        apart[item], end = end, end + item.nbytes
    assert schedule.waits == insert_waits(thunks, apart)


@given(thunk_lists(), st.integers(0, 2**32))
def test_any_order_between_waits_gives_the_same_bytes(thunks: list[Thunk], seed: int) -> None:
    schedule, memory = make_schedule(thunks)
    check_bytes(thunks, thunks, schedule, memory, seed)


def test_the_interpreter_notices_a_wait_that_is_missing() -> None:
    x, y = buffer("x", 64, Lifetime.STATE), buffer("y", 64, Lifetime.IO)
    thunks = [add(x.slice(), y.slice(), buffer("t", 64).slice()), add(y.slice(), y.slice(0, 64), x.slice())]
    results = set()
    for seed in range(20):
        memory = memory_for(buffers_of(thunks), dict.fromkeys(buffers_of(thunks), 0), 64)
        interpret(thunks, [False, False], memory, random.Random(seed).shuffle)
        results.add(tuple(memory[thunks[0].uses[2].slice.buffer]))
    assert len(results) == 2


@pytest.mark.parametrize("lifetime", [Lifetime.STATE, Lifetime.IO, Lifetime.TEMP])
def test_hazards_are_by_byte_range(lifetime: Lifetime) -> None:
    whole = buffer("whole", 192, lifetime)
    left, middle, right = (whole.slice(64 * i, 64) for i in range(3))

    def touch(reads: tuple = (), writes: tuple = ()) -> Thunk:
        return thunk("touch", "tick", (*reads, *writes), reads, writes)

    begin = [touch(writes=(whole.slice(),))]
    cases = {
        "raw": ([touch(writes=(left,)), touch(reads=(left,))], True),
        "war": ([touch(reads=(left,)), touch(writes=(left,))], True),
        "waw": ([touch(writes=(left,)), touch(writes=(left,))], True),
        "rar": ([touch(reads=(left,)), touch(reads=(left,))], False),
        "apart": ([touch(writes=(left,)), touch(reads=(right,), writes=(middle,))], False),
        "one byte": ([touch(writes=(left,)), touch(reads=(whole.slice(63, 2),))], True),
        "next byte": ([touch(writes=(left,)), touch(reads=(whole.slice(64, 2),))], False),
        "empty": ([touch(writes=(left,)), touch(reads=(whole.slice(32, 0),))], False),
    }
    for name, (thunks, wanted) in cases.items():
        schedule, _ = make_schedule(begin + thunks)
        assert schedule.waits == (False, True, wanted), name


def test_constants_that_are_only_read_need_no_wait() -> None:
    weight = buffer("weight", 64, Lifetime.CONSTANT)
    outs = [buffer(f"o{i}", 64, Lifetime.IO) for i in range(3)]
    schedule, _ = make_schedule([add(weight.slice(), weight.slice(), out.slice()) for out in outs])
    assert not any(schedule.waits)


def test_a_temporary_read_before_it_is_written_is_refused() -> None:
    t, y = buffer("scratch", 64), buffer("y", 64, Lifetime.IO)
    with pytest.raises(PlanError, match=r"add.*scratch.*before any write"):
        make_schedule([add(t.slice(), t.slice(), y.slice())])


def test_largest_first_fills_the_lowest_hole() -> None:
    x, y = buffer("x", 64, Lifetime.IO), buffer("y", 64, Lifetime.IO)
    small, large = buffer("small", 100), buffer("large", 1000)
    thunks = [
        thunk("a", "tick", (x.slice(), small.slice(), large.slice()), (x.slice(),), (small.slice(), large.slice())),
        thunk("b", "tick", (small.slice(), large.slice(), y.slice()), (small.slice(), large.slice()), (y.slice(),)),
    ]
    memory = plan_memory(thunks)
    assert memory.offsets == {large: 0, small: 1024}
    assert (memory.arena_nbytes, memory.temp_nbytes_sum) == (1152, 1100)
