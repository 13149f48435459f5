"""Functions of observe/ and tune/ that plans call, by name; their modules are imported when they are first called.

`profile` is ExecutionPlan.profile; `tune_graphs` measures kernels before they are chosen; `lowered` may replace thunks before
memory is planned, and `built` a bound plan, where settings ask for instrumented runs (instrument.py). camshaft/__init__.py fills
the table, so this module imports next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

_homes: dict[str, str] = {}


def provide(homes: dict[str, str]) -> None:
    """Says in which module the function of each name is."""
    _homes.update(homes)


def hook(name: str) -> Callable[..., Any]:
    """The function of that name."""
    found: Callable[..., Any] = getattr(import_module(_homes[name]), name)
    return found
