"""The dispatch table with workers: large calls run as records of the executor, on the pool that plans use. Above workers.py.

camshaft.table comes from here; dispatch/ itself knows no workers and would run everything on the calling thread.
"""

from __future__ import annotations

import functools

import numpy as np

from camshaft.backends.cpu.compile import NativeLibrary, load_object
from camshaft.backends.cpu.device import object_code
from camshaft.dispatch import parallel
from camshaft.dispatch.kernels import (
    dispatch_elementwise_generic,
    kernel_elementwise_simd,
    kernel_matmul_blas_direct,
    kernel_matmul_metal,
    kernel_matmul_scalar,
    kernel_matmul_simd,
    kernel_matmul_webgpu,
    kernel_reduction_simd,
)
from camshaft.dispatch.tables import DispatchTable, get_dispatch_table, init_dispatch_table, select_kernels, table
from camshaft.plan import executor_layout as layout
from camshaft.plan import turns_ir as layout_of_turns
from camshaft.plan.workers import Words, aligned_bytes, inside_host_thunk, runner_for
from camshaft.settings import thread_count

__all__ = [
    "DispatchTable",
    "dispatch_elementwise_generic",
    "get_dispatch_table",
    "init_dispatch_table",
    "kernel_elementwise_simd",
    "kernel_matmul_blas_direct",
    "kernel_matmul_metal",
    "kernel_matmul_scalar",
    "kernel_matmul_simd",
    "kernel_matmul_webgpu",
    "kernel_reduction_simd",
    "select_kernels",
    "table",
]
# Launches that are handed over at once; a call with more takes several turns.
MOST_LAUNCHES = 16
# Parts of a launch for each worker: small ones even out what disturbs one worker, large ones cost fewer atomics.
PARTS_PER_WORKER = 16
_LAUNCH_NBYTES, _TURN_NBYTES = 8 * parallel.LAUNCH_WORDS, 8 * layout_of_turns.TURN_WORDS


@functools.cache
def _take() -> NativeLibrary:
    text = layout_of_turns.turns_ir()
    return load_object(object_code(f"turns|{text}", lambda: text))


class _Launcher:
    """Runs launches with `threads` workers, who take programs by turns. Each waits for the one before."""

    def __init__(self, threads: int) -> None:
        self._runner = runner_for(threads)
        turns: Words = aligned_bytes(MOST_LAUNCHES * _TURN_NBYTES, 128).view(np.int64)
        self._turns = turns.reshape(MOST_LAUNCHES, -1)
        self._turns[:, layout_of_turns.PARTS] = PARTS_PER_WORKER * threads
        words: Words = aligned_bytes((MOST_LAUNCHES * layout.RECORD_WORDS + 1) * 8, 128).view(np.int64)
        records = words[:-1].reshape(MOST_LAUNCHES, -1)
        records[:, layout.WAIT] = 1
        self._library = _take()  # of two threads that come first at once each may have made one; its code is held here
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
                    self._turns[i, layout_of_turns.LAUNCH] = address + (first + i) * _LAUNCH_NBYTES
                    self._turns[i, layout_of_turns.TAKEN] = 0
                runner.launch(self._records, 0, count, self._failed)


@functools.cache
def _launcher(threads: int) -> _Launcher:
    return _Launcher(threads)


@functools.cache
def _threads() -> int:
    return thread_count()


def _run(address: int, n: int) -> None:
    """By this thread alone inside a host thunk, whose plan has the workers."""
    _launcher(1 if inside_host_thunk() else _threads()).run(address, n)


parallel.provide(_run, _threads)
