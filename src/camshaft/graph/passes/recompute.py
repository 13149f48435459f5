"""Gradient checkpointing: blocks of nodes whose results gradients recompute instead of keeping them from the forward pass.

A block's inputs, and the results that later nodes of the forward pass read, are kept. The nodes that are computed again stand
before the first node of the gradients that needs one of them, so that the memory of one block at a time is in use (Chen et al.,
2016). This is done after all rewrites: what is computed again is the same ops in the same kernels, so it has the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from camshaft.errors import PlanError
from camshaft.graph.tensor import Tensor, graph_of, root

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph
    from camshaft.graph.node import Node


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with gradients that recompute its intermediate results instead of keeping them: less memory for more
    time, and the same bits. Called with arrays it is the function itself. Graph.checkpoint has what it cannot contain."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        first = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None)
        if first is None:
            return function(*args, **kwargs)
        with graph_of(first).checkpoint():
            return function(*args, **kwargs)

    return wrapped


def unless_inside(graph: Graph) -> AbstractContextManager[None]:
    """A checkpoint of the nodes created inside, or nothing where they are in one already."""
    return nullcontext() if graph._in_block else graph.checkpoint()


def recompute(graph: Graph) -> Graph:
    """The graph, changed in place, so that its gradients compute the nodes of its blocks again."""
    start = next((i for i, node in enumerate(graph.nodes) if node in graph.derived), len(graph.nodes))
    blocks: list[_Block] = []
    first = 0
    for made in graph.blocks:
        inside = [i for i in range(first, start) if not set(made).isdisjoint(graph.nodes[i].outputs)]
        if inside:
            blocks.append(_Block(graph, inside[0], inside[-1] + 1, start))
            first = inside[-1] + 1
    gradients: list[Node] = []
    for node in graph.nodes[start:]:
        for block in blocks:
            if node in graph.derived and any(root(t) in block.dropped for t in node.inputs):
                gradients += block.again((*graph.nodes[block.last : start], *gradients))
                node = replace(node, inputs=tuple(map(block.new, node.inputs)))
        gradients.append(node)
    graph.nodes[start:] = gradients
    graph.blocks.clear()
    return graph


class _Block:
    """Nodes [first, last) of a graph whose gradients start at node `start`; `dropped` are their results that no other node of the
    forward pass reads, and of them `_wanted` those that gradients read."""

    def __init__(self, graph: Graph, first: int, last: int, start: int) -> None:
        self._nodes: Sequence[Node] = graph.nodes[first:last]
        self.last = last
        later = [node for node in graph.nodes[start:] if node not in graph.derived]
        read = {root(t) for node in (*graph.nodes[:first], *graph.nodes[last:start], *later) for t in node.inputs}
        kept = read | {root(t) for t in graph.outputs.values()}
        self.dropped = {t for node in self._nodes for t in node.outputs} - kept
        self._wanted = {root(t) for node in graph.derived for t in node.inputs} & self.dropped
        self._map: dict[Tensor, Tensor] = {}
        self._is_done = False

    def new(self, tensor: Tensor) -> Tensor:
        """The tensor that is computed again, or a view of it; the tensor itself if it is kept."""
        found = self._map.get(tensor)
        if found is None:
            found = tensor
            if tensor.base is not None and root(tensor) in self.dropped:
                found = self._map[tensor] = replace(tensor, base=self.new(tensor.base))
        return found

    def again(self, earlier: Sequence[Node]) -> list[Node]:
        """The nodes that compute what gradients read of the block; at the second call none. PlanError for a state that they
        would read after an `earlier` node wrote it."""
        if self._is_done:
            return []
        self._is_done = True
        wanted = set(self._wanted)
        chosen: list[Node] = []
        for node in reversed(self._nodes):
            if not wanted.isdisjoint(node.outputs):
                chosen.append(node)
                wanted |= {root(t) for t in node.inputs} & self.dropped
        written = {root(node.inputs[i]) for node in earlier for i in node.op.updates}
        for node in chosen:
            if found := written & {root(t) for t in node.inputs}:
                raise PlanError(
                    f"checkpoint: {node.name} would be computed again after {next(iter(found)).name} was written; wanted the "
                    "gradients before the state is written"
                )
        return [self._copy(node) for node in reversed(chosen)]

    def _copy(self, node: Node) -> Node:
        inputs = tuple(map(self.new, node.inputs))
        outputs = tuple(replace(t, name=f"{t.name}.again") for t in node.outputs)
        self._map.update(zip(node.outputs, outputs, strict=True))
        return replace(node, inputs=inputs, outputs=outputs, name=f"{node.name}.again")
