"""Busy machines: when a pool's caller runs alone, and how many cores there are to use. Counts and fake ticks, no clock."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from plan_kernels import chain_plan

from camshaft import process
from camshaft.backends.cpu.compile import compile_module, host_target, load_object
from camshaft.emit.llvm.builder import I32, I64, PTR, VOID, Builder, Module, Value
from camshaft.plan.runtime.execute import BoundSchedule
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.alone import LEAST_ALONE, MOST_ALONE, MOST_SAVED_RUNS, fast_clock, judge
from camshaft.plan.runtime.native.barrier import define_wait
from camshaft.plan.runtime.native.os_wait import find_wait_row
from camshaft.plan.runtime.workers import Words, WorkerPool, _control_block

SHORT = 10_000
LINE, FAR = layout.WORKER_LINES, 2**62
kept: list[object] = []  # the code of `judging` stays loaded


@functools.cache
def judging() -> Callable[..., None]:
    module = Module()
    module.define(judge, VOID, PTR, I64, I64, I64)
    library = load_object(compile_module(module.text()))
    kept.append(library)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)(library.address("judge"))


class Pool:
    """The control block of a pool whose runs are made up: each takes `spent` ticks, of which worker i waited for waits[i]. It
    has run once."""

    def __init__(self, workers: int) -> None:
        self.control: Words = _control_block(workers)
        self.control[layout.WORKERS] = workers
        self.control[layout.SHORT_RUN_TICKS] = SHORT
        self.now = 1000
        self.run(1000)

    def run(self, spent: int, *waits: int, key: int = 77) -> None:
        for worker, wait in enumerate(waits):
            self.control[LINE + worker * layout.WORDS_PER_WORKER + layout.WAITED] = wait
        judging()(self.control.ctypes.data, key, self.now, self.now + spent)
        self.now += spent

    @property
    def alone(self) -> int:
        """The ticks for which the caller now runs alone."""
        return max(0, int(self.control[LINE + layout.ALONE_UNTIL]) - self.now)

    @property
    def balance(self) -> int:
        return int(self.control[LINE + layout.BALANCE])


def test_a_worker_without_a_core_lets_the_caller_run_alone_longer_each_time() -> None:
    pool, longest = Pool(2), 0
    for _ in range(10):
        pool.run(1000, 900, 0)  # 100 ticks of work, then the caller waits: alone it would take 200
        assert pool.alone > 0
        longest, before = pool.alone, longest
        assert longest == min(max(2 * before, 800 * LEAST_ALONE), 800 * MOST_ALONE)
        pool.now += pool.alone
    assert longest == 800 * MOST_ALONE


@pytest.mark.parametrize("waits", [(0, 0), (50, 0), (0, 50), (300, 0), (0, 1000)])
def test_even_and_uneven_shares_are_no_reason_to_run_alone(waits: tuple[int, int]) -> None:
    pool = Pool(2)
    for _ in range(100):
        pool.run(1000, *waits)
        assert pool.alone == 0


def test_a_rare_stall_is_paid_from_what_was_saved() -> None:
    pool = Pool(2)
    for _ in range(MOST_SAVED_RUNS + 10):
        pool.run(100, 5, 0)
    assert pool.balance == 100 * MOST_SAVED_RUNS
    pool.run(3000, 2900, 0)
    assert pool.alone == 0
    pool.run(3000, 2900, 0)
    assert pool.alone > 0


def test_a_caller_that_lost_its_core_counts_as_no_saving() -> None:
    pool = Pool(2)
    pool.run(5000, 0, 4900)
    assert (pool.balance, pool.alone) == (0, 0)


def test_many_workers_on_few_cores_run_alone() -> None:
    pool = Pool(8)
    pool.run(2000, 1950, *[0] * 7)
    assert pool.alone > 0


def test_a_first_run_is_not_judged() -> None:
    pool = Pool(2)
    pool.run(3000, 2900, 0, key=78)
    assert (pool.balance, pool.alone) == (0, 0)
    pool.run(3000, 2900, 0, key=78)
    assert pool.alone > 0


def test_long_runs_are_not_judged() -> None:
    """A prompt that lost a little would run alone next time, for twice as long."""
    pool = Pool(2)
    for _ in range(3):
        pool.run(100 * SHORT, 60 * SHORT, 0)
    pool.run(1000, 900, 0)  # the first short run after a long one
    assert (pool.balance, pool.alone) == (0, 0)
    pool.run(1000, 900, 0)
    assert pool.alone > 0


def test_a_wait_that_ends_at_once_adds_no_ticks() -> None:
    """Else it would add the ticks since the machine started, and the caller would run alone for hours."""

    def wait(b: Builder, control: Value, word: Value, misses: Value) -> None:
        b.call("await_", control, word, b.const(I32, 0), word, misses)

    machine, module = host_target().triple.split("-")[0], Module()
    define_wait(module, find_wait_row()[0], machine, fast_clock(machine))
    module.define(wait, VOID, PTR, PTR, PTR)
    library = load_object(compile_module(module.text()))
    control, word = _control_block(2), np.ones(1, np.int64)  # its bounds of spins are 0
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(library.address("wait"))
    call(control.ctypes.data, word.ctypes.data, control[LINE + layout.MISSES :].ctypes.data)
    assert control[LINE + layout.WAITED] == 0


def pooled_chain() -> tuple[BoundSchedule, WorkerPool, np.ndarray, np.ndarray]:
    """A chain of adds that has run once on three workers, these, its output, and the right one."""
    plan, out, wanted = chain_plan(20, 30, 3)
    plan.run()
    pool = plan._runner
    assert isinstance(pool, WorkerPool)
    return plan, pool, out, wanted


def test_a_long_run_has_all_workers() -> None:
    plan, pool, out, wanted = pooled_chain()
    limit = int(pool._control[layout.SHORT_RUN_TICKS])
    pool._control[LINE + layout.ALONE_UNTIL], pool._control[layout.SHORT_RUN_TICKS] = FAR, 0
    runs = int(pool._control[layout.RUN_GENERATION])
    plan.run()
    assert int(pool._control[layout.RUN_GENERATION]) - runs == 1
    pool._control[LINE + layout.ALONE_UNTIL], pool._control[layout.SHORT_RUN_TICKS] = 0, limit
    assert limit > 0
    assert np.array_equal(out, wanted)


def test_a_part_of_a_run_has_all_workers() -> None:
    """Each worker reads its own copies of small values, which it has to compute itself in an earlier part."""
    plan, pool, out, wanted = pooled_chain()
    n = len(plan.schedule.thunks)
    pool._control[LINE + layout.ALONE_UNTIL] = FAR
    runs, out[:] = int(pool._control[layout.RUN_GENERATION]), 0
    for _ in range(2):
        plan.run(0, n // 2)
        plan.run(n // 2, n)
    assert int(pool._control[layout.RUN_GENERATION]) - runs == 4
    pool._control[LINE + layout.ALONE_UNTIL] = 0
    assert np.array_equal(out, wanted)


def test_the_caller_alone_wakes_nobody_and_gives_the_same_bits() -> None:
    plan, pool, out, wanted = pooled_chain()
    for alone_until, wakes in ((FAR, 0), (0, 1)):
        pool._control[LINE + layout.ALONE_UNTIL] = alone_until
        runs, out[:] = int(pool._control[layout.RUN_GENERATION]), 0
        plan.run()
        assert int(pool._control[layout.RUN_GENERATION]) - runs == wakes
        assert np.array_equal(out, wanted)
    pool._control[LINE + layout.ALONE_UNTIL] = 0


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"member": "0::/\n", "cpu.max": "150000 100000\n"}, [1.5]),
        ({"member": "0::/a/b\n", "a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, [2.0]),
        (
            {"member": "3:cpu,cpuacct:/a\n", "cpu/a/cpu.cfs_quota_us": "50000\n", "cpu/a/cpu.cfs_period_us": "100000"},
            [0.5],
        ),
        ({"member": "3:cpu:/\n", "cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000"}, []),
        ({"member": "2:memory:/a\n", "cpu/a/cpu.cfs_quota_us": "1\n", "cpu/a/cpu.cfs_period_us": "1"}, []),
        ({"member": "0::/\n", "cpu.max": "damaged"}, []),
        ({}, []),
    ],
)
def test_quotas_of_control_groups_are_found(files: dict[str, str], wanted: list[float], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(process.quotas(tmp_path / "member", tmp_path)) == wanted


@pytest.mark.parametrize(("quota", "wanted"), [(0.5, 1), (1.5, 1), (1e9, None)])
def test_a_quota_limits_the_cores(quota: float, wanted: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "quotas", lambda *paths: [quota])
    affinity = getattr(os, "sched_getaffinity", lambda process: range(os.cpu_count() or 1))
    assert process.available_cores() == (wanted or len(affinity(0)))


def test_there_are_no_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "available_cores", lambda: 2)
    monkeypatch.setattr(process, "limit_to_cores", True)  # tests of plans have more
    monkeypatch.delenv("CAMSHAFT_THREADS", raising=False)
    assert [process.thread_count(n) for n in (1, 2, 3, 1024, None)] == [1, 2, 2, 2, 2]
