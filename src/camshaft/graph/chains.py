"""Fuse elementwise ops that read each other's results into chains, one node each.

What is gained is memory traffic: of add, silu, multiply over three tensors, six reads and three writes become three and one.
Which nodes go together is found in chain_groups.py.
"""

from __future__ import annotations

from camshaft.dtypes import as_dtype
from camshaft.graph.chain_groups import Group, Grouping, Results, inputs_of
from camshaft.graph.graph import Graph, Node
from camshaft.graph.rewrite import Rewriter
from camshaft.ops.elementwise import chain
from camshaft.ops.elementwise.chain_text import Chain, Step


def fuse_chains(graph: Graph) -> Graph:
    """The graph with every connected run of elementwise ops of one shape and device as one node, as far as order allows.

    A node stands where the last of its parts stood; nodes that read one of its results come after it. The steps that this takes
    grow with the number of nodes (chain_groups.py).
    """
    grouping = Grouping(graph)
    groups = grouping.found()
    if not any(len(group.members) > 1 for group in groups):
        return graph
    return _Chaining(graph, _ordered(grouping, groups)).run_in_order()


def _ordered(grouping: Grouping, groups: list[Group]) -> list[Group]:
    """The groups after what they need, else by where their last members stood."""
    left = sorted(groups, key=lambda group: group.members[-1])
    left.reverse()
    begun: set[Group] = set()
    order: dict[Group, None] = {}
    while left:  # a stack of its own: a long program passes Python's depth
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

    def __init__(self, graph: Graph, groups: list[Group]) -> None:
        super().__init__(graph)
        self.groups = groups
        self.results = Results(graph)

    def run_in_order(self) -> Graph:
        """The new graph."""
        for group in self.groups:
            last = self.old.nodes[group.members[-1]]
            if len(group.members) == 1:
                self.carry_node(last)
            else:
                with self.new.on(last.device):
                    self._apply(group.members, last)
        return self.end()

    def _apply(self, members: list[int], last: Node) -> None:
        inputs = inputs_of(self.old, members)
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
