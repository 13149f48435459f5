"""Extent: a dimension with an upper bound, whose actual size is set per run."""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.errors import ShapeError

MAX_BOUND = 2**63 - 1


@dataclass(frozen=True)
class Extent:
    """A run-time size from 0 to `bound`, stored as int64 in the plan's run block. Equal if name and bound are equal.

    Extents support no arithmetic; the executor reads their active values. Raises ShapeError for an empty name or a bound that
    is not an integer from 1 to 2**63 - 1.
    """

    name: str
    bound: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ShapeError(f"an Extent got the name {self.name!r}; wanted a non-empty string")
        if isinstance(self.bound, bool) or not isinstance(self.bound, int) or not 1 <= self.bound <= MAX_BOUND:
            raise ShapeError(f"Extent {self.name!r} got the bound {self.bound!r}; wanted an integer from 1 to 2**63-1")
