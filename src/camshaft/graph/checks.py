"""Checks of what callers give a graph: names, devices, tensors, lists of them, memory to write."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from camshaft import ops
from camshaft.dtypes import as_dtype
from camshaft.errors import PlanError, ShapeError, shortened
from camshaft.graph.tensor import ArraySource, Source, Tensor, root
from camshaft.ops.spec import TensorSpec

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph
    from camshaft.graph.node import Node


def checked_name(what: str, name: object) -> str:
    """Returns a tensor's name. Raises ShapeError unless it is a text that is not empty."""
    if not isinstance(name, str) or not name:
        raise ShapeError(f"{what}: got the name {name!r:.80}; wanted a text that is not empty")
    return name


def checked_device(name: object) -> str | None:
    """Returns a device's name, or None. Raises ShapeError for another type."""
    if name is None or isinstance(name, str):
        return name
    raise ShapeError(f"graph: got the device {name!r:.80}; wanted its name, such as 'cpu', or None")


def checked_tensor(what: str, x: object) -> Tensor:
    """Raises ShapeError unless `x` is a tensor."""
    if not isinstance(x, Tensor):
        raise ShapeError(f"{what}: got {shortened(repr(x), 80)}; wanted tensors of this graph")
    return x


def near(op: object) -> str:
    """Returns the names of ops that are similar to an unknown one, as a hint."""
    found = get_close_matches(op, ops.NAMES, 3) if isinstance(op, str) else []
    return f"did you mean {' or '.join(found)}?" if found else f"wanted one of {', '.join(ops.NAMES)}"


def checked_list(graph: Graph, label: str, what: str, given: Sequence[Any], kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """Returns a list argument of a node as a tuple. Raises PlanError for a single item and for another graph's tensor."""
    wanted = " or names of nodes" if str in kinds else ""
    if not isinstance(given, (list, tuple)) or not all(isinstance(item, kinds) for item in given):
        raise PlanError(f"graph: {label!r} got {what}={given!r}; wanted a list of tensors{wanted}")
    for item in given:
        if isinstance(item, Tensor) and item.graph is not graph:
            raise PlanError(f"graph: {label!r} got {what} {item!r} of another graph; wanted one of this")
    return tuple(given)


def views_of_memory(
    graph: Graph, label: str, specs: Sequence[TensorSpec], into: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Returns a node's outputs as views of the `into` memory. Raises ShapeError for other specs, PlanError for other kinds."""
    if [t.spec for t in into] != list(specs):
        came, wanted = (", ".join(map(str, found)) or "nothing" for found in ([t.spec for t in into], specs))
        raise ShapeError(f"{label}: got memory for {came}; wanted it for {wanted}")
    for tensor in into:
        if root(tensor).kind not in ("state", "buffer"):
            kind = root(tensor).kind
            raise PlanError(f"graph: {label!r} writes {tensor.name}; wanted a state or a buffer, no {kind}")
    return tuple(Tensor(t.spec, t.name, "view", base=t, graph=graph) for t in into)


def checked_constant(name: object, value: object, spec: TensorSpec | None) -> tuple[Source, TensorSpec]:
    """Returns the source of a constant and its spec. Raises ShapeError for a value that is not an array and no Source with a
    spec."""
    checked_name("constant", name)
    if isinstance(value, np.ndarray):
        spec = spec or TensorSpec(value.shape, as_dtype(value.dtype))
        value = ArraySource(np.array(value, order="C"))  # copied because the caller may modify its array
    if not callable(getattr(value, "data", None)):
        raise ShapeError(f"graph: constant {name!r} got {value!r:.80}; wanted an ndarray, or a Source with its spec")
    if not isinstance(spec, TensorSpec):
        raise ShapeError(f"graph: constant {name!r} from a source got the spec {spec!r:.80}; wanted its TensorSpec")
    return cast("Source", value), spec


def check_block(nodes: Sequence[Node]) -> None:
    """Raises PlanError unless a checkpoint's nodes can run again."""
    for node in nodes:
        if node.op.updates or any(t.kind == "view" for t in node.outputs):
            raise PlanError(f"checkpoint: {node.name} ({node.op.name}) writes a state; wanted nodes that can run again")


def node_index(graph: Graph, made: Node | Tensor, device: str | None) -> int:
    """Returns the index of a node, or of a tensor's producer. Raises ShapeError if it is not in the graph."""
    for index, node in enumerate(graph.nodes):
        if node is made or (isinstance(made, Tensor) and any(root(made) is output for output in node.outputs)):
            return index
    name = getattr(made, "name", f"{made!r:.80}")
    raise ShapeError(f"graph: no node of this graph made {name}; wanted one to place on {device}")
