"""Submission: a queued run of a plan, and the thread that runs them in order."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from camshaft.errors import PlanError
from camshaft.graph.tensor import Array
from camshaft.plan.runtime.workers import inside_host_thunk

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


class Submission:
    """A run that is queued, in progress or done."""

    def __init__(self, future: Future[dict[str, Array]]) -> None:
        self._future = future

    def __repr__(self) -> str:
        return f"Submission({'done' if self.done() else 'not done'})"

    def done(self) -> bool:
        """Whether the run has ended, successfully or not."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the run has ended. Raises what it raised, or TimeoutError after `timeout` seconds."""
        self.result(timeout)

    def result(self, timeout: float | None = None) -> dict[str, Array]:
        """Returns copies of the outputs by name. Raises like `wait`.

        Raises PlanError in a host thunk without a timeout: the run may need the workers that run the thunk.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float, type(None))):
            raise PlanError(f"the timeout is {timeout!r:.80}; wanted seconds, or None")
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
    """The thread that executes a plan's submitted runs in order, started by the first one. A forked child starts its own."""

    def __init__(self) -> None:
        self._threads: dict[int, ThreadPoolExecutor] = {}  # by process
        self.closed = False

    def submit(self, run: Callable[[], dict[str, Array]]) -> Submission:
        """Queues a run. Raises PlanError if the plan is closed."""
        if self.closed:
            raise PlanError("the plan is closed")
        from concurrent.futures import ThreadPoolExecutor  # with logging 6 ms; few plans submit runs

        process = os.getpid()
        thread = self._threads.get(process)
        if thread is None:  # of concurrent callers the first wins; the executors of the others never start a thread
            thread = self._threads.setdefault(process, ThreadPoolExecutor(1, "camshaft-submit"))
        try:
            return Submission(thread.submit(run))
        except RuntimeError as error:
            raise PlanError("the plan is closed") from error

    def close(self) -> None:
        """Stops the thread after all queued runs."""
        self.closed = True
        thread = self._threads.get(os.getpid())
        if thread is not None:
            thread.shutdown()
