"""Parts of gradients: the first one, of a broadcast tensor, of a view; and the gradients that a graph refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import PARTS, DType
from camshaft.errors import PlanError, ShapeError
from camshaft.extent import Extent
from camshaft.graph import functions
from camshaft.graph.graph import Graph
from camshaft.graph.node import Node
from camshaft.graph.tensor import Tensor, root
from camshaft.ops.gradient import expect_fixed, stopped
from camshaft.ops.spec import TensorSpec


def expect_floats(graph: Graph, tensor: Any) -> None:
    if not isinstance(tensor, Tensor) or tensor.graph is not graph:
        raise ShapeError(f"gradients: got {tensor!r:.80}; wanted tensors of this graph")
    if not is_float(tensor):
        raise ShapeError(f"gradients: got {tensor}; wanted tensors of floats, as others have no gradient")


def is_float(tensor: Tensor) -> bool:
    dtype = tensor.dtype
    return tensor.spec.is_plain and isinstance(dtype, DType) and (dtype.is_float or dtype in PARTS)


def seed(graph: Graph, loss: Tensor, cotangent: Tensor | None) -> Tensor:
    """The gradient of the loss by itself."""
    if cotangent is not None:
        if cotangent.spec != loss.spec:
            raise ShapeError(f"gradients: got the cotangent {cotangent.spec}; wanted one of {loss.spec}")
        return cotangent
    if any(isinstance(d, Extent) or d != 1 for d in loss.shape) or loss.dtype in PARTS:
        raise ShapeError(f"gradients: got the loss {loss}; wanted one real number, or a cotangent of its shape")
    return graph.constant("one", np.ones(loss.spec.bounds, loss.spec.parts[0].dtype.numpy))


def of_base(view: Tensor, part: Tensor) -> Tensor:
    """The gradient of what a tensor views, from the gradient of the view."""
    base = view.base
    assert base is not None
    if view.offset_nbytes or view.spec.nbytes != base.spec.nbytes:
        raise PlanError(f"{view.name} is a part of {base.name}; wanted x[first:last] instead of rows")
    if view.dtype in PARTS and base.dtype not in PARTS:
        part = part.pairs()
    elif base.dtype in PARTS and view.dtype not in PARTS:
        part = part.as_complex()
    return part if part.shape == base.shape else part.reshape(base.shape)


def sum_to(part: Tensor, tensor: Tensor) -> Tensor:
    """The gradient of a tensor that was broadcast to the part's shape: summed over the axes along which it was."""
    if part.shape == tensor.shape or part.ndim < tensor.ndim:
        return part
    more = part.ndim - tensor.ndim
    axes = tuple(i for i, d in enumerate(part.shape) if i < more or (tensor.shape[i - more] == 1 and d != 1))
    expect_fixed(part.shape[i] for i in axes)
    total = functions.function("sum")
    if part.dtype in PARTS:
        part = total(part.pairs(), axes=axes).as_complex()
    elif axes:
        part = total(part, axes=axes)
    fits = part.spec.nbytes == TensorSpec(tensor.shape, part.dtype).nbytes
    return part.reshape(tensor.shape) if fits else part


def cut_by(graph: Graph, tensor: Tensor, loss: Tensor, nodes: Sequence[Node]) -> tuple[Node, Tensor] | None:
    """The first node that makes integers of what depends on a tensor, and these, if the loss depends on it by no other path.

    Integers in nodes of earlier gradients do not count: they choose among elements, so the second derivative is zero.
    """
    floats, others = {root(tensor)}, set[Tensor]()
    first: tuple[Node, Tensor] | None = None
    for node in nodes:
        inputs = {root(t) for t in node.inputs if node.op.vjp is not stopped}
        if not floats.isdisjoint(inputs):
            floats.update(filter(is_float, node.outputs))
            cut = [t for t in node.outputs if not is_float(t)] if node not in graph.derived else []
            first = (node, cut[0]) if cut and first is None else first
            others.update(cut)
        elif not others.isdisjoint(inputs) and node not in graph.derived:
            others.update(node.outputs)
    return first if root(loss) in others and root(loss) not in floats else None


def refuse_changed_states(nodes: Sequence[Node], count: int) -> None:
    """PlanError if a gradient reads a state that a node has written since the node which it is the gradient of read it."""
    read, changed = set[Tensor](), dict[Tensor, Node]()
    for node in nodes[:count]:
        for i in node.op.updates:
            if root(node.inputs[i]) in read:
                changed[root(node.inputs[i])] = node
        read.update(root(t) for t in node.inputs)
    for node in nodes[count:]:
        for state in (root(t) for t in node.inputs if root(t) in changed):
            writer = changed[state]
            raise PlanError(
                f"gradients: {node.name} reads {state.name} after {writer.name} ({writer.op.name}) wrote it; wanted the "
                "gradients before the state is written"
            )
