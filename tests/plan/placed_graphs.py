"""Graphs that say themselves where nodes run and what waits: a block on any devices with its copies, two branches that meet."""

from __future__ import annotations

import numpy as np
from random_graphs import DIM, TOKENS

import camshaft as cs
from camshaft.backends.device import HOST

RNG = np.random.default_rng(5)
W = RNG.normal(size=DIM).astype(np.float32)
M = RNG.normal(size=(DIM, DIM)).astype(np.float32)
X = RNG.normal(size=(TOKENS.bound, DIM)).astype(np.float32)


class Placer:
    """Builds a graph whose operands are copied to where they are used, with every dependency stated."""

    def __init__(self) -> None:
        self.graph = cs.Graph()
        self.seats: dict[tuple[cs.Tensor, str], cs.Tensor] = {}
        self.homes: dict[cs.Tensor, str] = {}

    def input(self, name: str) -> cs.Tensor:
        made = self.graph.input(name, (TOKENS, DIM), "f32")
        self.homes[made] = HOST
        return made

    def at(self, value: cs.Tensor, device: str) -> cs.Tensor:
        """The value on a device: itself, or its copy, by way of the host between two others."""
        where, home = HOST if device.startswith("cpu") else device, self.homes[value]
        if where == home:
            return value
        if (value, where) not in self.seats:
            source = value if HOST in (where, home) else self.at(value, "cpu")
            self.seats[value, where] = self.graph.copy(
                source, "cpu" if where == HOST else where, after=made_of([source])
            )
        return self.seats[value, where]

    def node(self, op: str, device: str, *values: cs.Tensor | np.ndarray, **attrs: object) -> cs.Tensor:
        here = [v if isinstance(v, np.ndarray) else self.at(v, device) for v in values]
        made = self.graph.node(op, *here, on=device, after=made_of(here), **attrs)
        self.homes[made] = HOST if device.startswith("cpu") else device
        return made


def made_of(values: list[cs.Tensor | np.ndarray]) -> list[cs.Tensor]:
    """Those that nodes make."""
    return [v for v in values if isinstance(v, cs.Tensor) and v.kind == "value"]


def placed(places: tuple[str, str, str, str]) -> cs.Graph:
    """The same block, every node on its own device."""
    placer = Placer()
    x = placer.input("x")
    h = placer.node("rms_norm", places[0], x, W, eps=1e-5)
    h = placer.node("matmul", places[1], h, M, transpose_b=True)
    h = placer.node("silu", places[2], h)
    h = placer.node("add", places[3], h, x)
    placer.graph.output("y", placer.at(h, "cpu"))
    return placer.graph


def norm_block(places: tuple[str | None, ...], tokens: cs.Extent, w: np.ndarray, m: np.ndarray) -> cs.Graph:
    """x -> norm with w -> product with m -> silu -> + x, each on its own device."""
    graph = cs.Graph()
    x = graph.input("x", (tokens, len(w)), "f32")
    with graph.on(places[0]):
        h = cs.rms_norm(x, w, eps=1e-5)
    with graph.on(places[1]):
        h = cs.matmul(h, m, transpose_b=True)
    with graph.on(places[2]):
        h = cs.silu(h)
    with graph.on(places[3]):
        graph.output("y", cs.add(h, x))
    return graph


def branches() -> tuple[cs.Graph, dict[str, cs.Tensor]]:
    """Two independent branches a1 -> a2 and b1 -> b2 and their sum, on the CPU."""
    graph = cs.Graph()
    x = graph.input("x", (4, DIM), "f32")
    nodes = {}
    for branch in "ab":
        nodes[f"{branch}1"] = graph.node("silu", x, name=f"{branch}1")
        nodes[f"{branch}2"] = graph.node("silu", nodes[f"{branch}1"], name=f"{branch}2", after=[f"{branch}1"])
    nodes["sum"] = graph.node("add", nodes["a2"], nodes["b2"], name="sum", after=["a2", "b2"])
    graph.output("y", nodes["sum"])
    return graph, nodes
