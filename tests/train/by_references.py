"""Plans that compute a graph with its ops' references in NumPy: nothing is compiled, so a test of a loop takes milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from camshaft.graph.graph import Graph
from camshaft.ops.spec import TensorSpec
from tests.support.references import evaluated

Array = np.ndarray[Any, Any]


class ReferencePlan:
    """What train.Step and jit use of an ExecutionPlan."""

    def __init__(self, graph: Graph, *, memory: Mapping[str, Array] | None = None, **options: Any) -> None:
        self.graph, self.outputs = graph, tuple(graph.outputs)
        self.inputs = {name: _zeros(t.spec) for name, t in graph.inputs.items()}
        self.states = {name: (memory or {}).get(name, _zeros(t.spec)) for name, t in graph.states.items()}
        for name, tensor in graph.states.items():
            graph.output(f"new {name}", tensor)

    def __enter__(self) -> ReferencePlan:
        return self

    def __exit__(self, *error: object) -> None: ...

    def close(self) -> None: ...

    def run(self, inputs: Mapping[str, Any], *, view: bool = False) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            found = evaluated(self.graph, {**self.states, **{name: np.asarray(a) for name, a in inputs.items()}}, {})
        for name, state in self.states.items():
            state[...] = found[f"new {name}"]
        return {name: found[name] for name in self.outputs}


def _zeros(spec: TensorSpec) -> Array:
    return np.zeros(spec.bounds, spec.parts[0].dtype.numpy)


@pytest.fixture
def by_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and jitted functions run by references."""
    monkeypatch.setattr("camshaft.train.step.step.compile", ReferencePlan)
    monkeypatch.setattr("camshaft.plan.jit.compile", ReferencePlan)
