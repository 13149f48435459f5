"""Spread: median, least and most of some repeats, as `camshaft bench` and the comparison show them. Bottom of tune/."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Spread:
    """Median, least and most of some repeats."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def map(self, function: Callable[[float], float]) -> Spread:
        """Of a quantity that follows from this one, rising or falling."""
        return Spread(function(self.median), *sorted((function(self.min), function(self.max))))

    def rounded(self, digits: int = 4) -> dict[str, float]:
        """As JSON, to so many significant digits."""
        return {name: float(f"{value:.{digits}g}") for name, value in asdict(self).items()}
