"""Helpers for the tests of bench/compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def no_watch(title: str) -> Iterator[Callable[[int, int], None]]:
    """Shows no progress."""
    yield lambda done, total: None
