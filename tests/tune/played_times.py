"""Times that are played instead of measured, and plans of products that they choose variants for."""

from __future__ import annotations

import os
from collections.abc import Sequence

import camshaft
from camshaft import ops
from camshaft.graph.graph import Graph
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.tune import jobs
from camshaft.tune.benchmark import Candidate
from camshaft.tune.rounds import BenchmarkConfig, Timing

MATMUL = ops.get("matmul")


class Played:
    """Times in microseconds by variant, 100 for the others; what raced, and which inputs were packed before."""

    def __init__(self, **us: float) -> None:
        self.us = us
        self.raced: list[list[str]] = []
        self.packed: list[tuple[int, ...]] = []

    def __call__(self, candidates: Sequence[Candidate], config: BenchmarkConfig) -> list[Timing]:
        self.raced.append([c.variant.name for c in candidates])
        self.packed.append(candidates[0].node.packed)
        every = [1000 * self.us.get(c.variant.name, 100.0) for c in candidates]
        return [Timing(ns, ns, (ns,) * 3, 1, 1) for ns in every]


def plan_of_product(size: int = 64) -> ExecutionPlan:
    graph = Graph()
    a, b = (graph.input(name, (size, size), "f32") for name in "ab")
    graph.output("y", camshaft.matmul(a, b))
    return camshaft.compile(graph, threads=1, backend="simd")


def end_of_program() -> None:
    jobs._at_exit(os.getpid())
