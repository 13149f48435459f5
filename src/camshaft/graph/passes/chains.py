"""Puts elementwise ops that read each other's results into chains, one node each (ops/chain.py). After fuse.py and quantize.py.

What is gained is memory traffic: of add, silu, multiply over three tensors, six reads and three writes become three and one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from camshaft.dtypes import as_dtype
from camshaft.graph.graph import Graph, Node, Rewriter, Tensor, readers, root
from camshaft.ops import chain
from camshaft.ops.chain_text import Chain, Step

# WebGPU's least guaranteed storage buffers of a kernel; and what registers hold of inner values.
MOST_TENSORS, MOST_STEPS = 8, 24


@dataclass(eq=False)
class _Group:
    """Nodes, by their places in the graph, that become one. A node by itself is one too."""

    members: list[int]
    needs: set[_Group] = field(default_factory=set)


def fuse_chains(graph: Graph) -> Graph:
    """The graph with every connected run of elementwise ops of one shape and device as one node, as far as order allows.

    A node stands where the last of its parts stood; nodes that read one of its results come after it.
    """
    groups = _Grouping(graph).found()
    if not any(len(group.members) > 1 for group in groups):
        return graph
    return _Chaining(graph, _ordered(groups)).run_in_order()


def _chained(node: Node) -> bool:
    """Whether a node may be part of a chain: one of the elementwise ops, and nothing empty."""
    return chain.PARTS.get(node.op.name) is node.op


class _Grouping:
    """Joins nodes to groups, one by one in program order, where that makes no circle among groups."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.reading = readers(graph)
        self.made = {tensor: i for i, node in enumerate(graph.nodes) for tensor in node.outputs}
        self.groups = [_Group([i]) for i in range(len(graph.nodes))]
        self.within: set[int] = set()  # places that stand between two members of a group, or are its later members
        self.updated = {root(node.inputs[i]) for node in graph.nodes for i in node.op.updates}
        self.results = {root(tensor) for tensor in graph.outputs.values()}

    def found(self) -> list[_Group]:
        """The groups, in the order of their first members."""
        candidates = [i for i, node in enumerate(self.graph.nodes) if self._fits(node)]
        fitting = set(candidates)
        if any(self.made.get(t) in fitting for i in candidates for t in self.graph.nodes[i].inputs):
            self._find_needs()
            for i in candidates:
                for tensor in self.graph.nodes[i].inputs:
                    maker = self.made.get(tensor)
                    if maker in fitting and maker is not None:
                        self._join(self.groups[maker], self.groups[i])
        return list(dict.fromkeys(self.groups))

    def _fits(self, node: Node) -> bool:
        """A state that something updates is read where the program says, so such a node stays where it is."""
        return _chained(node) and not any(root(tensor) in self.updated for tensor in node.inputs)

    def _find_needs(self) -> None:
        """Each group after those that make what it reads, and after what came before it with the same updated state."""
        users: dict[Tensor, list[int]] = {}
        writers: dict[Tensor, int] = {}
        for i, node in enumerate(self.graph.nodes):
            needs = {self.made[base] for t in node.inputs if (base := root(t)) in self.made}
            written = {root(node.inputs[u]) for u in node.op.updates}
            for tensor in {root(t) for t in node.inputs} & self.updated:
                before = users.setdefault(tensor, [])
                needs |= set(before) if tensor in written else {writers[tensor]} if tensor in writers else set()
                before.append(i)
                if tensor in written:
                    writers[tensor] = i
            self.groups[i].needs = {self.groups[n] for n in needs}

    def _join(self, first: _Group, second: _Group) -> None:
        if first is second or not self._alike(first, second) or not self._small(first, second):
            return
        joined = _Group(sorted(first.members + second.members), (first.needs | second.needs) - {first, second})
        if self._circles(joined, {first, second}) or _sees_itself(self.graph, joined.members):
            return
        for i in joined.members:
            self.groups[i] = joined
        self.within.update(range(joined.members[0] + 1, joined.members[-1] + 1))
        for group in dict.fromkeys(self.groups):
            if group.needs & {first, second}:
                group.needs = (group.needs - {first, second}) | {joined}

    def _alike(self, first: _Group, second: _Group) -> bool:
        a, b = (self.graph.nodes[group.members[0]] for group in (first, second))
        return a.device == b.device and a.outputs[0].shape == b.outputs[0].shape

    def _small(self, first: _Group, second: _Group) -> bool:
        members = sorted(first.members + second.members)
        tensors = _inputs(self.graph, members) + _results(self.graph, members, self.reading, self.results)
        return len(members) <= MOST_STEPS and len(tensors) <= MOST_TENSORS

    def _circles(self, joined: _Group, parts: set[_Group]) -> bool:
        """Whether something that the joined group needs itself needs one of its parts."""
        left, seen = list(joined.needs), set(joined.needs)
        start = joined.members[0]
        while start in self.within:
            start -= 1
        while left:
            group = left.pop()
            if group in parts:
                return True
            if group.members[-1] < start:
                continue  # no group reaches over this place, and nodes need only what stood before them
            left += [need for need in group.needs if need not in seen]
            seen |= group.needs
        return False


def _ordered(groups: Iterable[_Group]) -> list[_Group]:
    """The groups after what they need, else by where their last members stood."""
    left = sorted(groups, key=lambda group: group.members[-1])
    left.reverse()
    begun: set[_Group] = set()
    order: dict[_Group, None] = {}
    while left:  # a stack of its own: a long program passes Python's depth
        group = left[-1]
        if group in begun:
            order.setdefault(left.pop())
        else:
            begun.add(group)
            left += sorted(group.needs - begun, key=lambda g: -g.members[-1])
    return list(order)


def _sees_itself(graph: Graph, members: list[int]) -> bool:
    """Whether a member reads another's result in another shape, which is in memory only."""
    made = {graph.nodes[i].outputs[0] for i in members}
    return any(t.kind == "view" and root(t) in made for i in members for t in graph.nodes[i].inputs)


def _inputs(graph: Graph, members: list[int]) -> list[Tensor]:
    """What the members read from outside, each once, in order."""
    inner = {graph.nodes[i].outputs[0] for i in members}
    return list(dict.fromkeys(t for i in members for t in graph.nodes[i].inputs if t not in inner))


def _results(graph: Graph, members: list[int], reading: dict[Tensor, list[Node]], results: set[Tensor]) -> list[Tensor]:
    """What is wanted of the members elsewhere: by another node, as a view, or by the caller."""
    nodes = {id(graph.nodes[i]) for i in members}
    found = []
    for i in members:
        tensor = graph.nodes[i].outputs[0]
        readers_of = reading.get(tensor, [])
        direct = all(id(n) in nodes and tensor in n.inputs for n in readers_of)
        viewed = any(root(t) is tensor and t is not tensor for n in readers_of for t in n.inputs)
        if tensor in results or not direct or viewed or not readers_of:
            found.append(tensor)
    return found


class _Chaining(Rewriter):
    """Replays the graph group by group."""

    def __init__(self, graph: Graph, groups: list[_Group]) -> None:
        super().__init__(graph)
        self.groups = groups
        self.reading = readers(graph)
        self.results = {root(tensor) for tensor in graph.outputs.values()}

    def run_in_order(self) -> Graph:
        """The new graph."""
        self.begin()
        for group in self.groups:
            last = self.old.nodes[group.members[-1]]
            with self.new.on(last.device):
                if len(group.members) == 1:
                    self.carry_node(last)
                else:
                    self._apply(group.members, last)
        return self.end()

    def _apply(self, members: list[int], last: Node) -> None:
        inputs = _inputs(self.old, members)
        places = {tensor: i for i, tensor in enumerate(inputs)}
        steps: list[Step] = []
        for i in members:
            node = self.old.nodes[i]
            step = Step(node.op.name, tuple(places[t] for t in node.inputs), node.attrs)
            places[node.outputs[0]] = len(inputs) + len(steps)
            steps.append(step)
        wanted = _results(self.old, members, self.reading, self.results)
        dtypes = tuple(as_dtype(t.spec.dtype) for t in inputs)
        spelled = Chain(dtypes, tuple(steps), tuple(places[t] - len(inputs) for t in wanted))
        outputs = self.new.apply(chain.op_of(spelled.text), [self.get(t) for t in inputs], {}, last.name)
        self.map.update(zip(wanted, outputs, strict=True))
