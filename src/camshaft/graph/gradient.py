"""Gradients of a graph: nodes for the derivatives of a tensor, made by the ops' `vjp` in reverse program order.

An op without a `vjp` is differentiated through its decomposition, whose nodes are added beside the op's own; nodes that no
gradient reads are removed again. docs/adr/0021-gradients.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np

from camshaft.dtypes import PARTS, DType, bf16, f16
from camshaft.errors import CamshaftError, PlanError, ShapeError
from camshaft.extent import Extent
from camshaft.graph import functions
from camshaft.graph.arguments import cast
from camshaft.graph.decompose import checked_outputs
from camshaft.graph.graph import Graph, Node
from camshaft.graph.tensor import Tensor, root
from camshaft.ops.gradient import expect_fixed, stopped, zeros
from camshaft.ops.op import NoGradient
from camshaft.ops.spec import TensorSpec


def gradients(graph: Graph, loss: Tensor, wrt: Sequence[Tensor], cotangent: Tensor | None = None) -> tuple[Tensor, ...]:
    """The gradients of `loss` by each tensor of `wrt`; Graph.gradients says more."""
    if not isinstance(wrt, (list, tuple)):
        raise ShapeError(f"gradients: got {wrt!r:.80} to differentiate by; wanted a list of tensors")
    for tensor in (loss, *wrt, *(() if cotangent is None else (cotangent,))):
        _expect_floats(graph, tensor)
    count = len(graph.nodes)
    try:
        sweep = _Sweep(graph, wrt)
        sweep.mark(graph.nodes)
        with graph.on(None), sweep.named("gradients"):
            sweep.add(loss, _seed(graph, loss, cotangent))
            sweep.pull(graph.nodes[:count])
            found = tuple(sweep.found(tensor, loss, graph.nodes[:count]) for tensor in wrt)
        graph.nodes[count:] = needed(graph.nodes[count:], found)
        graph.derived.update(graph.nodes[count:])
        _refuse_changed_states(graph.nodes, count)
    except BaseException:
        del graph.nodes[count:]
        raise
    return found


def needed(nodes: Sequence[Node], wanted: Sequence[Tensor]) -> list[Node]:
    """The nodes whose results `wanted` tensors are computed from, in order."""
    roots, kept = {root(t) for t in wanted}, []
    for node in reversed(nodes):
        if not roots.isdisjoint(root(t) for t in node.outputs):
            kept.append(node)
            roots.update(root(t) for t in node.inputs)
    return kept[::-1]


class _Sweep:
    """The gradients of tensors so far: `parts` has what each use of a tensor contributes; the gradient is their sum.

    `depends` has the tensors that depend on `wrt` through floats, and the states that such a tensor is written to. A view depends
    if its base does.
    """

    def __init__(self, graph: Graph, wrt: Sequence[Tensor]) -> None:
        self.graph = graph
        self.depends = set(wrt)
        self.parts: dict[Tensor, list[Tensor]] = {}
        self.writers: dict[Tensor, Node] = {}

    def reaches(self, tensor: Tensor) -> bool:
        """Whether a tensor depends on `wrt`."""
        found: Tensor | None = tensor
        while found is not None and found not in self.depends:
            found = found.base
        return found is not None

    def mark(self, nodes: Sequence[Node]) -> None:
        """Notes which results of the nodes depend on `wrt`."""
        for node in nodes:
            if not any(map(self.reaches, node.inputs)):
                continue
            self.depends.update(filter(_is_float, node.outputs))
            written = [node.inputs[i] for i in node.op.updates] + [t for t in node.outputs if t.kind == "view"]
            for memory in map(root, written):
                self.depends.add(memory)
                self.writers.setdefault(memory, node)

    def add(self, tensor: Tensor, part: Tensor) -> None:
        """Adds to the gradient of a tensor and, of a view, to that of what it views."""
        if part.spec != tensor.spec:
            raise PlanError(f"got the gradient {part.spec} of {tensor}; wanted {tensor.spec}")
        found: Tensor | None = tensor
        while found is not None and self.reaches(found):
            if found in self.writers:
                writer = self.writers[found]
                raise PlanError(
                    f"{writer.name} ({writer.op.name}) writes {found.name}, through which the loss depends on what it is "
                    "differentiated by; wanted a path without states, or the gradients before the state is written"
                )
            self.parts.setdefault(found, []).append(part)
            if found.base is not None and self.reaches(found.base):
                part = _of_base(found, part)
            found = found.base

    def pull(self, nodes: Sequence[Node]) -> None:
        """Takes the gradients of the nodes' outputs to their inputs, the last node first."""
        for node in reversed(nodes):
            if any(t in self.parts for t in node.outputs) and any(map(self.reaches, node.inputs)):
                try:
                    self._pull(node)
                except CamshaftError as error:
                    if str(error).startswith("gradients: "):
                        raise
                    raise type(error)(f"gradients: {node.name} ({node.op.name}): {error}") from error

    def _pull(self, node: Node) -> None:
        if node.after or any(t.kind == "view" for t in node.outputs):
            raise PlanError("it has `after` or `into`; wanted a graph without them")
        op = node.op
        if isinstance(op.vjp, NoGradient):
            raise PlanError(f"it has no gradient: {op.vjp.why}; wanted stop_gradient before it, or custom_vjp around")
        if op.vjp is None:
            self._by_parts(node)
            return
        with self.graph.on(node.device), self.named(f"{node.name}.vjp"):
            dys = tuple(self.total(t) if _is_float(t) else None for t in node.outputs)
            dy, y = (dys[0], node.outputs[0]) if len(dys) == 1 else (dys, node.outputs)
            made = op.vjp(functions, dy, y, *node.inputs, **node.attrs)
            parts = (
                [] if made is NotImplemented else self._parts_for(node, made if isinstance(made, tuple) else (made,))
            )
            if made is not NotImplemented and all(part is not NotImplemented for _, part in parts):
                for tensor, part in parts:
                    self.add(tensor, _sum_to(part, tensor))
                return
        self._by_parts(node)

    def _parts_for(self, node: Node, made: tuple[Any, ...]) -> list[tuple[Tensor, Any]]:
        """The inputs that depend on `wrt` with what a rule makes for them; functions are called for these alone."""
        if len(made) != len(node.inputs):
            raise PlanError(f"got {len(made)} gradients; wanted one for each of its {len(node.inputs)} inputs")
        pairs = zip(node.inputs, made, strict=True)
        wanted = [(tensor, part) for tensor, part in pairs if part is not None and self.reaches(tensor)]
        return [(tensor, part() if callable(part) else part) for tensor, part in wanted]

    def _by_parts(self, node: Node) -> None:
        """Through the decomposition, which is computed once more where its values are needed."""
        if node.op.decompose is None:
            raise PlanError("it has neither a gradient nor a decomposition; custom_vjp gives a function one")
        first = len(self.graph.nodes)
        with self.graph.on(node.device), self.named(node.name):
            made = checked_outputs(node, node.op.decompose(functions, *node.inputs, **node.attrs))
            parts = self.graph.nodes[first:]
            self.mark(parts)
            for old, new in zip(node.outputs, made, strict=True):
                if old in self.parts:
                    self.add(new, self.total(old))
        self.pull(parts)

    def total(self, tensor: Tensor) -> Tensor:
        """The gradient of a tensor: the sum of its parts, of 16-bit floats in f32; zeros if there is none."""
        parts = self.parts.get(tensor) or [zeros(functions, tensor)]
        if len(parts) > 2 and tensor.dtype in (f16, bf16):
            wide = reduce(_sum, [cast(self.graph, part, np.dtype(np.float32)) for part in parts])
            parts = [cast(self.graph, wide, tensor.spec.parts[0].dtype.numpy)]
        self.parts[tensor] = [reduce(_sum, parts)]
        return self.parts[tensor][0]

    def found(self, tensor: Tensor, loss: Tensor, nodes: Sequence[Node]) -> Tensor:
        """The gradient of a tensor of `wrt`. PlanError if the loss depends on it through integers or booleans alone."""
        if tensor not in self.parts:
            cut = _cut_by(self.graph, tensor, loss, nodes)
            if cut is not None:
                node, made = cut
                raise PlanError(
                    f"gradients: {tensor.name} reaches the loss only through {node.name} ({node.op.name}), which makes "
                    f"{made.spec} of it; wanted a path of floats, or stop_gradient where none is meant"
                )
        return self.total(tensor)

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Nodes made inside have names that start with `name` alone."""
        before, self.graph._scope = self.graph._scope, [name]
        try:
            yield
        finally:
            self.graph._scope = before


def _expect_floats(graph: Graph, tensor: Any) -> None:
    if not isinstance(tensor, Tensor) or tensor.graph is not graph:
        raise ShapeError(f"gradients: got {tensor!r:.80}; wanted tensors of this graph")
    if not _is_float(tensor):
        raise ShapeError(f"gradients: got {tensor}; wanted tensors of floats, as others have no gradient")


def _is_float(tensor: Tensor) -> bool:
    dtype = tensor.dtype
    return tensor.spec.is_plain and isinstance(dtype, DType) and (dtype.is_float or dtype in PARTS)


def _seed(graph: Graph, loss: Tensor, cotangent: Tensor | None) -> Tensor:
    """The gradient of the loss by itself."""
    if cotangent is not None:
        if cotangent.spec != loss.spec:
            raise ShapeError(f"gradients: got the cotangent {cotangent.spec}; wanted one of {loss.spec}")
        return cotangent
    if any(isinstance(d, Extent) or d != 1 for d in loss.shape) or loss.dtype in PARTS:
        raise ShapeError(f"gradients: got the loss {loss}; wanted one real number, or a cotangent of its shape")
    return graph.constant("one", np.ones(loss.spec.bounds, loss.spec.parts[0].dtype.numpy))


def _of_base(view: Tensor, part: Tensor) -> Tensor:
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


def _sum_to(part: Tensor, tensor: Tensor) -> Tensor:
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


def _sum(a: Tensor, b: Tensor) -> Tensor:
    made: Tensor = functions.function("add")(a, b)
    return made


def _cut_by(graph: Graph, tensor: Tensor, loss: Tensor, nodes: Sequence[Node]) -> tuple[Node, Tensor] | None:
    """The first node that makes integers of what depends on a tensor, and these, if the loss depends on it by no other path.

    Integers in nodes of earlier gradients do not count: they choose among elements, so the second derivative is zero.
    """
    floats, others = {root(tensor)}, set[Tensor]()
    first: tuple[Node, Tensor] | None = None
    for node in nodes:
        inputs = {root(t) for t in node.inputs if node.op.vjp is not stopped}
        if not floats.isdisjoint(inputs):
            floats.update(filter(_is_float, node.outputs))
            cut = [t for t in node.outputs if not _is_float(t)] if node not in graph.derived else []
            first = (node, cut[0]) if cut and first is None else first
            others.update(cut)
        elif not others.isdisjoint(inputs) and node not in graph.derived:
            others.update(node.outputs)
    return first if root(loss) in others and root(loss) not in floats else None


def _refuse_changed_states(nodes: Sequence[Node], count: int) -> None:
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
