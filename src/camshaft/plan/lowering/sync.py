"""Compile's `sync`: graphs computed as written, whose caller places, copies and orders the nodes.

The order comes from the nodes' `after` and, except in 'explicit' mode, from hazards between nodes.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from camshaft.errors import PlanError
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.graph.node import Node
from camshaft.graph.passes.rewrite import packed_spec
from camshaft.plan.buffers import BufferSlice
from camshaft.plan.lowering.lower import Lowered
from camshaft.plan.memory.hazards import Hazard, hazards
from camshaft.plan.schedule import Order, Thunk

SYNCS = ("hazards", "each", "explicit")
_VERBS = {"read": "reads", "write": "writes"}


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
    _check_made([graph.nodes[number] for number in order.numbers], graph)
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
                how = f"of which there are {len(found)}" if found else "which is not a node of the graph"
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


def _check_made(nodes: Sequence[Node], graph: Graph) -> None:
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


@dataclass(frozen=True)
class NodeOrder:
    """The order of a graph's nodes (`numbers`) and of their thunks.

    `after` lists the thunks that must finish before each thunk, by the nodes' `after`. `before`, in 'explicit' mode only, has a
    bit for every thunk that has finished before each thunk.
    """

    numbers: tuple[int, ...]
    after: Order
    before: tuple[int, ...] | None


def order_nodes(
    names: Sequence[str], after: Sequence[Iterable[int]], thunks: Sequence[Sequence[Thunk]], sync: str
) -> NodeOrder:
    """Orders nodes, given by name, the indices of the nodes that each comes `after`, and thunks. Otherwise keeps their order.

    Raises PlanError for a circular order, and in 'explicit' mode for two unordered nodes that access the same bytes, at least
    one of them writing.
    """
    wanted = [set(earlier) for earlier in after]
    found = list(hazards([[use for thunk in item for use in thunk.uses] for item in thunks]))
    needs = [set(earlier) for earlier in wanted]
    if sync != "explicit":
        for hazard in found:
            needs[hazard.second].add(hazard.first)
    numbers = _sorted(names, needs)
    ancestors = _ancestors(numbers, wanted)
    if sync == "explicit":
        _refuse_unordered(names, found, ancestors)
    if sync == "each":
        for earlier, number in itertools.pairwise(numbers):
            wanted[number].add(earlier)
    places = _places(numbers, thunks)
    before = _thunks_before(numbers, ancestors, places) if sync == "explicit" else None
    return NodeOrder(numbers, _thunks_after(numbers, wanted, places), before)


def _sorted(names: Sequence[str], needs: Sequence[set[int]]) -> tuple[int, ...]:
    """Returns a topological order that otherwise keeps the order of the nodes."""
    left = [len(earlier) for earlier in needs]
    readers: list[list[int]] = [[] for _ in names]
    for number, earlier in enumerate(needs):
        for other in earlier:
            readers[other].append(number)
    ready = [number for number, count in enumerate(left) if not count]
    done: list[int] = []
    while ready:
        done.append(heapq.heappop(ready))
        for number in readers[done[-1]]:
            left[number] -= 1
            if not left[number]:
                heapq.heappush(ready, number)
    if len(done) < len(names):
        raise PlanError(f"compile: the order goes in a circle: {_circle(names, needs, set(done))}")
    return tuple(done)


def _circle(names: Sequence[str], needs: Sequence[set[int]], done: set[int]) -> str:
    """Describes a cycle among the remaining nodes, each of which needs another."""
    path = [min(set(range(len(names))) - done)]
    while path[-1] not in path[:-1]:
        path.append(min(needs[path[-1]] - done))
    return " after ".join(repr(names[number]) for number in path[path.index(path[-1]) :])


def _ancestors(numbers: Iterable[int], after: Sequence[set[int]]) -> list[int]:
    """Returns, for each node, a bit for every node that it comes after, directly or not."""
    found = [0] * len(after)
    for number in numbers:
        for earlier in after[number]:
            found[number] |= found[earlier] | 1 << earlier
    return found


def _refuse_unordered(names: Sequence[str], found: Iterable[Hazard], ancestors: Sequence[int]) -> None:
    for h in found:
        if not ancestors[h.second] >> h.first & 1 and not ancestors[h.first] >> h.second & 1:
            raise PlanError(
                f"compile: {names[h.second]!r} {_VERBS[h.second_access]} {_bytes(h.piece)}, which {names[h.first]!r} "
                f"{_VERBS[h.first_access]}, and nothing orders them; wanted one after the other"
            )


def _bytes(piece: BufferSlice) -> str:
    return f"bytes [{piece.offset}, {piece.end}) of {piece.buffer.name!r}"


def _places(numbers: Iterable[int], thunks: Sequence[Sequence[Thunk]]) -> dict[int, range]:
    """Returns the range of each node's thunks in the new order."""
    places, end = {}, 0
    for number in numbers:
        places[number] = range(end, end + len(thunks[number]))
        end = places[number].stop
    return places


def _thunks_after(numbers: Iterable[int], wanted: Sequence[set[int]], places: dict[int, range]) -> Order:
    """Returns the thunks that each thunk follows: a node's first thunk follows all thunks of the nodes that it comes after.

    The node's other thunks need no entry: they come later, so a wait before the first one precedes them too.
    """
    after: list[tuple[int, ...]] = []
    ends: dict[int, set[int]] = {}  # a node's thunks; for a node without thunks, those that it follows
    for number in numbers:
        follows = {thunk for earlier in wanted[number] for thunk in ends[earlier]}
        ends[number] = set(places[number]) or follows
        after += [tuple(sorted(follows))] + [()] * (len(places[number]) - 1) if places[number] else []
    return tuple(after) if any(after) else ()


def _thunks_before(numbers: Iterable[int], ancestors: Sequence[int], places: dict[int, range]) -> tuple[int, ...]:
    bits = {number: sum(1 << thunk for thunk in place) for number, place in places.items()}
    found = []
    for number in numbers:
        earlier = sum(bits[other] for other in places if ancestors[number] >> other & 1)
        found += [earlier] * len(places[number])
    return tuple(found)
