"""Splits the cases of a parametrized test: a part that covers them for every run, and the rest marked `full`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def full(*values: Any, **options: Any) -> Any:
    """A case that only `-m full` runs."""
    return pytest.param(*values, marks=pytest.mark.full, **options)


def quick_of(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """One parameter's values, of which some are in the default run."""
    every = list(values)
    assert all(value in every for value in quick), f"{quick} are not among {every}"
    wrap = [value if isinstance(value, tuple) else (value,) for value in every]
    return [pytest.param(*v) if value in quick else full(*v) for value, v in zip(every, wrap, strict=True)]


def pairwise(*axes: Sequence[Any]) -> list[Any]:
    """All combinations of several parameters' values; the default run has each pair of values of two parameters."""
    every = list(product(*(range(len(axis)) for axis in axes)))
    shown = [set(combinations(enumerate(case), 2)) for case in every]
    quick = set(covering(shown))
    values = [tuple(axis[i] for axis, i in zip(axes, case, strict=True)) for case in every]
    return [pytest.param(*value) if i in quick else full(*value) for i, value in enumerate(values)]


def each_value(*axes: Sequence[Any], times: int = 1) -> list[Any]:
    """All combinations of several parameters' values; the default run has each value, `times` times that of the longest axis."""
    every = list(product(*(range(len(axis)) for axis in axes)))
    n = max(len(axis) for axis in axes)
    # the shorter axes start one later in each round, so that rounds differ
    quick = {tuple((i + r * (len(axis) < n)) % len(axis) for axis in axes) for r in range(times) for i in range(n)}
    values = [tuple(axis[i] for axis, i in zip(axes, case, strict=True)) for case in every]
    return [pytest.param(*value) if case in quick else full(*value) for case, value in zip(every, values, strict=True)]


def covering(shown: Sequence[set[Any]], cost: Sequence[int] | None = None, most: int | None = None) -> list[int]:
    """Indexes of some of the sets whose union is that of all, or the first `most`.

    Greedy: the one with the most that is new, then the cheapest, then the first.
    """
    left, missing, chosen = dict(enumerate(shown)), set().union(*shown), []
    while missing and len(chosen) != most:
        best = max(left, key=lambda i: (len(left[i] & missing), -cost[i] if cost else 0, -i))
        chosen.append(best)
        missing -= left.pop(best)
    return sorted(chosen)
