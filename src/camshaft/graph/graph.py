"""Graph: tensors and nodes of a program, in program order. Built here or by tracing; passes make new graphs of it.

Order matters for STATE: a node that updates a state in place comes before the nodes that read the new value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from camshaft.dtypes import as_dtype
from camshaft.errors import ShapeError
from camshaft.extent import Extent
from camshaft.graph.custom import Spec, custom_op
from camshaft.ops.op import Attrs, NodeSpec, Op
from camshaft.ops.spec import Dim, TensorSpec, dims

Array: TypeAlias = np.ndarray[Any, Any]
Kind = Literal["input", "constant", "state", "value", "view"]


class Source(Protocol):
    """Where a constant's bytes come from: an array, or a tensor of a file that is read when the plan is bound."""

    def data(self) -> Array:
        """The bytes as uint8, row-major; the same memory whenever it is asked."""
        ...


@dataclass(frozen=True, eq=False)
class ArraySource:
    """A constant that is at hand, contiguous."""

    array: Array

    def data(self) -> Array:
        return self.array.reshape(-1).view(np.uint8)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value in a graph, equal only to itself. A view has the memory of `base` from its start."""

    spec: TensorSpec
    name: str
    kind: Kind
    source: Source | None = None
    base: Tensor | None = None
    graph: Graph | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.spec.shape

    def __repr__(self) -> str:
        return f"the {self.kind} {self.name!r} {self.spec}"


@dataclass(frozen=True, eq=False)
class Node:
    """One use of an op. `device` names the device that it is placed on; None leaves that to the plan."""

    op: Op
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attrs: Attrs
    name: str
    device: str | None = None

    @cached_property
    def spec(self) -> NodeSpec:
        return NodeSpec(tuple(t.spec for t in self.inputs), tuple(t.spec for t in self.outputs), self.attrs)


class Graph:
    """A program under construction. Methods add to it and give Tensors; nothing is computed."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: dict[str, Tensor] = {}
        self.states: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self._scope: list[str] = []
        self._device: str | None = None

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Nodes made inside carry the name as a prefix."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    @contextmanager
    def on(self, device: str | None) -> Iterator[None]:
        """Nodes made inside are placed on the device of that name ('cpu', 'webgpu:1', ...): the plan then copies tensors between
        devices where it must. None leaves the placing to the plan."""
        before, self._device = self._device, device
        try:
            yield
        finally:
            self._device = before

    def place(self, made: Node | Tensor, device: str | None) -> None:
        """Places a node, or the one that made a tensor, on the device of that name. ShapeError if it is not of this graph."""
        for index, node in enumerate(self.nodes):
            if node is made or (isinstance(made, Tensor) and root(made) in node.outputs):
                self.nodes[index] = replace(node, device=device)
                return
        raise ShapeError(f"graph: no node of this graph made {made.name}; wanted one to place on {device}")

    def _named(self, name: str) -> str:
        return ".".join((*self._scope, name))

    def _once(self, table: dict[str, Tensor], name: str, tensor: Tensor) -> Tensor:
        if name in table:
            raise ShapeError(f"graph: the name {name!r} is taken; wanted a new one")
        table[name] = tensor
        return tensor

    def input(self, name: str, shape: Sequence[Dim], dtype: object) -> Tensor:
        """A tensor given to every run. `shape` may hold Extents."""
        spec = TensorSpec(dims(f"input {name!r}", shape), as_dtype(dtype))
        return self._once(self.inputs, name, Tensor(spec, name, "input", graph=self))

    def state(self, name: str, spec: TensorSpec) -> Tensor:
        """A tensor whose bytes survive runs and that nodes may update in place; its memory is given when the plan is bound."""
        if not isinstance(spec, TensorSpec):
            raise ShapeError(f"state {name!r}: got {spec!r}; wanted a TensorSpec")
        return self._once(self.states, name, Tensor(spec, name, "state", graph=self))

    def constant(self, name: str, value: Array | Source, spec: TensorSpec | None = None) -> Tensor:
        """A tensor that never changes: an array, or a Source with its spec."""
        if isinstance(value, np.ndarray):
            spec = spec or TensorSpec(value.shape, as_dtype(value.dtype))
            value = ArraySource(np.array(value, order="C"))  # a copy: the caller's may change
        if spec is None:
            raise ShapeError(f"graph: constant {name!r} from a source needs its spec")
        return Tensor(spec, name, "constant", value, graph=self)

    def reshape(self, x: Tensor, shape: Sequence[Dim]) -> Tensor:
        """The same bytes in another shape: a view, which makes no thunk. Extents, and axes before one, stay as they are."""
        spec = TensorSpec(dims("reshape", shape), x.spec.dtype)
        if not x.spec.is_plain or spec.nbytes != x.spec.nbytes:
            raise ShapeError(f"reshape: got {x.spec} as {spec}; wanted a plain tensor with as many elements")
        kept = max(
            (i + 1 for s in (x.shape, spec.shape) for i, dim in enumerate(s) if isinstance(dim, Extent)), default=0
        )
        if x.shape[:kept] != spec.shape[:kept]:
            raise ShapeError(f"reshape: got {x.spec} as {spec}; wanted every Extent where it was")
        return Tensor(spec, x.name, "view", base=x, graph=self)

    def apply(
        self, op: Op, inputs: Sequence[Tensor], attrs: Mapping[str, Any], name: str | None = None
    ) -> tuple[Tensor, ...]:
        """A use of an op. ShapeError, from the op, for specs that it does not take."""
        for tensor in inputs:
            if not isinstance(tensor, Tensor) or tensor.graph is not self:
                raise ShapeError(
                    f"{op.name}: got {tensor!r}; wanted tensors of this graph (g.constant makes one of an array)"
                )
        return self._add(op, inputs, attrs, name or op.name, op.outputs(tuple(t.spec for t in inputs), attrs))

    def _add(
        self, op: Op, inputs: Sequence[Tensor], attrs: Mapping[str, Any], name: str, specs: Sequence[TensorSpec]
    ) -> tuple[Tensor, ...]:
        """A use of an op whose outputs' specs are known."""
        label = self._named(name)
        outputs = tuple(
            Tensor(s, label if i == 0 else f"{label}:{i}", "value", graph=self) for i, s in enumerate(specs)
        )
        self.nodes.append(Node(op, tuple(inputs), outputs, dict(attrs), label, self._device))
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
    ) -> tuple[Tensor, ...]:
        """A node that runs the caller's function on the host, wherever its neighbours run; no pass changes it.

        `function(*inputs, *outputs)` gets NumPy views of the active elements and writes the outputs, and the inputs that
        `updates` names by index, which must be states. Or it is native code, an address or a ctypes function, with the ABI of
        graph/custom.py's PointerCall. `outputs` are TensorSpecs or (shape, dtype). ShapeError for what cannot be a node.
        """
        if not all(isinstance(t, Tensor) for t in inputs):
            came = ", ".join(type(t).__name__ for t in inputs)
            raise ShapeError(
                f"{name}: got inputs {came}; wanted tensors of this graph (g.constant makes one of an array)"
            )
        for index in updates:
            if 0 <= index < len(inputs) and root(inputs[index]).kind != "state":
                raise ShapeError(f"{name}: updates input {index}, {inputs[index].name}, in place; wanted a state there")
        op = custom_op(name, function, tuple(t.spec for t in inputs), outputs, updates, programs)
        return self.apply(op, inputs, {}, name)

    def output(self, name: str, tensor: Tensor) -> Tensor:
        """Names a tensor as a result of the run. ShapeError for what is none of this graph's."""
        if not isinstance(tensor, Tensor) or tensor.graph is not self:
            raise ShapeError(f"output {name!r}: got {tensor!r}; wanted one tensor of this graph")
        return self._once(self.outputs, name, tensor)


def root(tensor: Tensor) -> Tensor:
    """The tensor whose memory a view shows; itself if it is none."""
    while tensor.base is not None:
        tensor = tensor.base
    return tensor


def readers(graph: Graph) -> dict[Tensor, list[Node]]:
    """The nodes that read each tensor, views counted for their roots."""
    found: dict[Tensor, list[Node]] = {}
    for node in graph.nodes:
        for tensor in node.inputs:
            found.setdefault(root(tensor), []).append(node)
    return found
