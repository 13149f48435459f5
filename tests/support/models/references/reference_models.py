"""Language models whose plans are computed by their ops' references: what a graph says, in 50 ms and without a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from camshaft.extent import Extent
from camshaft.generate.stored.plan_cache import PlanCache
from camshaft.graph.graph import Graph
from camshaft.ops.spec import TensorSpec
from tests.support.references import evaluated

Array = np.ndarray[Any, Any]


def compute_by_references(patch: pytest.MonkeyPatch) -> None:
    """Models opened from now on compile nothing: their graphs are evaluated node by node, and no plan is kept."""
    patch.setattr("camshaft.plan.compile.compile", ReferencePlan)
    for name in ("get", "add", "measure_later"):
        patch.setattr(PlanCache, name, lambda *_: None)


class ReferencePlan:
    """What generate.ModelPlans uses of an ExecutionPlan."""

    def __init__(self, graph: Graph, *, memory: Mapping[str, Array], **options: Any) -> None:
        self.graph, self.memory, self.outputs = graph, memory, tuple(graph.outputs)
        self.inputs = {name: np.zeros(t.spec.bounds, t.spec.dtype.numpy) for name, t in graph.inputs.items()}
        self.active: dict[Extent, int] = {}
        self.bound = self
        for name, tensor in graph.states.items():
            graph.output(f"new {name}", tensor)

    def set_extent(self, extent: Extent, n: int) -> None:
        """As ExecutionPlan has it."""
        self.active[extent] = n

    def run(self) -> None:
        """Computes the outputs and states into the memory that was given."""
        graph, memory = self.graph, self.memory
        given = {name: self._active(self.inputs[name], t.spec) for name, t in graph.inputs.items()}
        with np.errstate(all="ignore"):
            found = evaluated(graph, {**given, **{name: memory[name] for name in graph.states}}, self.active)
        for name in graph.states:
            memory[name][...] = found[f"new {name}"]
        for name in self.outputs:
            memory[name][: len(found[name])] = found[name]

    def _active(self, array: Array, spec: TensorSpec) -> Array:
        return array[tuple(slice(self.active.get(d, d.bound) if isinstance(d, Extent) else d) for d in spec.shape)]

    def close(self) -> None:
        """As ExecutionPlan has it."""
