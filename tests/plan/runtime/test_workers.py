"""Worker pools: shared, started again, busy machines, cores that workers keep off, sleep."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from plan_kernels import align, chain_plan

from camshaft.errors import PlanError
from camshaft.plan.runtime import workers
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.os_wait import core_address
from camshaft.plan.runtime.workers import WorkerPool, runner_for


def test_pools_are_shared_by_worker_count_and_start_again() -> None:
    pool = runner_for(3)
    assert isinstance(pool, WorkerPool)
    assert pool is runner_for(3)
    assert runner_for(1) is not runner_for(1)
    plan, out, wanted = chain_plan(5, 7, 3)
    pool.stop()  # another test may have left it running
    for _ in range(3):
        before = threading.active_count()
        plan.run()
        assert threading.active_count() == before + 2
        pool.stop()
        assert threading.active_count() == before
    assert np.array_equal(out, wanted)
    with pytest.raises(PlanError, match="wanted 1 or more"):
        runner_for(0)


def test_a_thread_that_does_not_start_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, out, wanted = chain_plan(5, 7, 4)
    pool = runner_for(4)
    assert isinstance(pool, WorkerPool)
    pool.stop()  # another test may have left it running
    start, started = threading.Thread.start, []

    def refuse_the_third(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_the_third)
        with pytest.raises(PlanError, match="worker 3 of 4"):
            plan.run()
    assert not any(thread.is_alive() for thread in started)
    plan.run()
    assert np.array_equal(out, wanted)


def test_workers_that_sleep_at_once_lose_no_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SPIN_NS", 0)
    monkeypatch.setattr(workers, "CROWDED_SPIN_NS", 0)
    for threads in (2, 3):
        plan, out, wanted = chain_plan(20, 3, threads)
        pool = runner_for(threads)
        assert isinstance(pool, WorkerPool)
        pool.stop()
        for _ in range(300):
            out[:] = 0
            plan.run()
            assert np.array_equal(out, wanted)
        pool.stop()


def test_a_busy_machine_slows_a_plan_but_does_not_stop_it() -> None:
    burn = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(workers.available_cores())]
    try:
        for threads in (2, 2 * workers.available_cores() + 1):
            plan, out, wanted = chain_plan(100, 3, threads)
            start = time.monotonic()
            for _ in range(20):
                plan.run()
            assert np.array_equal(out, wanted)
            # A barrier that spins until its time slice ends takes milliseconds: 2000 of them, far over this.
            assert time.monotonic() - start < 20
    finally:
        for process in burn:
            process.kill()
            process.wait()


@pytest.mark.skipif(not core_address() or workers.available_cores() < 2, reason="one core, or a system that sees to it")
def test_a_worker_that_shares_its_callers_core_moves_away(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, *_ = chain_plan(20, 3, 2)
    plan.run()
    pool, allowed, move, moved = runner_for(2), os.sched_getaffinity(0), workers._move, threading.Event()
    assert isinstance(pool, WorkerPool)
    worker, core = pool._threads[0].native_id, min(allowed)
    assert worker is not None

    def move_on_all_cores(control: workers.Words, index: int) -> None:
        os.sched_setaffinity(0, allowed)
        move(control, index)
        assert os.sched_getaffinity(0) == allowed
        moved.set()

    monkeypatch.setattr(workers, "_move", move_on_all_cores)
    monkeypatch.setattr(pool, "_left_out", core)  # or the run itself would keep the worker off
    try:
        os.sched_setaffinity(0, {core})
        os.sched_setaffinity(worker, {core})
        pool._control[layout.WORKER_LINES + layout.ALONE_UNTIL] = (
            0  # the first run may have shown that the machine is busy
        )
        plan.run()
        assert moved.wait(10)
    finally:
        os.sched_setaffinity(0, allowed)
        os.sched_setaffinity(worker, allowed)


@pytest.mark.skipif(not core_address() or workers.available_cores() < 2, reason="one core, or a system that sees to it")
def test_workers_are_kept_off_their_callers_core(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, *_ = chain_plan(20, 3, 2)
    pool, allowed = runner_for(2), os.sched_getaffinity(0)
    assert isinstance(pool, WorkerPool)
    pool.stop()  # an earlier test may have started it with fewer cores
    plan.run()
    worker = pool._threads[0].native_id
    assert worker is not None
    monkeypatch.setattr(pool, "_left_out", -1)
    try:
        for core in [*sorted(allowed)[:2]] * 2:
            os.sched_setaffinity(0, {core})
            plan.run()
            assert os.sched_getaffinity(worker) == allowed - {core}
    finally:
        os.sched_setaffinity(0, allowed)


def test_idle_workers_sleep() -> None:
    plan, *_ = chain_plan(20, 3, 2)
    plan.run()
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


def test_aligned_bytes() -> None:
    for nbytes in (0, 1, 100):
        memory = workers.aligned_bytes(nbytes, 256)
        assert memory.nbytes == nbytes
        assert memory.ctypes.data % 256 == 0 or nbytes == 0
        assert not memory.any()
    assert align(np.ones(3)).ctypes.data % 64 == 0
