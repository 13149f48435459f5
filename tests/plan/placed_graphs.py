"""ExecutionGraphs for tests: a block on any devices with its copies, and two branches that meet."""

from __future__ import annotations

import numpy as np
from random_graphs import DIM, TOKENS

import camshaft as cs
from camshaft.backends.device import HOST
from camshaft.plan.lowering.execution_node import ExecutionNode

RNG = np.random.default_rng(5)
W = RNG.normal(size=DIM).astype(np.float32)
M = RNG.normal(size=(DIM, DIM)).astype(np.float32)
X = RNG.normal(size=(TOKENS.bound, DIM)).astype(np.float32)


class Placer:
    """Builds an ExecutionGraph whose operands are copied to where they are used, with every dependency stated."""

    def __init__(self) -> None:
        self.graph = cs.ExecutionGraph()
        self.seats: dict[tuple[cs.Tensor | ExecutionNode, str], cs.Tensor | ExecutionNode] = {}
        self.homes: dict[cs.Tensor | ExecutionNode, str] = {}

    def input(self, name: str) -> cs.Tensor:
        made = self.graph.input(name, (TOKENS, DIM), "f32")
        self.homes[made] = HOST
        return made

    def at(self, value: cs.Tensor | ExecutionNode, device: str) -> cs.Tensor | ExecutionNode:
        """The value on a device: itself, or its copy, by way of the host between two others."""
        where, home = HOST if device.startswith("cpu") else device, self.homes[value]
        if where == home:
            return value
        if (value, where) not in self.seats:
            source = value if HOST in (where, home) else self.at(value, "cpu")
            after = [source] if isinstance(source, ExecutionNode) else []
            self.seats[value, where] = self.graph.copy(source, "cpu" if where == HOST else where, after=after)
        return self.seats[value, where]

    def node(
        self, op: str, device: str, *values: cs.Tensor | ExecutionNode | np.ndarray, **attrs: object
    ) -> ExecutionNode:
        here = [v if isinstance(v, np.ndarray) else self.at(v, device) for v in values]
        after = [v for v in here if isinstance(v, ExecutionNode)]
        made = self.graph.node(op, *here, device=device, after=after, **attrs)
        self.homes[made] = HOST if device.startswith("cpu") else device
        return made


def placed(places: tuple[str, str, str, str]) -> cs.ExecutionGraph:
    """The same block, every node on its own device."""
    placer = Placer()
    x = placer.input("x")
    h = placer.node("rms_norm", places[0], x, W, eps=1e-5)
    h = placer.node("matmul", places[1], h, M, transpose_b=True)
    h = placer.node("silu", places[2], h)
    h = placer.node("add", places[3], h, x)
    placer.graph.output("y", placer.at(h, "cpu"))
    return placer.graph


def branches(**options: object) -> tuple[cs.ExecutionGraph, dict[str, ExecutionNode]]:
    """Two independent branches a1 -> a2 and b1 -> b2 and their sum, on the CPU."""
    graph = cs.ExecutionGraph()
    x = graph.input("x", (4, DIM), "f32")
    nodes = {}
    for branch in "ab":
        nodes[f"{branch}1"] = graph.node("silu", x, name=f"{branch}1")
        nodes[f"{branch}2"] = graph.node("silu", nodes[f"{branch}1"], name=f"{branch}2", after=[f"{branch}1"])
    nodes["sum"] = graph.node("add", nodes["a2"], nodes["b2"], name="sum", after=["a2", "b2"], **options)
    graph.output("y", nodes["sum"])
    return graph, nodes
