"""Validation of a run: the loss of batches that are not learned, the parameters with the lowest, and when to stop early."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from camshaft.errors import PlanError, TrainingError
from camshaft.train.step.step import Step

Array = np.ndarray[Any, Any]
PREFIX = "best/"
_PARAMETERS = "parameters/"


@dataclass(frozen=True, eq=False)
class Validation:
    """The loss of `batches` after every `every` steps: their mean, weighted by `weights` where they are given.

    With `patience` a run stops after as many validations in a row that were not lower than the lowest before. PlanError for
    numbers below 1, and weights that do not fit the batches.
    """

    batches: Sequence[tuple[Any, ...]]
    every: int
    patience: int | None = None
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("every", *(("patience",) if self.patience is not None else ())):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise PlanError(f"Validation: got {name}={value!r:.60}; wanted 1 or more")
        weights = self.weights if self.weights is not None else [1.0] * len(self.batches)
        if not self.batches or len(weights) != len(self.batches) or not sum(weights) > 0:
            raise PlanError(
                f"Validation: got {len(self.batches)} batches and {len(weights)} weights; wanted one or more batches, with a "
                "weight each whose sum is above 0"
            )

    def loss(self, step: Step) -> float:
        """The loss now. TrainingError if it is not finite."""
        weights = self.weights if self.weights is not None else [1.0] * len(self.batches)
        total = sum(w * step.evaluate(*batch) for w, batch in zip(weights, self.batches, strict=True))
        found = total / sum(weights)
        if not math.isfinite(found):
            raise TrainingError(f"step {step.number}: the validation loss is {found}; wanted a finite number")
        return float(found)


@dataclass(frozen=True)
class Best:
    """The lowest validation loss so far, its step and its parameters; `misses` validations came since, the last after step
    `measured`."""

    loss: float = math.inf
    step: int = 0
    misses: int = 0
    measured: int = 0
    parameters: Mapping[str, Array] = field(default_factory=dict, repr=False)

    def after(self, loss: float, step: Step) -> Best:
        """What is best after one more validation."""
        if loss < self.loss:
            held = {n: a for n, a in step.states.items() if n.startswith(_PARAMETERS)}
            return Best(loss, step.number, 0, step.number, {n.removeprefix(_PARAMETERS): a for n, a in held.items()})
        return Best(self.loss, self.step, self.misses + 1, step.number, self.parameters)

    @property
    def states(self) -> dict[str, Array]:
        """All of it by names that start with `best/`, for a checkpoint; nothing before the first validation."""
        if not self.measured:
            return {}
        numbers = np.array([self.step, self.misses, self.measured], np.int64)
        held = {f"{PREFIX}{_PARAMETERS}{name}": a for name, a in self.parameters.items()}
        return {f"{PREFIX}loss": np.array(self.loss), f"{PREFIX}numbers": numbers, **held}


def best_of(states: Mapping[str, Array]) -> Best:
    """What the states of a checkpoint say of the validations before it."""
    if f"{PREFIX}numbers" not in states:
        return Best()
    start = f"{PREFIX}{_PARAMETERS}"
    held = {name.removeprefix(start): a for name, a in states.items() if name.startswith(start)}
    step, misses, measured = map(int, states[f"{PREFIX}numbers"])
    return Best(float(states[f"{PREFIX}loss"]), step, misses, measured, held)
