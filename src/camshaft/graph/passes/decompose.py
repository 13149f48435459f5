"""Expand a graph into primitive ops: for gradients, exporters, devices without a kernel, and tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from camshaft import ops
from camshaft.dtypes import as_dtype
from camshaft.errors import PlanError, ShapeError
from camshaft.graph import functions
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.node import Node
from camshaft.graph.passes.rewrite import Rewriter
from camshaft.ops.op import Op, Sample
from camshaft.ops.primitives import is_primitive
from camshaft.ops.spec import TensorSpec

Chosen = Callable[[Node], bool]


def decompose(graph: Graph, expands: Chosen = lambda node: not is_primitive(node.op)) -> Graph:
    """Returns the graph with the nodes that `expands` chooses replaced by their decompositions, until it chooses none.

    By default primitive ops are left alone. `expands=lambda node: node.op.name not in known` leaves what an exporter knows.
    Inputs, states, outputs and their names stay. Raises PlanError for a chosen node whose op has no decomposition.
    """
    found = graph
    while any(expands(node) for node in found.nodes):
        _refuse_order(found)
        before, found = found, _Decomposing(found, expands).run()
        if before is not graph:
            before.clear()
    return found


def expand_composites(graph: Graph) -> Graph:
    """Returns the graph with each op that has no kernels replaced by ops that have. PlanError as `decompose`."""
    return decompose(graph, lambda node: ops.is_composite(node.op))


def use_of(op: Op, sample: Sample) -> Graph:
    """Returns a graph of the op on a sample's specs, inputs x0, x1, ... and outputs y0, y1, ...; packed inputs are states."""
    graph, given = Graph(), []
    for i, s in enumerate(sample.specs or [TensorSpec(a.shape, as_dtype(a.dtype)) for a in sample.inputs]):
        given.append(graph.input(f"x{i}", s.shape, s.dtype) if s.is_plain else graph.state(f"x{i}", s))
    # Samples may have attributes that only the reference takes.
    attrs = {a.name: sample.attrs[a.name] for a in op.parameters.attributes if a.name in sample.attrs}
    for i, tensor in enumerate(graph.apply(op, given, attrs)):
        graph.output(f"y{i}", tensor)
    return graph


def parts_of(op: Op) -> tuple[str, ...]:
    """Returns the names of the ops that an op's decomposition uses on its samples, in the order of their first use; none of a
    primitive."""
    if op.decompose is None:
        return ()
    graphs = [_Decomposing(use_of(op, sample), lambda node: node.op is op).run() for sample in op.samples()]
    return tuple(dict.fromkeys(node.op.name for graph in graphs for node in graph.nodes))


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
            what = "is primitive" if is_primitive(node.op) else "is not a primitive"
            raise PlanError(f"decompose: {node.name}: {node.op.name} {what} and has no decomposition")
        first = len(self.new.nodes)
        with self.new.on(node.device), self.new.scope(node.name):
            try:
                made = node.op.decompose(functions, *(self.get(t) for t in node.inputs), **node.attrs)
            except ShapeError as error:  # which names an op that the caller did not use
                given = ", ".join(str(t.spec) for t in node.inputs)
                raise ShapeError(
                    f"{node.op.name}: got {given}, which its decomposition does not take: {error}"
                ) from error
        if any(new.op is node.op for new in self.new.nodes[first:]):
            raise PlanError(f"decompose: {node.name}: the decomposition of {node.op.name} has {node.op.name} itself")
        self.map.update(zip(node.outputs, checked_outputs(node, made), strict=True))


def checked_outputs(node: Node, made: Any) -> tuple[Tensor, ...]:
    """The outputs of a node's decomposition. Raises PlanError if they are not those that the op infers."""
    found = made if isinstance(made, tuple) else (made,)
    came, wanted = ([t.spec for t in tensors] for tensors in (found, node.outputs))
    if came != wanted:
        texts = (", ".join(map(str, specs)) for specs in (came, wanted))
        raise PlanError("decompose: {}: {} gives {}; wanted {}".format(node.name, node.op.name, *texts))
    return found
