"""What an ExecutionGraph is made of: its nodes, its tensors, and the copy as an op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from camshaft.errors import PlanError, ShapeError
from camshaft.graph.graph import Graph, Node, Tensor
from camshaft.ops.op import Attrs, Op, expect
from camshaft.ops.spec import TensorSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class ExecutionNode:
    """A node of an ExecutionGraph. `after` are nodes, or names of them, that end before it begins."""

    node: Node
    after: tuple[ExecutionNode | str, ...]

    @property
    def name(self) -> str:
        return self.node.name

    def __repr__(self) -> str:
        return f"the node {self.name!r}"

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What it makes, in the op's order."""
        return self.node.outputs

    @property
    def output(self) -> Tensor:
        """The only thing that it makes. PlanError if there are several or none."""
        if len(self.outputs) != 1:
            raise PlanError(f"execution graph: {self.name!r} has {len(self.outputs)} outputs; wanted a node with one")
        return self.outputs[0]


def listed(node: str, what: str, given: object, kinds: tuple[type, ...], wanted: str) -> tuple[Any, ...]:
    """What a caller listed for a node, as a tuple. PlanError for one alone (a string is no list of names) or another kind."""
    if isinstance(given, (list, tuple)) and all(isinstance(item, kinds) for item in given):
        return tuple(given)
    raise PlanError(f"execution graph: {node!r} got {what}={given!r}; wanted a list of {wanted}")


class PlacedTensors(Graph):
    """The tensors and nodes of an execution graph, which alone adds to it."""

    def apply(self, op: Op, inputs: Sequence[Tensor], attrs: Mapping[str, Any], name: str | None = None) -> NoReturn:
        raise ShapeError(f"{op.name}: got a tensor of an ExecutionGraph; wanted its node({op.name!r}, ...)")


def _infer(specs: tuple[TensorSpec, ...], attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(len(specs) == 1, "copy", specs, "one tensor")
    return specs


def _reference(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    return (inputs[0].copy(),)


# No device has a kernel of it: lowering makes a copy thunk.
TRANSFER = Op("copy", "y = x, byte by byte", _infer, _reference, (), tuple, tuple, {})
