"""Candidate: a way to compute a node, made into plans that measure it as plans run it."""

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
        """'tiled columns=3 rows=8 (simd)'."""
        return f"{self.variant.label} ({self.backend})"

    @property
    def case(self) -> VariantCase:
        """What must be proved of it."""
        return case_of(self.op, self.variant, self.backend, self.node)

    def with_values(self, values: Values) -> Candidate:
        """The same variant with values of its tunables. BackendError for one that is not legal."""
        return Candidate(self.op, self.node, self.variant.with_values(values), self.backend)


def plan_of(candidate: Candidate, memory: Sequence[Sequence[Bytes]], uses: int, threads: int) -> ExecutionPlan:
    """A plan that computes the node so many times, each use waiting for the one before it, on the sets of inputs in `memory` by
    turns (bytes, 64-byte aligned). Extents are at their bounds."""
    graph, node = Graph(), candidate.node
    given: dict[str, Bytes] = {}
    named: dict[int, Tensor] = {}
    for use in range(uses):
        inputs = []
        for spec, raw in zip(node.inputs, memory[use % len(memory)], strict=True):
            if id(raw) not in named:
                name = f"input{len(named)}"
                named[id(raw)], given[name] = graph.state(name, spec), raw
            inputs.append(named[id(raw)])
        graph.apply(candidate.op, inputs, node.attrs, f"use{use}")
    choice = Choice(candidate.op, candidate.variant, candidate.backend, device(candidate.backend), "measured", ())
    choices, started = [choice] * uses, time.perf_counter()
    homes = given_memory(graph, given)
    lowered = lower(graph, choices)
    schedule, places = make_schedule(lowered.thunks, extents_of_graph(graph))
    waits = tuple(wait or _begins(thunk) for wait, thunk in zip(schedule.waits, schedule.thunks, strict=True))
    made = replace(schedule, waits=waits), places
    return bind_lowered(graph, lowered, choices, made, threads, Weights(), homes, None, started)


def _begins(thunk: Thunk) -> bool:
    """Whether it is the first of a use, which in a model waits for what it reads."""
    _, _, index = thunk.name.partition("/")
    return index in ("", "0")


def input_sets(op: Op, node: NodeSpec, args: Sequence[Array], cold: bool) -> list[list[Bytes]]:
    """The arrays in memory that plans take: one set, or as many as make large inputs cold, which share the small ones."""
    first = [memory_of(array, spec) for array, spec in zip(args, node.inputs, strict=True)]
    copied = large_inputs(node)
    more = n_copies(op, node) - 1 if cold else 0
    return [
        first,
        *([memory_of(args[i], s) if i in copied else first[i] for i, s in enumerate(node.inputs)] for _ in range(more)),
    ]
