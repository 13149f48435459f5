"""Resets state in a forked child: locks that the parent's other threads may have held, and the work of those threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary


class Renewed(Protocol):
    """Something of threads that a forked child does not have."""

    def renew(self) -> None:
        """Forget the parent's other threads; called in the child, before anything else runs there."""


R = TypeVar("R", bound=Renewed)
_all: WeakValueDictionary[int, Renewed] = WeakValueDictionary()  # in the order of their making


def renewed(each: R) -> R:
    """Have `each.renew()` called in every forked child, as long as it is there; returns it."""
    _all[id(each)] = each
    return each


class ForkLock:
    """A reentrant lock, free in a forked child unless the thread that forked has it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        renewed(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """Hold the lock unless another thread has it; whether this one does."""
        lock = self._lock
        is_ours = lock.acquire(blocking=False)
        try:
            yield is_ours
        finally:
            if is_ours:
                lock.release()

    def renew(self) -> None:
        """Be free, if a thread had it that is the parent's."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


def _in_child() -> None:
    for each in list(_all.values()):
        each.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
