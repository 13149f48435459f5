"""Large eager calls on the worker pool: launches run as records of the executor that plans use."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from camshaft.backends.cpu.compile import NativeLibrary, load_object
from camshaft.backends.cpu.device import object_code
from camshaft.lang.kernel import files_digest
from camshaft.plan.memory.allocate import aligned_bytes
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.workers import Words, inside_host_thunk, runner_for
from camshaft.process import eager_threads
from camshaft.store.files import digest_of

# A launch is three words: the entry, the address of its argument block, the number of programs.
LAUNCH_WORDS = 3
# Launches that are handed over at once; a call with more takes several turns.
MOST_LAUNCHES = 16
# Parts of a launch for each worker: small ones even out what disturbs one worker, large ones cost fewer atomics.
PARTS_PER_WORKER = 16
_LAUNCH_NBYTES, _TURN_NBYTES = 8 * LAUNCH_WORDS, 8 * layout.DYNAMIC_WORDS


@functools.cache
def _take() -> NativeLibrary:
    def source() -> str:
        from camshaft.plan.runtime.native.executor import dynamic_ir

        return dynamic_ir()

    return load_object(object_code(digest_of("turns", files_digest("plan/runtime/native/*.py")), source))


class _Launcher:
    """Runs launches with `threads` workers, who take programs by turns. Each waits for the one before."""

    def __init__(self, threads: int) -> None:
        self._runner = runner_for(threads)
        turns: Words = aligned_bytes(MOST_LAUNCHES * _TURN_NBYTES, 128).view(np.int64)
        self._turns = turns.reshape(MOST_LAUNCHES, -1)
        self._turns[:, layout.DYNAMIC_PARTS] = PARTS_PER_WORKER * threads
        words: Words = aligned_bytes((MOST_LAUNCHES * layout.RECORD_WORDS + 1) * 8, 128).view(np.int64)
        records = words[:-1].reshape(MOST_LAUNCHES, -1)
        records[:, layout.WAIT] = 1
        self._library = _take()  # two threads may each have made one at first; this keeps the code of ours loaded
        records[:, layout.ENTRY] = self._library.address("camshaft_take")
        records[:, layout.ARGS] = turns.ctypes.data + _TURN_NBYTES * np.arange(MOST_LAUNCHES)
        records[:, layout.CONSTANT] = threads
        self._words, self._records, self._failed = words, words.ctypes.data, words[-1:].ctypes.data

    def run(self, address: int, n: int) -> None:
        runner = self._runner
        with runner.lock:
            for first in range(0, n, MOST_LAUNCHES):
                count = min(n - first, MOST_LAUNCHES)
                for i in range(count):
                    self._turns[i, layout.DYNAMIC_LAUNCH] = address + (first + i) * _LAUNCH_NBYTES
                    self._turns[i, layout.DYNAMIC_NEXT] = 0
                runner.launch(self._records, 0, count, self._failed)


@functools.cache
def _launcher(threads: int) -> _Launcher:
    return _Launcher(threads)


def run_launches(address: int, n: int = 1) -> None:
    """Runs the n launches at `address`, one after the other, each by all workers.

    Inside a host thunk this thread runs them alone, since its plan has the workers.
    """
    _launcher(1 if inside_host_thunk() else eager_threads()).run(address, n)


def launch_words(launches: list[tuple[int, int, int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The words of launches; they must live while the launches run."""
    return np.array(launches, np.int64)
