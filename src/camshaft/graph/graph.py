"""Graph: the tensors and nodes of a program, in program order.

Users or tracing build a graph; each pass returns a new one.

Order matters for states: a node that updates a state in place precedes the nodes that read the new value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from camshaft import ops
from camshaft.dtypes import as_dtype
from camshaft.errors import PlanError, ShapeError, count, shortened
from camshaft.graph import checks, views
from camshaft.graph.arguments import given_form
from camshaft.graph.checks import checked_device, checked_list, checked_name
from camshaft.graph.custom import COPY, Spec, custom_op
from camshaft.graph.node import Node
from camshaft.graph.tensor import Array, ArraySource, Source, Tensor, offset_nbytes, root
from camshaft.ops.op import Op
from camshaft.ops.spec import Dim, TensorSpec, dims, expect_addressable

__all__ = ["Array", "ArraySource", "Graph", "Node", "Source", "Tensor", "offset_nbytes", "root"]


class Graph:
    """A program under construction. Methods add nodes and return Tensors; nothing is computed."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: dict[str, Tensor] = {}
        self.states: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.derived: set[Node] = set()  # nodes that `gradients` added
        self.blocks: list[tuple[Tensor, ...]] = []  # results that gradients recompute (passes/recompute.py)
        self._in_block = False
        self._specs: dict[TensorSpec, TensorSpec] = {}  # equal specs of nodes are one: a step of training has 8000
        self._scope: list[str] = []
        self._device: str | None = None

    def __repr__(self) -> str:
        named = f"{', '.join(self.inputs) or 'no input'} -> {', '.join(self.outputs) or 'no output'}"
        return f"Graph({shortened(named)}; {count(len(self.nodes), 'node')})"

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes the names of nodes created inside with `name`."""
        self._scope.append(checked_name("scope", name))
        try:
            yield
        finally:
            self._scope.pop()

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Gradients recompute the nodes created inside, instead of keeping their results: less memory for more time.

        Checkpoints do not nest, and have no node that writes a state: PlanError."""
        if self._in_block:
            raise PlanError("checkpoint: got one inside of another; wanted one after the other")
        first, self._in_block = len(self.nodes), True
        try:
            yield
        finally:
            self._in_block = False
        nodes = self.nodes[first:]
        checks.check_block(nodes)
        self.blocks.append(tuple(t for node in nodes for t in node.outputs))

    @contextmanager
    def on(self, device: str | None) -> Iterator[None]:
        """Assigns nodes created inside to the named device ('cpu', 'webgpu:1', ...); None lets the plan choose.

        The plan adds copies between devices where needed.
        """
        before, self._device = self._device, checked_device(device)
        try:
            yield
        finally:
            self._device = before

    def clear(self) -> None:
        """Forgets all nodes and tensors. They refer to the graph, so Python would keep both until it looks for cycles."""
        for held in (self.nodes, self.inputs, self.states, self.outputs, self.blocks, self.derived):
            held.clear()

    def place(self, made: Node | Tensor, device: str | None) -> None:
        """Assigns a node, or a tensor's producer, to the named device. Raises ShapeError if it is not in this graph."""
        checked_device(device)
        index = checks.node_index(self, made, device)
        self.nodes[index] = replace(self.nodes[index], device=device)

    def _once(self, table: dict[str, Tensor], name: str, tensor: Tensor) -> Tensor:
        if name in table:
            raise ShapeError(f"graph: the name {name!r} is taken; wanted a new one")
        table[name] = tensor
        return tensor

    def input(self, name: str, shape: Sequence[Dim], dtype: object, on: str | None = None) -> Tensor:
        """Adds an input. `shape` may contain Extents. With `on`, it is in that device's memory, as the plan's `away[name]`."""
        spec = TensorSpec(dims(f"input {checked_name('input', name)!r}", shape), as_dtype(dtype))
        expect_addressable(f"input {name!r}", (spec,))
        return self._once(self.inputs, name, Tensor(spec, name, "input", graph=self, device=checked_device(on)))

    def state(self, name: str, spec: TensorSpec, on: str | None = None) -> Tensor:
        """Adds a tensor that persists across runs and that nodes may update in place; memory is set at binding."""
        if not isinstance(spec, TensorSpec):
            raise ShapeError(f"state {name!r}: got {spec!r}; wanted a TensorSpec")
        checked_name("state", name)
        return self._once(self.states, name, Tensor(spec, name, "state", graph=self, device=checked_device(on)))

    def buffer(self, name: str, shape: Sequence[Dim], dtype: object, on: str = "cpu") -> Tensor:
        """Returns memory for one run's values, which nodes write with `into`, whole or by `rows`. Requires compile's `sync`."""
        spec = TensorSpec(dims(f"buffer {checked_name('buffer', name)!r}", shape), as_dtype(dtype))
        return Tensor(spec, name, "buffer", graph=self, device=checked_device(on))

    def constant(self, name: str, value: Array | Source, spec: TensorSpec | None = None) -> Tensor:
        """Returns an immutable tensor from an array, or from a Source and its spec."""
        source, spec = checks.checked_constant(name, value, spec)
        return Tensor(spec, name, "constant", source, graph=self)

    def reshape(self, x: Tensor, shape: Sequence[Dim]) -> Tensor:
        """Returns a view in another shape; it adds no thunk. Extents and the axes before them must not change."""
        return views.reshape(self, x, shape)

    def pairs(self, x: Tensor) -> Tensor:
        """Returns a view of complex numbers [..] as pairs [.., 2] of real and imaginary part; it adds no thunk."""
        return views.pairs(self, x)

    def as_complex(self, x: Tensor) -> Tensor:
        """Returns a view of pairs [.., 2] of f32 or f64 as complex numbers [..]; it adds no thunk."""
        return views.as_complex(self, x)

    def rows(self, x: Tensor, first: int, last: int) -> Tensor:
        """Returns a view of rows [first, last) of a plain tensor; axis 0 must not be an Extent. Requires compile's `sync`."""
        return views.rows(self, x, first, last)

    def node(
        self,
        op: str,
        /,
        *inputs: Any,
        on: str | None = None,
        after: Sequence[Tensor | str] = (),
        into: Sequence[Tensor] | None = None,
        name: str | None = None,
        **attrs: Any,
    ) -> Any:
        """Applies an op by name, like camshaft.<op>; returns one output as a Tensor, several as a tuple.

        `on` names its device. The node starts after the nodes that `after` lists, by name or by output, have finished. `into`
        lists states, buffers or rows of them to write the outputs to. `after` and `into` require compile's `sync`.
        """
        if op not in ops.NAMES:
            raise PlanError(f"graph: no op {op!r:.80}; {checks.near(op)}")
        with self.on(on or self._device):
            form = given_form(self, ops.get(op), inputs, attrs)
            outputs = self.apply(ops.get(op), form.tensors, form.attrs, name, after=after, into=into)
            if into is None:
                outputs = form.finish(outputs)
        return outputs[0] if len(outputs) == 1 else outputs or None

    def copy(
        self,
        x: Tensor,
        on: str | None = None,
        *,
        into: Tensor | None = None,
        after: Sequence[Tensor | str] = (),
        name: str = "copy",
    ) -> Tensor:
        """Copies a tensor to a device, or into a state or buffer of the same size. Requires compile's `sync`.

        A copy between two non-host devices takes two copies, through the CPU.
        """
        if (on is None) == (into is None):
            raise PlanError(f"{name}: goes to a device or into a tensor; wanted one of the two")
        with self.on(on):
            return self.apply(COPY, [x], {}, name, after=after, into=None if into is None else [into])[0]

    def apply(
        self,
        op: Op,
        inputs: Sequence[Tensor],
        attrs: Mapping[str, Any],
        name: str | None = None,
        *,
        after: Sequence[Tensor | str] = (),
        into: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, ...]:
        """Applies an op; `after` and `into` as in `node`. The op raises ShapeError for specs that it does not accept."""
        for tensor in inputs:
            if not isinstance(tensor, Tensor) or tensor.graph is not self:
                raise ShapeError(
                    f"{op.name}: got {tensor!r}; wanted tensors of this graph (g.constant makes one of an array)"
                )
        specs = op.outputs(tuple(t.spec for t in inputs), attrs)
        expect_addressable(op.name, specs)
        return self._add(op, inputs, attrs, name or op.name, specs, after, into)

    def _add(
        self,
        op: Op,
        inputs: Sequence[Tensor],
        attrs: Mapping[str, Any],
        name: str,
        specs: Sequence[TensorSpec],
        after: Sequence[Tensor | str] = (),
        into: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, ...]:
        """Adds a node whose output specs are known."""
        label = ".".join((*self._scope, name))
        earlier = checked_list(self, label, "after", after, (Tensor, str))
        shared = [self._specs.setdefault(s, s) for s in specs]
        outputs = tuple(
            Tensor(s, label if i == 0 else f"{label}:{i}", "value", graph=self) for i, s in enumerate(shared)
        )
        if into is not None:
            outputs = checks.views_of_memory(self, label, specs, checked_list(self, label, "into", into, (Tensor,)))
        self.nodes.append(Node(op, tuple(inputs), outputs, dict(attrs), label, self._device, earlier))
        return outputs

    def custom(
        self,
        function: object,
        inputs: Sequence[Tensor],
        outputs: Sequence[Spec],
        *,
        updates: Sequence[int] = (),
        programs: Dim = 1,
        name: str = "custom",
        after: Sequence[Tensor | str] = (),
        into: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, ...]:
        """Adds a node that runs the caller's function on the host; no pass changes it.

        `function(*inputs, *outputs)` receives NumPy views of the active elements and writes the outputs, and the inputs that
        `updates` lists by index, which must be states or buffers. It may also be native code, an address or a ctypes function,
        with the ABI of graph/custom.py's PointerCall. `outputs` are TensorSpecs or (shape, dtype) pairs; `after` and `into` as in
        `node`. Raises ShapeError for invalid arguments.
        """
        op = custom_op(name, function, inputs, outputs, updates, programs)
        return self.apply(op, inputs, {}, name, after=after, into=into)

    def gradients(self, loss: Tensor, wrt: Sequence[Tensor], cotangent: Tensor | None = None) -> tuple[Tensor, ...]:
        """Adds the nodes of the gradients of `loss` by each tensor of `wrt`. Returns a gradient of each one's spec, zeros where
        the loss does not depend on it.

        `loss` has one element, or any shape with a `cotangent` of its spec: the gradients are those of sum(loss * cotangent).
        `wrt` are any tensors of floats: inputs, states, constants, results of nodes. Raises ShapeError for other dtypes and
        shapes. PlanError for an op without a gradient between them, for a path through a state, where the only path is one
        through integers, and for a state that a node has written since the loss read it.
        """
        from camshaft.graph.gradients.gradient import gradients  # here: it builds nodes of this Graph

        return gradients(self, loss, wrt, cotangent)

    def output(self, name: str, tensor: Tensor) -> Tensor:
        """Names a tensor as an output of the plan. Raises ShapeError unless it is a whole tensor of this graph."""
        if not isinstance(tensor, Tensor) or tensor.graph is not self:
            raise ShapeError(f"output {name!r}: got {tensor!r}; wanted one tensor of this graph")
        checked_name("output", name)
        if offset_nbytes(tensor):
            raise ShapeError(f"output {name!r} is {tensor.name}; wanted a whole tensor")
        return self._once(self.outputs, name, tensor)
