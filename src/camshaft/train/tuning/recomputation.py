"""The number of layers that gradients recompute, so that a step fits into a budget of memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from camshaft.errors import PlanError
from camshaft.train.memory import memory_by_kind
from camshaft.train.step.step import Step
from camshaft.train.tuning.methods.tuned import TunedModel


def fit(model: TunedModel, step: Step, batch: Sequence[Any], budget_nbytes: int) -> None:
    """Sets `model.recomputed` to the fewest layers, by an estimate, with which the plans of a step hold at most the budget.

    The plans are compiled to be sure, and where they hold more, with more layers. PlanError if all layers are not enough.
    """
    layers = model.config.n_layers

    @functools.cache
    def estimate(n: int) -> int:
        model.recomputed = n
        return step.estimated_nbytes(*batch)

    n, allowed = 0, float(budget_nbytes)
    while True:
        n = _fewest(n, layers, lambda n: estimate(n) <= allowed)  # noqa: B023 - called before `allowed` changes
        model.recomputed = n
        needed = sum(memory_by_kind(step.plans_of(*batch)).values())
        if needed <= budget_nbytes:
            return
        if n == layers:
            raise PlanError(
                f"memory: a step holds {_size(needed)} with all {layers} layers recomputed; wanted at most "
                f"{_size(budget_nbytes)} (lower batch=, raise micro_batches=, or lower length=)"
            )
        step.close()
        n, allowed = n + 1, estimate(n) * budget_nbytes / needed


def _fewest(low: int, high: int, fits: Any) -> int:
    """The least number from `low` to `high` that fits; `high` if none does."""
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
