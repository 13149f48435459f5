"""Who measures the nodes of graphs before they are chosen, when tuning is on: tune/, which is built on plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from camshaft.errors import PlanError

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph

# Called with graphs after the passes, the override, and the number of workers.
Tuner: TypeAlias = "Callable[[Sequence[Graph], str | None, int], object]"

_load: Callable[[], Tuner] | None = None


def set_tuner(load: Callable[[], Tuner]) -> None:
    """Says how to get the tuner when the first plan asks for it; camshaft/__init__.py does."""
    global _load
    _load = load


def tuner() -> Tuner:
    """The tuner. PlanError when nobody said how to get it."""
    if _load is None:
        raise PlanError("tuning was asked for, and no tuner was set")
    return _load()
