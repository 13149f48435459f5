"""Who runs a plan: the calling thread alone, or a pool of daemon threads. Between native.py and execute.py."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Any

import numpy as np

from camshaft.errors import PlanError
from camshaft.plan import executor_ir as layout
from camshaft.plan.native import NativeExecutor, native_executor

SPIN_NS = 30_000
# More workers than cores: whoever is waited for may need this very core.
CROWDED_SPIN_NS = 1_000
EXIT_PATIENCE_S = 10.0

Words = np.ndarray[Any, np.dtype[np.int64]]


def aligned_bytes(nbytes: int, alignment: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Zeroed memory of `nbytes` whose address is a multiple of `alignment`."""
    whole = np.zeros(nbytes + alignment, np.uint8)
    start = -whole.ctypes.data % alignment
    return whole[start : start + nbytes]


def available_cores() -> int:
    """The cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


# All runners of the process: quieted at exit, made anew in a forked child.
_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


class Runner:
    """The calling thread alone. Whoever runs a plan holds `lock` and names it in `current` meanwhile."""

    workers = 1

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.current: object = None
        self._native: NativeExecutor | None = None
        _runners.add(self)

    def launch(self, records: int, first: int, last: int, failed: int) -> None:
        """Runs the records [first, last) of the array at this address. The caller holds the lock."""
        if self._native is None:
            self._native = native_executor()
        self._native.run_alone(records, first, last, failed)

    def forget(self) -> None:
        """Back to the state before the first run: a forked child has none of the parent's threads."""
        self.lock = threading.Lock()
        self.current = None

    def close_for_exit(self) -> None:
        """Waits for the run in progress and lets no other begin: a daemon thread that tries stays until the end."""
        self.lock.acquire(timeout=EXIT_PATIENCE_S)


class WorkerPool(Runner):
    """`workers` workers: the thread that calls `launch`, and workers - 1 daemon threads started by the first launch."""

    def __init__(self, workers: int) -> None:
        if workers < 2:
            raise PlanError(f"a pool of {workers} workers; wanted 2 or more (one runs without a pool)")
        super().__init__()
        self.workers = workers
        self._clear()

    def _clear(self) -> None:
        self._native = None
        self._threads: list[threading.Thread] = []
        self._control: Words = aligned_bytes(layout.CONTROL_WORDS * 8, layout.LINE_WORDS * 8).view(np.int64)
        self._address = self._control.ctypes.data

    def _start(self) -> NativeExecutor:
        native = native_executor()
        spin_ns = SPIN_NS if self.workers <= available_cores() else CROWDED_SPIN_NS
        self._control[layout.WAIT_FUNCTION] = native.wake.wait
        self._control[layout.WAKE_FUNCTION] = native.wake.wake
        self._control[layout.SPIN_BOUND] = max(1, int(spin_ns / native.pause_ns))
        self._control[layout.WORKERS] = self.workers
        for index in range(1, self.workers):
            name = f"camshaft-{index}-of-{self.workers}"
            thread = threading.Thread(target=_work, args=(native, self._control, index), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._stop(native)
                raise PlanError(f"worker {index} of {self.workers} does not start ({error}); ask for fewer") from error
            self._threads.append(thread)
        return native

    def _stop(self, native: NativeExecutor) -> None:
        native.stop(self._address)
        for thread in self._threads:
            thread.join(EXIT_PATIENCE_S)
        self._clear()

    def launch(self, records: int, first: int, last: int, failed: int) -> None:
        """As `Runner.launch`, with every worker."""
        if self._native is None:
            self._native = self._start()
        self._native.run(self._address, records, first, last, failed)

    def forget(self) -> None:
        super().forget()
        self._clear()

    def stop(self) -> None:
        """Ends the threads, after the run in progress. A later launch starts new ones."""
        with self.lock:
            if self._native is not None:
                self._stop(self._native)

    def close_for_exit(self) -> None:
        """As `Runner.close_for_exit`, and ends the threads."""
        if self.lock.acquire(timeout=EXIT_PATIENCE_S) and self._native is not None:
            self._stop(self._native)


def _work(native: NativeExecutor, control: Words, index: int) -> None:
    native.worker(control.ctypes.data, index)


def _for_each_runner(method: str) -> None:
    for runner in list(_runners):
        getattr(runner, method)()


atexit.register(_for_each_runner, "close_for_exit")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _for_each_runner("forget"))

_pools: dict[int, WorkerPool] = {}


def runner_for(threads: int) -> Runner:
    """A plan's runner: one of its own for 1 thread, else the pool that all plans of this many threads share."""
    if threads < 1:
        raise PlanError(f"threads={threads}; wanted 1 or more")
    if threads == 1:
        return Runner()
    if threads not in _pools:
        _pools.setdefault(threads, WorkerPool(threads))
    return _pools[threads]
