"""Fuse elementwise ops that read each other's results into chains, one node each.

Chains save memory traffic: add, silu and multiply over three tensors need six reads and three writes, as a chain three and one.

Nodes are grouped in program order, unless a merge would create a cycle among groups. The number of steps is linear in the
nodes: groups store dependencies as node indices, so a merge changes no other group; a cycle search stops where no group reaches
further back, and all searches of a graph share one step budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from camshaft.dtypes import PARTS as COMPLEX
from camshaft.dtypes import as_dtype
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.graph.node import Node, readers
from camshaft.graph.passes.rewrite import Rewriter
from camshaft.ops.elementwise.chains import chain
from camshaft.ops.elementwise.chains.text import Chain, Step

# WebGPU guarantees 8 storage buffers per kernel; 24 steps keep the intermediate values in registers.
MOST_TENSORS, MOST_STEPS = 8, 24
# Step limit of each cycle search, and the extra steps per node that all searches of a graph share.
NEAR_STEPS, FAR_STEPS = 64, 32


def fuse_chains(graph: Graph) -> Graph:
    """Returns the graph with connected elementwise ops of one shape and device fused, where the order of nodes allows it.

    A chain takes the place of its last op; nodes that read one of its results follow it.
    """
    grouping = _Grouping(graph)
    groups = grouping.grouped()
    if not any(len(group.members) > 1 for group in groups):
        return graph
    return _Chaining(graph, _ordered(grouping, groups)).run_in_order()


def _ordered(grouping: _Grouping, groups: list[_Group]) -> list[_Group]:
    """Returns the groups in topological order, otherwise by their last members."""
    left = sorted(groups, key=lambda group: group.members[-1])
    left.reverse()
    begun: set[_Group] = set()
    order: dict[_Group, None] = {}
    while left:  # not recursive: a long program exceeds Python's recursion limit
        group = left[-1]
        if group in begun:
            order.setdefault(left.pop())
        else:
            begun.add(group)
            later = [need for need in grouping.needed(group) if need not in begun]
            left += sorted(later, key=lambda g: -g.members[-1])
    return list(order)


class _Chaining(Rewriter):
    """Replays the graph group by group."""

    def __init__(self, graph: Graph, groups: list[_Group]) -> None:
        super().__init__(graph)
        self.groups = groups
        self.results = _Results(graph)

    def run_in_order(self) -> Graph:
        """Returns the new graph."""
        for group in self.groups:
            last = self.old.nodes[group.members[-1]]
            if len(group.members) == 1:
                self.carry_node(last)
            else:
                with self.new.on(last.device):
                    self._apply(group.members, last)
        return self.end()

    def _apply(self, members: list[int], last: Node) -> None:
        inputs = _inputs_of(self.old, members)
        places = {tensor: i for i, tensor in enumerate(inputs)}
        steps: list[Step] = []
        for i in members:
            node = self.old.nodes[i]
            step = Step(node.op.name, tuple(places[t] for t in node.inputs), node.attrs)
            places[node.outputs[0]] = len(inputs) + len(steps)
            steps.append(step)
        wanted = self.results.of(members)
        dtypes = tuple(as_dtype(t.spec.dtype) for t in inputs)
        spelled = Chain(dtypes, tuple(steps), tuple(places[t] - len(inputs) for t in wanted))
        outputs = self.new.apply(chain.op_of(spelled.text), [self.get(t) for t in inputs], {}, last.name)
        self.map.update(zip(wanted, outputs, strict=True))


@dataclass(eq=False)
class _Group:
    """Indices of the nodes that become one node; a single node is a group too. `needs` are the node indices it depends on."""

    members: list[int]
    needs: list[int] = field(default_factory=list)


class _Grouping:
    """Merges nodes into groups in program order, unless a merge creates a cycle among groups."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.results = _Results(graph)
        self.made = {tensor: i for i, node in enumerate(graph.nodes) for tensor in node.outputs}
        self.groups = [_Group([i]) for i in range(len(graph.nodes))]
        self.reach = _Reach(len(graph.nodes))
        self.far_steps = FAR_STEPS * len(graph.nodes)
        self.updated = {root(node.inputs[i]) for node in graph.nodes for i in node.op.updates}

    def grouped(self) -> list[_Group]:
        """Returns the groups, ordered by first member."""
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

    def needed(self, group: _Group) -> list[_Group]:
        """Returns the distinct other groups that `group` depends on, in program order."""
        found = dict.fromkeys(self.groups[place] for place in group.needs)
        found.pop(group, None)
        return list(found)

    def _fits(self, node: Node) -> bool:
        """Whether the node can join a chain."""
        return (
            node.op.name in chain.PARTS
            and chain.PARTS[node.op.name].op is node.op
            and not any(t.spec.dtype in COMPLEX for t in (*node.inputs, *node.outputs))
        )

    def _find_needs(self) -> None:
        """Fills `needs`: producers of the group's inputs, and earlier conflicting accesses of the same updated state."""
        written_by: dict[Tensor, int] = {}
        read_since: dict[Tensor, list[int]] = {}
        for i, node in enumerate(self.graph.nodes):
            needs = {self.made[base] for t in node.inputs if (base := root(t)) in self.made}
            written = {root(node.inputs[u]) for u in node.op.updates}
            for tensor in {root(t) for t in node.inputs} & self.updated:
                needs |= {written_by[tensor]} if tensor in written_by else set()
                if tensor in written:
                    needs.update(read_since.pop(tensor, ()))
                    written_by[tensor] = i
                else:
                    read_since.setdefault(tensor, []).append(i)
            self.groups[i].needs = sorted(needs)

    def _join(self, first: _Group, second: _Group) -> None:
        """Merges a producer group with its consumer group where the limits and dependencies allow it."""
        if first is second or not self._alike(first, second):
            return
        members = sorted(first.members + second.members)
        if not self._small(members) or _sees_itself(self.graph, members) or self._circles(first, second, members):
            return
        joined = _Group(members, sorted({*first.needs, *second.needs} - {*members}))
        for i in members:
            self.groups[i] = joined
        self.reach.cover(members[0], members[-1])

    def _alike(self, first: _Group, second: _Group) -> bool:
        a, b = (self.graph.nodes[group.members[0]] for group in (first, second))
        return a.device == b.device and a.outputs[0].shape == b.outputs[0].shape

    def _small(self, members: list[int]) -> bool:
        if len(members) > MOST_STEPS:
            return False
        return len(_inputs_of(self.graph, members)) + len(self.results.of(members)) <= MOST_TENSORS

    def _circles(self, first: _Group, second: _Group, members: list[int]) -> bool:
        """Whether merging the two groups would create a dependency cycle.

        Also True when the search exceeds its step limit: a missed merge is safe.
        """
        within = all(self.results.read_within(i, members) for i in first.members)
        if within and not any(root(t) in self.updated for i in first.members for t in self.graph.nodes[i].inputs):
            return False  # only `second` needs `first`, so no third group can close a cycle
        parts, start, steps = {first, second}, self.reach.start(members[0]), 0
        left = [group for group in self.needed(first) + self.needed(second) if group not in parts]
        seen = set(left)
        while left and steps <= NEAR_STEPS + self.far_steps:
            group = left.pop()
            if group.members[-1] < start:
                continue  # no group spans `start`, and nodes depend only on earlier nodes
            needs = self.needed(group)
            steps += 1 + len(needs)
            if any(need in parts for need in needs):
                left.append(group)
                break
            left += [need for need in needs if need not in seen]
            seen.update(needs)
        self.far_steps -= max(0, steps - NEAR_STEPS)
        return bool(left)


class _Reach:
    """Union-find over node indices: maps each index to the nearest one at or before it that no group spans."""

    def __init__(self, n_places: int) -> None:
        self.before = list(range(n_places))  # the index itself, or an earlier one in the same span

    def start(self, place: int) -> int:
        """Returns the last index at or before `place` that no group spans."""
        while (before := self.before[place]) != place:
            self.before[place] = self.before[before]  # path halving
            place = before
        return place

    def cover(self, first: int, last: int) -> None:
        """Records a group that spans from index `first` to `last`."""
        place = self.start(last)
        while place > first:
            self.before[place] = place - 1
            place = self.start(place)


class _Results:
    """Readers of each node's outputs in a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.reading = readers(graph)
        self.places = {id(node): i for i, node in enumerate(graph.nodes)}
        self.wanted = {root(tensor) for tensor in graph.outputs.values()}

    def of(self, members: list[int]) -> list[Tensor]:
        """Returns the members' outputs that are used outside: by another node, through a view, or by the caller."""
        outputs = {i: self.graph.nodes[i].outputs[0] for i in members}
        return [
            t for i, t in outputs.items() if t in self.wanted or t not in self.reading or self._leaves(i, t, members)
        ]

    def read_within(self, place: int, members: list[int]) -> bool:
        """Whether only members read the output of the node at `place`."""
        readers_of = self.reading.get(self.graph.nodes[place].outputs[0], ())
        return all(self.places[id(node)] in members for node in readers_of)

    def _leaves(self, place: int, made: Tensor, members: list[int]) -> bool:
        """Whether a node outside `members` reads the tensor, or a member reads it through a view."""
        if not self.read_within(place, members):
            return True
        return any(root(t) is made and t is not made for node in self.reading[made] for t in node.inputs)


def _inputs_of(graph: Graph, members: list[int]) -> list[Tensor]:
    """Returns the distinct tensors that the members read from outside the group, in order."""
    inner = {graph.nodes[i].outputs[0] for i in members}
    return list(dict.fromkeys(t for i in members for t in graph.nodes[i].inputs if t not in inner))


def _sees_itself(graph: Graph, members: list[int]) -> bool:
    """Whether a member reads another's result through a view, which requires it in memory."""
    made = {graph.nodes[i].outputs[0] for i in members}
    return any(t.kind == "view" and root(t) in made for i in members for t in graph.nodes[i].inputs)
