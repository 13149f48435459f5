"""Node: one use of an op in a graph, and which nodes read a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from camshaft.errors import shortened
from camshaft.graph.tensor import ArraySource, Tensor, root
from camshaft.ops.op import Attrs, NodeSpec, Op

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph


@dataclass(frozen=True, eq=False)
class Node:
    """One application of an op.

    `device` names its device; None lets the plan choose. The node starts after the nodes that `after` lists, by name or by one
    of their outputs, have finished.
    """

    op: Op
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attrs: Attrs
    name: str
    device: str | None = None
    after: tuple[Tensor | str, ...] = ()

    def __repr__(self) -> str:
        names = ", ".join(t.name for t in self.inputs)
        return (
            f"Node({self.name!r}: {shortened(f'{self.op.name}({names})')}{f' on {self.device}' if self.device else ''})"
        )

    @cached_property
    def spec(self) -> NodeSpec:
        packed = tuple(i for i in self.op.packs if isinstance(root(self.inputs[i]).source, ArraySource))
        return NodeSpec(tuple(t.spec for t in self.inputs), tuple(t.spec for t in self.outputs), self.attrs, packed)


def readers(graph: Graph) -> dict[Tensor, list[Node]]:
    """Returns the nodes that read each tensor; a read of a view counts for its root."""
    found: dict[Tensor, list[Node]] = {}
    for node in graph.nodes:
        for tensor in node.inputs:
            found.setdefault(root(tensor), []).append(node)
    return found
