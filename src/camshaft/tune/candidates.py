"""Candidate: a way to compute a node, made into plans that measure it as plans run it. Between inputs.py and benchmark.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from camshaft.backends.registry import device
from camshaft.dispatch.claims import Claim, claim_of
from camshaft.dispatch.select import Choice
from camshaft.graph.graph import Graph
from camshaft.ops.op import KernelVariant, NodeSpec, Op, Values
from camshaft.plan.compile import grind
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.weights import Weights
from camshaft.tune.inputs import Array, memory_of


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
    def claim(self) -> Claim:
        """What must be proved of it."""
        return claim_of(self.op, self.variant, self.backend, self.node)

    def with_values(self, values: Values) -> Candidate:
        """The same variant with values of its tunables. BackendError for one that is not legal."""
        return Candidate(self.op, self.node, self.variant.with_values(values), self.backend)


def plan_of(candidate: Candidate, args: Sequence[Array], uses: int, threads: int) -> ExecutionPlan:
    """A plan that computes the node so many times, one after the other. Extents are at their bounds."""
    graph, node = Graph(), candidate.node
    inputs = [graph.state(f"input{i}", spec) for i, spec in enumerate(node.inputs)]
    for use in range(uses):
        graph.apply(candidate.op, inputs, node.attrs, f"use{use}")
    memory = {f"input{i}": memory_of(a, s) for i, (a, s) in enumerate(zip(args, node.inputs, strict=True))}
    choice = Choice(candidate.op, candidate.variant, candidate.backend, device(candidate.backend), "measured", ())
    return grind(graph, [choice] * uses, threads, Weights(), memory, None)
