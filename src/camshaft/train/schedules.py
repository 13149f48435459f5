"""Schedules of the learning rate: functions of the number of finished steps, from 0 on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from camshaft.errors import PlanError


@dataclass(frozen=True)
class Schedule:
    """A learning rate by step: rises to `peak` over `warmup` steps, then follows `shape` from 1 to 0 until `steps`, which scales
    what is above `final`. The first step has peak / warmup, so that none is lost."""

    peak: float
    steps: int = 0
    warmup: int = 0
    final: float = 0.0
    stable: int = 0
    shape: Callable[[float], float] = field(default=lambda t: 1.0, repr=False)

    def __post_init__(self) -> None:
        for name in ("peak", "final"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise PlanError(f"schedule: got {name}={value!r:.60}; wanted a finite number from 0 on")
        for name in ("steps", "warmup", "stable"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise PlanError(f"schedule: got {name}={value!r:.60}; wanted a number of steps from 0 on")
        if self.steps and self.warmup + self.stable >= self.steps:
            raise PlanError(
                f"schedule: got {self.warmup} steps of warm-up and {self.stable} at the peak of {self.steps} in all; "
                "wanted some that are left"
            )

    def __call__(self, n: int) -> float:
        """The learning rate of the step after `n` finished ones."""
        if n < self.warmup:
            return self.peak * (n + 1) / self.warmup
        first = self.warmup + self.stable
        t = min(max(n - first, 0) / (self.steps - first), 1.0) if self.steps else 0.0
        return self.final + (self.peak - self.final) * self.shape(t)


def constant(peak: float, *, warmup: int = 0) -> Schedule:
    """`peak`, after a linear rise over `warmup` steps. Raises PlanError for numbers below 0, as all schedules do."""
    return Schedule(peak, warmup=warmup)


def linear(peak: float, steps: int, *, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Falls linearly from `peak`, where the warm-up ends, to `final` after `steps` steps in all."""
    return Schedule(peak, _some(steps), warmup, final, shape=lambda t: 1.0 - t)


def cosine(peak: float, steps: int, *, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Falls by half a period of a cosine from `peak` to `final` after `steps` steps in all."""
    return Schedule(peak, _some(steps), warmup, final, shape=lambda t: 0.5 * (1.0 + math.cos(math.pi * t)))


def warmup_stable_decay(peak: float, steps: int, *, warmup: int = 0, decay: int, final: float = 0.0) -> Schedule:
    """WSD: rises over `warmup` steps, stays at `peak`, and falls linearly to `final` over the last `decay` of `steps` steps."""
    if type(decay) is not int or type(warmup) is not int or not 0 < decay <= _some(steps) - warmup:
        raise PlanError(
            f"schedule: got {warmup!r:.60} steps of warm-up and {decay!r:.60} of decay; wanted 1 or more of decay, "
            f"in {steps} steps in all"
        )
    return Schedule(peak, steps, warmup, final, steps - warmup - decay, shape=lambda t: 1.0 - t)


def _some(steps: int) -> int:
    if type(steps) is not int or steps < 1:
        raise PlanError(f"schedule: got steps={steps!r:.60}; wanted a number of steps from 1 on")
    return steps
