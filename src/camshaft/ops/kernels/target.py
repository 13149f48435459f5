"""What `supports`, `cost` and `build` ask of a device and of the plan: workgroup memory, and the number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from camshaft.ops.op import Target

LIMIT = "workgroup_memory"
_WORKERS: ContextVar[int | None] = ContextVar("workers", default=None)


def has_threads(target: Target) -> bool:
    """Whether lanes are the threads of a workgroup (GPUs). Elsewhere lanes are vector elements, and scratch is on the stack."""
    return LIMIT in target.limits


def workgroup_nbytes(target: Target) -> int:
    """Bytes of memory that a workgroup may use; 0 where lanes are not threads."""
    return target.limits.get(LIMIT, 0)


def plan_workers() -> int | None:
    """The number of workers of the plan that this thread compiles; None outside of a compilation.

    Only costs may depend on it, and only between variants with the same results.
    """
    return _WORKERS.get()


@contextmanager
def for_workers(count: int) -> Iterator[None]:
    """Sets `plan_workers` in the body (plan/compile.py)."""
    token = _WORKERS.set(count)
    try:
        yield
    finally:
        _WORKERS.reset(token)
