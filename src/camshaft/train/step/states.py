"""The states of a step: parameters, moments and counts, in memory that its plans share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from camshaft.errors import PlanError
from camshaft.graph.graph import Graph
from camshaft.ops.spec import TensorSpec
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.memory.device_memory import DeviceArray
from camshaft.train.step.tree import Tree

Array = np.ndarray[Any, Any]


class States:
    """What a step leaves for the next one, by name: start values, until the first plan that has them makes their memory. `tree`
    has the parameters' structure."""

    def __init__(self, starts: Mapping[str, tuple[TensorSpec, Array | None]], tree: Tree) -> None:
        self._starts, self._tree = dict(starts), tree
        self._memory: dict[str, Array | DeviceArray] = {}

    def read(self, name: str) -> Array:
        """A copy of a state."""
        if name not in self._memory:
            spec, start = self._starts[name]
            return np.zeros(spec.shape, spec.parts[0].dtype.numpy) if start is None else start.copy()
        found = self._memory[name]
        return found.read() if isinstance(found, DeviceArray) else found.copy()

    def tree(self, kind: str) -> Any:
        """Copies of the states of a kind, such as "parameters", in the structure of the parameters."""
        return self._tree.filled({name: self.read(f"{kind}/{name}") for name in self._tree.arrays})

    def copies(self) -> dict[str, Array]:
        """Copies of all states but the sums of micro-batches' gradients, which do not outlast a step."""
        return {name: self.read(name) for name in self._lasting}

    def set(self, values: Mapping[str, Array]) -> None:
        """Sets what `copies` returns. PlanError for a name, shape or dtype that differs; nothing is set then."""
        for name in self._lasting:
            if name not in values:
                raise PlanError(f"states: got none for {name!r}; wanted all of {len(self._lasting)}")
        if more := sorted(set(values) - set(self._lasting)):
            raise PlanError(f"states: got {', '.join(more[:3])}, which this step does not have")
        for name in self._lasting:
            spec, _ = self._starts[name]
            value, dtype = np.asarray(values[name]), spec.parts[0].dtype.numpy
            if value.shape != spec.shape or value.dtype != dtype:
                raise PlanError(f"states: {name!r} is {value.dtype} {list(value.shape)}; wanted {spec}")
        for name in self._lasting:
            self._starts[name] = self._starts[name][0], np.array(values[name])
            if name in self._memory:
                self._write(name)

    def memory_of(self, graph: Graph) -> dict[str, Array | DeviceArray]:
        """The memory of a graph's states, as far as plans have made it."""
        return {name: there for name, there in self._memory.items() if name in graph.states}

    def adopt(self, plan: ExecutionPlan) -> None:
        """Takes the memory of a plan's states that had none, and writes what they start as."""
        for name, there in plan.states.items():
            if name not in self._memory:
                self._memory[name] = there
                self._write(name)

    def release(self) -> None:
        """Forgets the memory; the states keep their last values."""
        self._starts = {name: (spec, self.read(name)) for name, (spec, _) in self._starts.items()}
        self._memory.clear()

    @property
    def _lasting(self) -> list[str]:
        return [name for name in self._starts if not name.startswith("gradient/")]

    def _write(self, name: str) -> None:
        spec, start = self._starts[name]
        self._starts[name] = spec, None  # from now on the memory has it
        there = self._memory[name]
        if isinstance(there, DeviceArray):
            there.write(np.zeros(there.shape, there.spec.parts[0].dtype.numpy) if start is None else start)
        else:
            there[...] = 0 if start is None else start
