"""Extent: a size with an upper bound, fixed for one run."""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.errors import ShapeError

MAX_BOUND = 2**63 - 1


@dataclass(frozen=True)
class Extent:
    """A run-time size from 0 to `bound` (an int64 in the plan's run block). Equal when name and bound are equal.

    It takes part in no arithmetic: what depends on it says so by name, and the executor reads its active value.
    ShapeError when the name is empty or the bound is not a whole number from 1 to 2**63 - 1.
    """

    name: str
    bound: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ShapeError(f"an Extent got the name {self.name!r}; wanted a string that is not empty")
        if isinstance(self.bound, bool) or not isinstance(self.bound, int) or not 1 <= self.bound <= MAX_BOUND:
            raise ShapeError(
                f"Extent {self.name!r} got the bound {self.bound!r}; wanted a whole number from 1 to 2**63-1"
            )
