"""How many workers the plan in the making has: for costs of variants that read memory. Set by plan/compile.py.

A cost may look, never a result: variants that a number of workers decides between give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WORKERS: ContextVar[int | None] = ContextVar("workers", default=None)


def plan_workers() -> int | None:
    """The workers of the plan that is being made on this thread; None outside of one."""
    return _WORKERS.get()


@contextmanager
def for_workers(count: int) -> Iterator[None]:
    """Costs asked for in the body are of a plan of so many workers."""
    token = _WORKERS.set(count)
    try:
        yield
    finally:
        _WORKERS.reset(token)
