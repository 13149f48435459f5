"""Submission: a run in progress that can be waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from camshaft.errors import PlanError
from camshaft.plan.runtime.workers import inside_host_thunk

Results = dict[str, np.ndarray[Any, Any]]


class Submission:
    """One run, in the queue, in progress or done."""

    def __init__(self, future: Future[Results]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the run has ended; raises what it raised, or TimeoutError after `timeout` seconds."""
        self.result(timeout)

    def result(self, timeout: float | None = None) -> Results:
        """The outputs by name, this run's own copies. Raises as `wait`; PlanError where a host thunk's function would wait
        without end for what may wait for the workers it is called by."""
        if timeout is None and inside_host_thunk() and not self._future.done():
            raise PlanError(
                "a host thunk's function waited, without a timeout, for a run that may need its own workers"
            )
        try:
            return self._future.result(timeout)
        except TimeoutError:
            if self._future.done():
                raise
            raise TimeoutError(f"the run has not ended after {timeout:g} s") from None


class Submitter:
    """The thread that takes a plan's submitted runs one by one, started by the first. A forked child starts its own."""

    def __init__(self) -> None:
        self._threads: dict[int, ThreadPoolExecutor] = {}  # by process

    def submit(self, run: Callable[[], Results]) -> Submission:
        """Queues a run. PlanError once the plan is closed."""
        process = os.getpid()
        thread = self._threads.get(process)
        if thread is None:  # of several callers at once, all get the executor of one; the others never start a thread
            thread = self._threads.setdefault(process, ThreadPoolExecutor(1, "camshaft-submit"))
        try:
            return Submission(thread.submit(run))
        except RuntimeError as error:
            raise PlanError("the plan is closed") from error

    def close(self) -> None:
        """Ends the thread, after all that is queued."""
        thread = self._threads.get(os.getpid())
        if thread is not None:
            thread.shutdown()
