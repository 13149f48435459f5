"""The threads that run plans: the calling thread alone, or a pool of daemon threads."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np

from camshaft.errors import PlanError
from camshaft.plan.memory.allocate import aligned_bytes
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.library import NativeExecutor, native_executor
from camshaft.plan.runtime.native.os_wait import core_address
from camshaft.process import available_cores

SPIN_NS = 30_000
# The caller spins longer than a sleeping worker takes to wake in a guest whose core was halted, if each worker has a core.
CALLER_SPIN_NS = 500_000
# With more workers than cores, a worker that others wait for may need this core.
CROWDED_SPIN_NS = 1_000
# Runs up to this time are alone while the other workers have no core (native/alone.py).
SHORT_RUN_NS = 20_000_000
EXIT_PATIENCE_S = 10.0

Words = np.ndarray[Any, np.dtype[np.int64]]


# All runners of the process, stopped at exit and reset in a forked child.
_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


class Runner:
    """Runs plans on the calling thread alone. `lock` is locked during a run, and `current` is the plan that runs."""

    workers = 1

    def __init__(self, executor: Callable[[], NativeExecutor] = native_executor) -> None:
        self._executor = executor
        self.lock = threading.Lock()
        self.current: object = None
        self._native: NativeExecutor | None = None
        _runners.add(self)

    def launch(self, records: int, first: int, last: int, failed: int, whole: bool = True) -> None:
        """Runs the records [first, last) of the array at this address. The caller has locked `lock`. `whole`: no later launch
        continues this run."""
        if self._native is None:
            self._native = self._executor()
        self._native.run_alone(records, first, last, failed)

    def forget(self) -> None:
        """Resets to the state before the first run: a forked child has none of the parent's threads."""
        self.lock = threading.Lock()
        self.current = None

    def close_for_exit(self) -> None:
        """Waits for the run in progress and blocks later ones: a daemon thread that tries blocks until exit."""
        self.lock.acquire(timeout=EXIT_PATIENCE_S)


class _Calling(threading.local):
    """Runners whose runs are inside a host thunk's function on this thread, the innermost last."""

    def __init__(self) -> None:
        self.runners: list[Runner] = []


calling = _Calling()


def inside_host_thunk() -> bool:
    """Whether this thread is executing a host thunk's function."""
    return bool(calling.runners)


def idle(runner: Runner) -> AbstractContextManager[object]:
    """Returns a context without runs of this runner, except a run that called this thread."""
    return nullcontext() if runner in calling.runners else runner.lock


class WorkerPool(Runner):
    """`workers` workers: the thread that calls `launch`, and workers - 1 daemon threads started by the first launch."""

    def __init__(self, workers: int, executor: Callable[[], NativeExecutor] = native_executor) -> None:
        if workers < 2:
            raise PlanError(f"a pool of {workers} workers; wanted 2 or more (one runs without a pool)")
        super().__init__(executor)
        self.workers = workers
        self._clear()

    def _clear(self) -> None:
        self._native = None
        self._threads: list[threading.Thread] = []
        self._control: Words = _control_block(self.workers)
        self._address = self._control.ctypes.data
        self._allowed: set[int] = set()
        self._core_of: Callable[[], int] | None = None
        self._left_out = -1

    def _start(self) -> NativeExecutor:
        native = self._executor()
        roomy = self.workers <= available_cores()
        short = max(1, int(CROWDED_SPIN_NS / native.pause_ns))
        self._control[layout.WAIT_FUNCTION] = native.wake.wait
        self._control[layout.WAKE_FUNCTION] = native.wake.wake
        self._control[layout.SPIN_BOUND] = max(1, int(SPIN_NS / native.pause_ns)) if roomy else short
        self._control[layout.SHORT_SPIN_BOUND] = short
        self._control[layout.CORE_FUNCTION] = core_address() if roomy else 0
        if roomy and core_address():
            self._control[layout.CALLER_SPIN_BOUND] = max(1, int(CALLER_SPIN_NS / native.pause_ns))
            self._core_of = ctypes.CFUNCTYPE(ctypes.c_int)(core_address())
            self._allowed = set(os.sched_getaffinity(0))
        self._control[layout.WORKERS] = self.workers
        self._control[layout.SHORT_RUN_TICKS] = int(SHORT_RUN_NS * native.ticks_per_ns)
        try:
            for index in range(1, self.workers):
                self._start_thread(native, index)
        except BaseException:
            self._stop(native)
            raise
        return native

    def _start_thread(self, native: NativeExecutor, index: int) -> None:
        name = f"camshaft-{index}-of-{self.workers}"
        thread = threading.Thread(target=_work, args=(native, self._control, index), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise PlanError(f"worker {index} of {self.workers} does not start ({error}); ask for fewer") from error
        self._threads.append(thread)

    def _stop(self, native: NativeExecutor) -> None:
        native.stop(self._address)
        for thread in self._threads:
            thread.join(EXIT_PATIENCE_S)
        self._clear()

    def launch(self, records: int, first: int, last: int, failed: int, whole: bool = True) -> None:
        """As `Runner.launch`, with every worker; a whole run may be alone (native/alone.py). A part may not, because each worker
        reads its own copies of small values that an earlier part computed (lowering/replicate_small.py)."""
        if self._native is None:
            self._native = self._start()
        elif self._core_of is not None:
            self._leave_out(self._core_of())
        run = self._native.run if whole else self._native.run_all
        run(self._address, records, first, last, failed)

    def _leave_out(self, core: int) -> None:
        """Keeps the workers off the caller's core.

        A KVM guest sees halted cores as busy and wakes a worker on the caller's core, where it waits about 3 ms to be moved: a
        matrix product of 1 ms took 3 ms.
        """
        others = self._allowed - {core}
        if core == self._left_out or not others:
            return
        self._left_out = core
        for thread in self._threads:
            # fails if a core was taken from the process meanwhile; the thread then stays where it is, which is only slower
            with suppress(OSError):
                os.sched_setaffinity(thread.native_id or 0, others)

    def forget(self) -> None:
        super().forget()
        self._clear()

    def stop(self) -> None:
        """Stops the threads after the run in progress. A later launch starts new ones."""
        with self.lock:
            if self._native is not None:
                self._stop(self._native)

    def close_for_exit(self) -> None:
        """Like `Runner.close_for_exit`; also stops the threads."""
        if self.lock.acquire(timeout=EXIT_PATIENCE_S) and self._native is not None:
            self._stop(self._native)


def _work(native: NativeExecutor, control: Words, index: int) -> None:
    while native.worker(control.ctypes.data, index):
        _move(control, index)


def _move(control: Words, index: int) -> None:
    """Moves this thread to a core without another worker, then restores its affinity mask."""
    workers = control[layout.WORKER_LINES :].reshape(-1, layout.WORDS_PER_WORKER)
    taken = np.delete(workers[:, layout.CORE], index)
    allowed = os.sched_getaffinity(0)
    free = sorted(allowed.difference(taken.tolist()))
    # fails if a core was taken from the process meanwhile; the thread then stays where it is, which is only slower
    with suppress(OSError):
        if free:
            os.sched_setaffinity(0, {free[index % len(free)]})
            os.sched_setaffinity(0, allowed)


def _control_block(workers: int) -> Words:
    words = layout.WORKER_LINES + workers * layout.WORDS_PER_WORKER
    return aligned_bytes(words * 8, layout.LINE_WORDS * 8).view(np.int64)


def _for_each_runner(method: str) -> None:
    for runner in list(_runners):
        getattr(runner, method)()


atexit.register(_for_each_runner, "close_for_exit")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _for_each_runner("forget"))

_pools: dict[int, WorkerPool] = {}


def runner_for(threads: int) -> Runner:
    """Returns a plan's runner: a new one for 1 thread, else the pool shared by all plans with this many threads."""
    if threads < 1:
        raise PlanError(f"threads={threads}; wanted 1 or more")
    if threads == 1:
        return Runner()
    if threads not in _pools:
        _pools.setdefault(threads, WorkerPool(threads))
    return _pools[threads]
