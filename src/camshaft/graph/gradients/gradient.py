"""Gradients of a graph: nodes for the derivatives of a tensor, made by the ops' `vjp` in reverse program order.

An op without a `vjp` is differentiated through its decomposition, whose nodes are added beside the op's own; nodes that no
gradient reads are removed again. docs/adr/0021-gradients.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from camshaft.dtypes import bf16, f16
from camshaft.errors import CamshaftError, PlanError, ShapeError
from camshaft.graph import functions
from camshaft.graph.arguments import cast
from camshaft.graph.gradients.parts import cut_by, expect_floats, is_float, of_base, refuse_changed_states, seed, sum_to
from camshaft.graph.graph import Graph
from camshaft.graph.node import Node
from camshaft.graph.passes.decompose import checked_outputs
from camshaft.graph.tensor import Tensor, root
from camshaft.ops.gradient import zeros
from camshaft.ops.op import NoGradient


def gradients(graph: Graph, loss: Tensor, wrt: Sequence[Tensor], cotangent: Tensor | None = None) -> tuple[Tensor, ...]:
    """The gradients of `loss` by each tensor of `wrt`; Graph.gradients says more."""
    if not isinstance(wrt, (list, tuple)):
        raise ShapeError(f"gradients: got {wrt!r:.80} to differentiate by; wanted a list of tensors")
    for tensor in (loss, *wrt, *(() if cotangent is None else (cotangent,))):
        expect_floats(graph, tensor)
    return gradients_of_several(graph, [loss], wrt, [cotangent])


def gradients_of_several(
    graph: Graph, results: Sequence[Tensor], wrt: Sequence[Tensor], cotangents: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """The gradients of the sum of several results, each times its cotangent, by each tensor of `wrt`."""
    before, count = list(graph.nodes), len(graph.nodes)
    try:
        sweep = _Sweep(graph, wrt)
        sweep.mark(graph.nodes)
        with graph.on(None), sweep.named("gradients"):
            for result, cotangent in zip(results, cotangents, strict=True):
                sweep.add(result, seed(graph, result, cotangent))
            sweep.pull(graph.nodes[:count])
            found = tuple(sweep.found(tensor, results, graph.nodes[:count]) for tensor in wrt)
        graph.nodes[count:] = needed(graph.nodes[count:], found)
        graph.derived.update(graph.nodes[count:])
        refuse_changed_states(graph.nodes, count)
    except BaseException:
        graph.nodes[:] = before
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
            self.depends.update(filter(is_float, node.outputs))
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
                part = of_base(found, part)
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
        op, node = node.op, self._keeping(node)
        if isinstance(op.vjp, NoGradient):
            raise PlanError(f"it has no gradient: {op.vjp.why}; wanted stop_gradient before it, or custom_vjp around")
        if op.vjp is None:
            self._by_parts(node)
            return
        with self.graph.on(node.device), self.named(f"{node.name}.vjp"):
            dys = tuple(self.total(t) if is_float(t) else None for t in node.outputs)
            dy, y = (dys[0], node.outputs[0]) if len(dys) == 1 else (dys, node.outputs)
            made = op.vjp(functions, dy, y, *node.inputs, **node.attrs)
            parts = (
                [] if made is NotImplemented else self._parts_for(node, made if isinstance(made, tuple) else (made,))
            )
            if made is not NotImplemented and all(part is not NotImplemented for _, part in parts):
                for tensor, part in parts:
                    self.add(tensor, sum_to(part, tensor))
                return
        self._by_parts(node)

    def _keeping(self, node: Node) -> Node:
        """The node, in the graph too, with the further results that its rule reads."""
        attrs = node.op.for_gradient(node.spec) if callable(node.op.vjp) else None
        if attrs is None:
            return node
        specs = node.op.outputs(node.spec.inputs, attrs)[len(node.outputs) :]
        more = [replace(node.outputs[0], spec=spec, name=f"{node.name}:{i}") for i, spec in enumerate(specs, 1)]
        kept = replace(node, attrs=dict(attrs), outputs=(*node.outputs, *more))
        self.graph.nodes[self.graph.nodes.index(node)] = kept
        if node in self.graph.derived:
            self.graph.derived.add(kept)
        self.depends.update(more)
        return kept

    def _parts_for(self, node: Node, made: tuple[Any, ...]) -> list[tuple[Tensor, Any]]:
        """The inputs that depend on `wrt` with what a rule makes for them; functions are called for these alone."""
        if len(made) != len(node.inputs):
            raise PlanError(f"got {len(made)} gradients; wanted one for each of its {len(node.inputs)} inputs")
        pairs = zip(node.inputs, made, strict=True)
        wanted = [(tensor, part) for tensor, part in pairs if part is not None and self.reaches(tensor)]
        return [(tensor, part() if callable(part) else part) for tensor, part in wanted]

    def _by_parts(self, node: Node) -> None:
        """Through the decomposition, which is recomputed where its values are needed."""
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

    def found(self, tensor: Tensor, results: Sequence[Tensor], nodes: Sequence[Node]) -> Tensor:
        """The gradient of a tensor of `wrt`. PlanError if a result depends on it through integers or booleans alone."""
        if tensor not in self.parts:
            cuts = [cut for r in results if (cut := cut_by(self.graph, tensor, r, nodes)) is not None]
            if cuts:
                node, made = cuts[0]
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


def _sum(a: Tensor, b: Tensor) -> Tensor:
    made: Tensor = functions.function("add")(a, b)
    return made
