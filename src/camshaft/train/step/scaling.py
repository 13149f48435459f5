"""Loss scaling (Micikevicius et al., 2018): gradients in f16 are those of the loss times a scale that follows from overflows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.errors import PlanError
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Array, Tensor
from camshaft.ops.spec import TensorSpec

SCALE, GOOD, SKIPPED = "scaling/scale", "scaling/good", "scaling/skipped"
_LEAST, _MOST = 1.0, 2.0**24


@dataclass(frozen=True)
class LossScaling:
    """The loss is multiplied by `start` at first. After `every` steps in a row whose gradients were finite the scale doubles;
    after one whose were not it is halved, and the step is skipped. Powers of 2, so that gradients are divided by it exactly."""

    start: float = 2.0**16
    every: int = 2000

    def __post_init__(self) -> None:
        number = isinstance(self.start, (int, float)) and not isinstance(self.start, bool)
        if not number or not _LEAST <= self.start <= _MOST or np.frexp(self.start)[0] != 0.5:
            raise PlanError(f"LossScaling: got start={self.start!r:.60}; wanted a power of 2 from 1 to 2^24")
        if type(self.every) is not int or self.every < 1:
            raise PlanError(f"LossScaling: got every={self.every!r:.60}; wanted 1 or more")

    def states(self) -> dict[str, tuple[TensorSpec, Array | None]]:
        """The scale, how many steps in a row were good, and how many were skipped in all."""
        scale = np.array(self.start, np.float32)
        count = TensorSpec((), i32)
        return {SCALE: (TensorSpec((), f32), scale), GOOD: (count, None), SKIPPED: (count, None)}

    def add(self, graph: Graph) -> Tensor:
        """Adds the states to a graph, and returns the scale."""
        for name, (spec, _) in self.states().items():
            graph.state(name, spec)
        return graph.states[SCALE]

    def update(self, graph: Graph, is_finite: Tensor, has_loss: Tensor) -> Tensor:
        """Writes the states after a step, and returns whether it is skipped: where the loss is finite, its gradients are not, and
        the scale can still be halved."""
        scale, good, skipped = (graph.states[name] for name in (SCALE, GOOD, SKIPPED))
        skips = f.logical_and(f.logical_and(has_loss, f.logical_not(is_finite)), f.greater(scale, _LEAST))
        is_full = f.greater_equal(good + 1, self.every)
        grown = f.where(is_full, f.minimum(scale * 2.0, _MOST), scale)
        f.assign(scale, f.where(is_finite, grown, f.where(skips, scale * 0.5, scale)))
        f.assign(good, f.where(is_finite, f.where(is_full, 0, good + 1), f.where(skips, 0, good)))
        f.assign(skipped, f.where(skips, skipped + 1, skipped))
        return skips
