"""Expand a graph into primitive ops: for gradients, exporters, devices without a kernel, and tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from camshaft.errors import PlanError
from camshaft.graph import functions
from camshaft.graph.graph import Graph, Node, Tensor
from camshaft.graph.rewrite import Rewriter
from camshaft.ops.primitives import is_primitive

Chosen = Callable[[Node], bool]


def decompose(graph: Graph, expands: Chosen = lambda node: not is_primitive(node.op)) -> Graph:
    """Returns the graph with the nodes that `expands` chooses replaced by their decompositions, until it chooses none.

    By default primitive ops are left alone. `expands=lambda node: node.op.name not in known` leaves what an exporter knows.
    Inputs, states, outputs and their names stay. Raises PlanError for a chosen node whose op has no decomposition.
    """
    _refuse_order(graph)
    while any(expands(node) for node in graph.nodes):
        graph = _Decomposing(graph, expands).run()
    return graph


def _refuse_order(graph: Graph) -> None:
    """PlanError for nodes with `after` or `into`, whose order and memory an expanded graph would lose."""
    for node in graph.nodes:
        if node.after or any(t.kind == "view" for t in node.outputs):
            raise PlanError(f"decompose: {node.name} has `after` or `into`; wanted a graph without them")


class _Decomposing(Rewriter):
    """Replaces each chosen node once."""

    def __init__(self, graph: Graph, expands: Chosen) -> None:
        super().__init__(graph)
        self._expands = expands

    def run(self) -> Graph:
        for node in self.old.nodes:
            if self._expands(node):
                self._expand(node)
            else:
                self.carry_node(node)
        return self.end()

    def _expand(self, node: Node) -> None:
        if node.op.decompose is None:
            what = "is primitive" if is_primitive(node.op) else "is no primitive"
            raise PlanError(f"decompose: {node.name}: {node.op.name} {what} and has no decomposition")
        first = len(self.new.nodes)
        with self.new.on(node.device), self.new.scope(node.name):
            made = node.op.decompose(functions, *(self.get(t) for t in node.inputs), **node.attrs)
        if any(new.op is node.op for new in self.new.nodes[first:]):
            raise PlanError(f"decompose: {node.name}: the decomposition of {node.op.name} has {node.op.name} itself")
        self.map.update(zip(node.outputs, _checked(node, made), strict=True))


def _checked(node: Node, made: Any) -> tuple[Tensor, ...]:
    """The outputs of a node's decomposition. Raises PlanError if they are not those that the op infers."""
    found = made if isinstance(made, tuple) else (made,)
    came, wanted = ([t.spec for t in tensors] for tensors in (found, node.outputs))
    if came != wanted:
        texts = (", ".join(map(str, specs)) for specs in (came, wanted))
        raise PlanError("decompose: {}: {} gives {}; wanted {}".format(node.name, node.op.name, *texts))
    return found
