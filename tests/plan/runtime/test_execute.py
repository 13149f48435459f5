"""The executor: results, extents, ranges, copies, bindings, several threads of Python."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from plan_kernels import add, align, buffer, chain, chain_plan, thunk

from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.plan.buffers import Lifetime
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.runtime.execute import bind
from camshaft.plan.schedule import Programs, copy_thunk


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_chain_of_dependent_adds_is_bit_equal_in_every_run(threads: int, rows: int) -> None:
    plan, out, wanted = chain_plan(20, rows, threads)
    for _ in range(2000 if rows == 3 else 50):
        out[:] = 0
        plan.run()
        assert np.array_equal(out, wanted)


def test_two_temporaries_hold_a_chain() -> None:
    thunks, *_ = chain(50, 4)
    schedule, memory = make_schedule(thunks)
    assert memory.arena_nbytes == 2 * 256
    assert memory.temp_nbytes_sum == 49 * 256
    assert schedule.waits == (False, *[True] * 49)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_active_extents_run_only_their_programs(threads: int) -> None:
    tokens, rows = Extent("tokens", 512), Extent("logit_rows", 512)
    counts = buffer("counts", 8 * 512 * 3, Lifetime.IO)
    seen = buffer("seen", 8, Lifetime.IO)
    by = {
        "tokens": Programs(1, ((tokens, 1),)),
        "tiles": Programs(3, ((tokens, 6),)),
        "both": Programs(2, ((tokens, 32), (rows, 64), (rows, 512))),
    }
    thunks = [thunk(name, "count", (counts.slice(),), writes=(counts.slice(),), programs=p) for name, p in by.items()]
    thunks.append(thunk("extent", "extent", (seen.slice(), tokens), writes=(seen.slice(),)))
    memory_of = {counts: align(np.zeros(512 * 3, np.int64)), seen: align(np.zeros(1, np.int64))}
    schedule, memory = make_schedule(thunks)
    plan = bind(schedule, memory, buffers=memory_of, threads=threads)
    for n_tokens, n_rows in ((7, 1), (512, 512), (0, 1), (1, 0), (33, 65), (7, 512)):
        plan.set_extent(tokens, n_tokens)
        plan.set_extent(rows, n_rows)
        for index, item in enumerate(thunks[:-1]):
            memory_of[counts][:] = 0
            plan.run(index, index + 1)
            n = item.programs.count(plan.active)
            assert memory_of[counts][:n].tolist() == [1] * n
            assert memory_of[counts].sum() == n
        plan.run(3)
        assert memory_of[seen][0] == n_tokens
    assert thunks[0].programs.count({tokens: 7, rows: 1}) == 7


def test_extents_are_checked_against_their_bound() -> None:
    tokens = Extent("tokens", 8)
    total = buffer("total", 8, Lifetime.IO)
    item = thunk("tick", "tick", (total.slice(),), writes=(total.slice(),), programs=Programs(1, ((tokens, 1),)))
    schedule, memory = make_schedule([item])
    counted = align(np.zeros(1, np.int64))
    plan = bind(schedule, memory, buffers={total: counted})
    plan.run()
    assert counted[0] == 8
    for value in (-1, 9):
        with pytest.raises(PlanError, match=r"tokens.*0 to 8"):
            plan.set_extent(tokens, value)
    with pytest.raises(PlanError, match="not one of this plan's"):
        plan.set_extent(Extent("tokens", 9), 1)


@pytest.mark.parametrize("threads", [1, 2])
def test_ranges_of_thunks_add_up_to_the_whole(threads: int) -> None:
    plan, out, wanted = chain_plan(10, 3, threads)
    for first, last in ((0, 3), (3, 3), (3, 9), (9, None)):
        plan.run(first, last)
    assert np.array_equal(out, wanted)
    for first, last in ((-1, 2), (3, 2), (0, 11)):
        with pytest.raises(PlanError, match="of a plan that has 10"):
            plan.run(first, last)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("nbytes", [1, 65536, 65537, 300_001])
def test_a_copy_moves_every_byte_and_no_other(threads: int, nbytes: int) -> None:
    source, target = buffer("source", nbytes, Lifetime.IO), buffer("target", nbytes + 128, Lifetime.IO)
    item = copy_thunk("copy", source.slice(), target.slice(64, nbytes))
    schedule, memory = make_schedule([item])
    values = align(np.random.default_rng(1).integers(0, 256, nbytes, np.uint8))
    out = align(np.full(nbytes + 128, 7, np.uint8))
    bind(schedule, memory, buffers={source: values, target: out}, threads=threads).run()
    assert np.array_equal(out[64:-64], values)
    assert set(out[:64]) == set(out[-64:]) == {7}


def test_a_closed_plan_refuses_to_run() -> None:
    plan, out, _ = chain_plan(3, 1, 1)
    with plan:
        plan.run()
    plan.close()
    for use in (plan.run, lambda: plan.set_extent(Extent("n", 1), 1), lambda: plan.bytes_of(None)):  # type: ignore[arg-type]
        with pytest.raises(PlanError):
            use()
    assert out.any()


@pytest.mark.parametrize("threads", [1, 2])
def test_two_plans_and_two_python_threads(threads: int) -> None:
    plans = [chain_plan(30, 3, threads, seed) for seed in range(2)]
    wrong: list[str] = []

    def work(index: int) -> None:
        plan, out, wanted = plans[index]
        for _ in range(300):
            out[:] = 0
            plan.run()
            if not np.array_equal(out, wanted):
                wrong.append(f"plan {index}")

    runners = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    [runner.start() for runner in runners]
    [runner.join() for runner in runners]
    assert wrong == []


def test_one_plan_from_two_python_threads_queues() -> None:
    plan, out, wanted = chain_plan(30, 3, 2)
    runners = [threading.Thread(target=lambda: [plan.run() for _ in range(300)]) for _ in range(2)]
    [runner.start() for runner in runners]
    [runner.join() for runner in runners]
    assert np.array_equal(out, wanted)


def test_the_callers_arena_is_used_and_checked() -> None:
    thunks, x, step, y = chain(3, 2)
    schedule, memory = make_schedule(thunks)
    memory_of = {
        x: align(np.ones(32, np.float32)),
        step: align(np.ones(16, np.float32)),
        y: align(np.zeros(32, np.float32)),
    }
    arena = align(np.zeros(memory.arena_nbytes, np.uint8))
    plan = bind(schedule, memory, arena=arena, buffers=memory_of)
    plan.run()
    plan.run()
    assert set(memory_of[y]) == {4.0}
    assert set(arena.view(np.float32)) == {2.0, 3.0}
    assert np.shares_memory(plan.memory.arena, arena)
    read_only = arena.copy()
    read_only.flags.writeable = False
    for bad, words in (
        (arena[:-64], "wanted 256"),
        (arena[1:], "bytes; wanted|alignment"),
        (read_only, "read-only|alignment"),
    ):
        with pytest.raises(PlanError, match=words):
            bind(schedule, memory, arena=bad, buffers=memory_of)


def test_addresses_and_bytes_serve_as_memory() -> None:
    thunks, x, step, y = chain(2, 1)
    unaligned = {item: replace(item, alignment=1) for item in (x, step, y)}
    thunks = [add(unaligned[x].slice(), unaligned[step].slice(), unaligned[y].slice())]
    schedule, memory = make_schedule(thunks)
    out = np.zeros(16, np.float32)
    ones = np.ones(16, np.float32)
    given = {unaligned[x]: ones.tobytes(), unaligned[step]: memoryview(ones), unaligned[y]: out.ctypes.data}
    bind(schedule, memory, buffers=given).run()
    assert set(out) == {2.0}


def test_bad_memory_is_refused() -> None:
    thunks, x, step, y = chain(1, 2)
    schedule, memory = make_schedule(thunks)
    good = {x: align(np.ones(32, np.float32)), step: align(np.ones(16, np.float32)), y: align(np.zeros(32, np.float32))}
    frozen = align(np.zeros(32, np.float32))
    frozen.flags.writeable = False
    cases = {
        "no memory for": {x: good[x], step: good[step]},
        "which it does not take": good | {buffer("stranger", 8): np.zeros(1)},
        "wanted 128": good | {x: good[x][:31]},
        "contiguous": good | {x: align(np.zeros(64, np.float32))[::2]},
        "alignment": good | {x: align(np.zeros(33, np.float32))[1:]},
        "read-only": good | {y: frozen},
        "overlaps": good | {y: good[x]},
    }
    for words, memory_of in cases.items():
        with pytest.raises(PlanError, match=words):
            bind(schedule, memory, buffers=memory_of)


def test_a_schedule_without_a_needed_wait_is_refused() -> None:
    thunks, x, step, y = chain(2, 1)
    schedule, memory = make_schedule(thunks)
    memory_of = {item: align(np.zeros(16, np.float32)) for item in (x, step, y)}
    with pytest.raises(PlanError, match=r"add1.*needs a wait"):
        bind(replace(schedule, waits=(False, False)), memory, buffers=memory_of)
