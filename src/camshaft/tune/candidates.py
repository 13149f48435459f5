"""Candidate: a variant for a node, compiled into a plan that measures it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from camshaft.backends.registry import device
from camshaft.graph.graph import Graph, Tensor
from camshaft.ops.op import KernelVariant, NodeSpec, Op, Values
from camshaft.plan.compile import bind_lowered, extents_of_graph
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.lowering.lower import lower
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.memory.buffer_memory import given_memory
from camshaft.plan.memory.weights import Weights
from camshaft.plan.schedule import Thunk
from camshaft.selection.select import Choice
from camshaft.tune.cold import large_inputs, n_copies
from camshaft.tune.inputs import Array, Bytes, memory_of
from camshaft.validation.cases import VariantCase, case_of


@dataclass(frozen=True)
class Candidate:
    """A variant of an op on a backend or device, for a node."""

    op: Op = field(repr=False)
    node: NodeSpec = field(repr=False)
    variant: KernelVariant = field(repr=False)
    backend: str

    @property
    def label(self) -> str:
        """Text such as 'tiled columns=3 rows=8 (simd)'."""
        return f"{self.variant.label} ({self.backend})"

    @property
    def case(self) -> VariantCase:
        """The case that validates the candidate."""
        return case_of(self.op, self.variant, self.backend, self.node)

    def with_values(self, values: Values) -> Candidate:
        """The same variant with other values of its tunables. Raises BackendError for an illegal value."""
        return Candidate(self.op, self.node, self.variant.with_values(values), self.backend)


def plan_of(candidate: Candidate, memory: Sequence[Sequence[Bytes]], uses: int, threads: int) -> ExecutionPlan:
    """A plan that computes the node `uses` times in sequence, cycling through the sets of inputs in `memory` (bytes, 64-byte
    aligned). Extents are at their bounds."""
    graph, node = Graph(), candidate.node
    states: dict[str, Bytes] = {}
    tensors: dict[int, Tensor] = {}
    for use in range(uses):
        inputs = []
        for spec, raw in zip(node.inputs, memory[use % len(memory)], strict=True):
            if id(raw) not in tensors:
                name = f"input{len(tensors)}"
                tensors[id(raw)], states[name] = graph.state(name, spec), raw
            inputs.append(tensors[id(raw)])
        graph.apply(candidate.op, inputs, node.attrs, f"use{use}")
    choice = Choice(candidate.op, candidate.variant, candidate.backend, device(candidate.backend), "measured", ())
    choices, started = [choice] * uses, time.perf_counter()
    homes = given_memory(graph, states)
    lowered = lower(graph, choices)
    schedule, places = make_schedule(lowered.thunks, extents_of_graph(graph))
    waits = tuple(wait or _starts_use(thunk) for wait, thunk in zip(schedule.waits, schedule.thunks, strict=True))
    waiting = replace(schedule, waits=waits), places
    return bind_lowered(graph, lowered, choices, waiting, threads, Weights(), homes, None, started)


def _starts_use(thunk: Thunk) -> bool:
    """Whether the thunk is the first of a use; in a model it would wait for its inputs."""
    _, _, index = thunk.name.partition("/")
    return index in ("", "0")


def input_sets(op: Op, node: NodeSpec, args: Sequence[Array], cold: bool) -> list[list[Bytes]]:
    """Sets of inputs in plan memory: one set, or as many as keep large inputs cold; the sets share small inputs."""
    first = [memory_of(array, spec) for array, spec in zip(args, node.inputs, strict=True)]
    copied = large_inputs(node)
    more = n_copies(op, node) - 1 if cold else 0
    return [
        first,
        *([memory_of(args[i], s) if i in copied else first[i] for i, s in enumerate(node.inputs)] for _ in range(more)),
    ]
