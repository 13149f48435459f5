"""Which tracer records now: the operators of traced values speak to it."""

from __future__ import annotations

from typing import Any

from camshaft.errors import KernelError

# The tracer that records now (lang/tracing/tracer.py); the operators of Value speak to it.
recorders: list[Any] = []


def recorder() -> Any:
    """The tracer that is recording. KernelError outside a kernel."""
    if not recorders:
        raise KernelError("a traced value was used outside of its kernel")
    return recorders[-1]
