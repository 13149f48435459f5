"""How the dispatch table's large calls reach the workers, which live on a later floor: plan/ gives a way. Below array_op.py."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import ENTRY

# A launch is three words: the entry, the address of its argument block, the number of programs.
LAUNCH_WORDS = 3
Runner = Callable[[int, int], None]
_runner: Runner | None = None
_workers: Callable[[], int] | None = None


def provide(runner: Runner, workers: Callable[[], int]) -> None:
    """`runner(address, n)` runs n launches that lie at this address, one after the other, with all of `workers()` workers."""
    global _runner, _workers
    _runner, _workers = runner, workers


def several_workers() -> bool:
    """Whether there is somebody to share work with."""
    return _workers is not None and _workers() > 1


def run_launches(address: int, n: int = 1) -> None:
    """Runs n launches that lie at this address: with the workers where there are some, else on this thread."""
    if _runner is not None:
        _runner(address, n)
        return
    words = np.ctypeslib.as_array((ctypes.c_int64 * (LAUNCH_WORDS * n)).from_address(address))
    for entry, args, programs in words.reshape(n, LAUNCH_WORDS).tolist():
        ENTRY(entry)(args, 0, programs)


def launch_words(launches: list[tuple[int, int, int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The words of launches, to keep while they run."""
    return np.array(launches, np.int64)
