"""Launches of the dispatch table on workers: programs by turns, each of them once, whatever their number."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from camshaft.backends.cpu.device import ENTRY
from camshaft.eager.launches import MOST_LAUNCHES, PARTS_PER_WORKER, _Launcher


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
