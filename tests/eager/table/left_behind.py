"""What calls of a table leave behind: references and blocks of memory."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def leaks(call: Callable[[], object], watched: list[Any], n: int) -> tuple[list[int], int]:
    """How many references to the watched objects, and how many blocks of memory, n calls leave behind."""
    for _ in range(50):
        call()
    gc.collect()
    before, blocks = [sys.getrefcount(x) for x in watched], sys.getallocatedblocks()
    for _ in range(n):
        call()
    gc.collect()
    left = [sys.getrefcount(x) - n_before for x, n_before in zip(watched, before, strict=True)]
    return left, sys.getallocatedblocks() - blocks
