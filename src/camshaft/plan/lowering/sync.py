"""Graphs that are computed as they were written: compile's `sync`, by which the caller places, copies and orders the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from camshaft.errors import PlanError
from camshaft.graph.custom import COPY
from camshaft.graph.graph import Graph, Node, Tensor, offset_nbytes, root
from camshaft.graph.rewrite import packed_spec
from camshaft.plan.lowering.lower import Lowered
from camshaft.plan.lowering.node_order import SYNCS, NodeOrder, order_nodes
from camshaft.plan.schedule import Thunk


def check_sync(graphs: Iterable[Graph], sync: str | None) -> None:
    """Raises PlanError for an unknown strategy, and for a graph that requires `sync` compiled without it."""
    wanted = ", ".join(SYNCS)
    if sync is not None and sync not in SYNCS:
        raise PlanError(f"compile: got sync {sync!r}; wanted one of {wanted}")
    for node in (node for graph in graphs for node in graph.nodes if sync is None):
        stated = _stated(node)
        if stated is not None:
            raise PlanError(f"compile: {node.name!r} {stated}, and there is no sync; wanted one of {wanted}")


def _stated(node: Node) -> str | None:
    """Returns the feature of a node that requires `sync`, if any."""
    if node.op is COPY:
        return "is a copy"
    if node.after:
        return "comes after others"
    if any(t.base is not None for t in node.outputs):
        return "writes into given memory"
    parts = [t for t in node.inputs if root(t).kind == "buffer" or offset_nbytes(t)]
    return f"reads {parts[0].name}" if parts else None


def as_written(graph: Graph) -> Graph:
    """Returns the same nodes, with block-format constants packed as kernels require."""
    packed: dict[Tensor, Tensor] = {}

    def get(tensor: Tensor) -> Tensor:
        if tensor.base is not None:
            base = get(tensor.base)
            return tensor if base is tensor.base else packed.setdefault(tensor, replace(tensor, base=base))
        spec = packed_spec(tensor.spec) if tensor.kind == "constant" else tensor.spec
        return tensor if spec is tensor.spec else packed.setdefault(tensor, replace(tensor, spec=spec))

    made = Graph()
    made.inputs, made.states = graph.inputs, graph.states
    made.outputs = {name: get(tensor) for name, tensor in graph.outputs.items()}
    made.nodes = [replace(node, inputs=tuple(map(get, node.inputs))) for node in graph.nodes]
    return made


def order_lowered(graph: Graph, lowered: Lowered, sync: str) -> NodeOrder:
    """Orders the thunks of a graph that was lowered as written by the order of its nodes.

    Raises PlanError like order_nodes, for an `after` that matches no node or several, and for a value read before it is written.
    """
    pieces = _pieces(graph, lowered)
    names = [node.name for node in graph.nodes]
    order = order_nodes(names, _after(graph), pieces, sync)
    _check_computed([graph.nodes[number] for number in order.numbers], graph)
    origins = {origin.node: origin for origin in lowered.origins}
    lowered.thunks.clear()
    lowered.origins.clear()
    for number in order.numbers:
        first = len(lowered.thunks)
        lowered.thunks.extend(pieces[number])
        origin = origins.get(graph.nodes[number])
        if origin is not None:
            lowered.origins.append(replace(origin, first=first, last=len(lowered.thunks)))
    return order


def _pieces(graph: Graph, lowered: Lowered) -> list[list[Thunk]]:
    """Returns each node's thunks: one for a copy, else the range in its origin."""
    sizes = {origin.node: origin.last - origin.first for origin in lowered.origins}
    thunks = iter(list(lowered.thunks))
    return [[next(thunks) for _ in range(sizes.get(node, 1))] for node in graph.nodes]


def _after(graph: Graph) -> list[set[int]]:
    """Returns, for each node, the indices of the nodes in its `after`."""
    makers = {tensor: number for number, node in enumerate(graph.nodes) for tensor in node.outputs}
    named: dict[str, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        named.setdefault(node.name, []).append(number)

    def maker(node: Node, earlier: Tensor | str) -> int:
        if isinstance(earlier, str):
            found = named.get(earlier, [])
            if len(found) != 1:
                how = f"of which there are {len(found)}" if found else "which is no node of the graph"
                raise PlanError(f"compile: {node.name!r} comes after {earlier!r}, {how}; it has {', '.join(named)}")
            return found[0]
        base: Tensor | None = earlier
        while base is not None and base not in makers:
            base = base.base
        if base is None:
            raise PlanError(
                f"compile: {node.name!r} comes after {earlier!r}, which no node makes; wanted a node's output"
            )
        return makers[base]

    return [{maker(node, earlier) for earlier in node.after} for node in graph.nodes]


def _check_computed(nodes: Sequence[Node], graph: Graph) -> None:
    """Raises PlanError if a node reads a value that no earlier node wrote any part of, or an output is never written."""
    made: set[Tensor] = set()
    for node in nodes:
        for tensor in node.inputs:
            if root(tensor).kind in ("value", "buffer") and root(tensor) not in made:
                raise PlanError(f"compile: {node.name!r} reads {tensor.name}, which no node before it writes")
        made.update(root(t) for t in node.outputs)
        made.update(root(node.inputs[i]) for i in node.op.updates)
    for name, tensor in graph.outputs.items():
        if root(tensor).kind in ("value", "buffer") and root(tensor) not in made:
            raise PlanError(f"compile: output {name!r} is {tensor.name}, which no node writes")
