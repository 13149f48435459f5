"""Launches of the dispatch table on workers: programs by turns, each of them once, whatever their number."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

import camshaft as cs
from camshaft.backends.cpu.device import ENTRY
from camshaft.dtypes import f32
from camshaft.eager.shapes.launches import MOST_LAUNCHES, PARTS_PER_WORKER, _Launcher
from camshaft.eager.shapes.runners import HostRunner
from camshaft.ops.fft.sizes import table


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_program_of_every_launch_is_taken_once_and_in_order_of_launches(threads: int) -> None:
    sizes = [1, 2, 3, threads * PARTS_PER_WORKER - 1, threads * PARTS_PER_WORKER, 1000, 7] * 3
    assert len(sizes) > MOST_LAUNCHES
    lock, seen = threading.Lock(), []

    def run(block: int, first: int, last: int) -> None:
        with lock:
            seen.append((block, first, last))

    entry = ENTRY(run)
    code = ctypes.cast(entry, ctypes.c_void_p).value
    words = np.array([(code, i, n) for i, n in enumerate(sizes)], np.int64)
    launcher = _Launcher(threads)
    for _ in range(2):
        seen.clear()
        launcher.run(words.ctypes.data, len(sizes))
        blocks = [block or 0 for block, _, _ in seen]
        assert blocks == sorted(blocks), "a launch waits for the one before"
        for i, n in enumerate(sizes):
            taken = sorted(p for block, first, last in seen if (block or 0) == i for p in range(first, last))
            assert taken == list(range(n))


@pytest.mark.full
def test_a_repeated_call_of_many_launches_runs_no_python(monkeypatch) -> None:
    x = np.ones((1, 1 << 15), np.float32)
    factors = table("rfft", x.shape[1], f32)
    fft_rows = cs.table().fft_rows
    wanted = fft_rows(x, factors, form="rfft")
    monkeypatch.setattr(HostRunner, "__call__", None)
    np.testing.assert_array_equal(fft_rows(x, factors, form="rfft"), wanted)
