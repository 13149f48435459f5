"""ExecutionGraph: nodes that the caller places and orders himself. Next to compile.py, over the same thunks and executor.

Where `camshaft.compile` decides where nodes run, what is copied and what waits, here the caller does: every node has a device,
every copy is a node, and the order follows from `after=` and, unless the caller takes that over too, from the bytes that nodes
touch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from camshaft import ops
from camshaft.dtypes import as_dtype
from camshaft.errors import PlanError, ShapeError
from camshaft.extent import Extent
from camshaft.formats.blocks import BlockFormat
from camshaft.graph.custom import Spec, custom_op
from camshaft.graph.graph import Node, Source, Tensor, root
from camshaft.ops.op import Attrs, Op
from camshaft.ops.quantized.packing import INTERLEAVED, interleaved
from camshaft.ops.spec import Dim, TensorSpec, dims
from camshaft.plan.compile import bind_lowered, extents_of_graph
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.hooks import hook
from camshaft.plan.instrument import watch_lowered
from camshaft.plan.lowering.execution_node import TRANSFER, ExecutionNode, PlacedTensors, listed
from camshaft.plan.lowering.explicit import Placement, check_made, lower_placed
from camshaft.plan.lowering.node_order import order_nodes
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.memory.buffer_memory import given_memory
from camshaft.plan.memory.device_memory import DeviceArray
from camshaft.plan.memory.weights import Weights
from camshaft.settings import settings, thread_count

Array = np.ndarray[Any, Any]


Operand: TypeAlias = Tensor | ExecutionNode | Array
After: TypeAlias = Sequence[ExecutionNode | str]


class ExecutionGraph:
    """A program whose nodes the caller places. Methods add to it; `compile` makes the plan.

    Tensors lie on one device each ('cpu', 'webgpu:1', ...): a node reads those of its own device, and constants; `copy` brings
    others there. Nothing is fused, quantized, moved or computed elsewhere than asked.
    """

    def __init__(self) -> None:
        self._graph = PlacedTensors()
        self._nodes: dict[str, ExecutionNode] = {}
        self._placement = Placement()

    @property
    def nodes(self) -> tuple[ExecutionNode, ...]:
        """The nodes in the order in which they were added."""
        return tuple(self._nodes.values())

    # --- tensors ---------------------------------------------------------------------------------------------------
    def input(self, name: str, shape: Sequence[Dim], dtype: object, device: str = "cpu") -> Tensor:
        """A tensor given to every run; one on another device than the CPU lies in a DeviceArray (see `compile`'s memory)."""
        return self._on(device, self._graph.input(name, shape, dtype))

    def state(self, name: str, spec: TensorSpec, device: str = "cpu") -> Tensor:
        """A tensor whose bytes survive runs."""
        return self._on(device, self._graph.state(name, spec))

    def buffer(self, name: str, shape: Sequence[Dim], dtype: object, device: str = "cpu") -> Tensor:
        """Memory for values of one run, which nodes write `into`, whole or by `rows`."""
        spec = TensorSpec(dims(f"buffer {name!r}", shape), as_dtype(dtype))
        return self._on(device, Tensor(spec, name, "value", graph=self._graph))

    def constant(self, name: str, value: Array | Source, spec: TensorSpec | None = None) -> Tensor:
        """A tensor that never changes, at hand on every device. One in a block format is packed as the kernels want it."""
        if spec is not None and isinstance(spec.dtype, BlockFormat) and spec.layout is not INTERLEAVED:
            spec = interleaved(spec)
        return self._on("cpu", self._graph.constant(name, value, spec))

    def reshape(self, x: Operand, shape: Sequence[Dim]) -> Tensor:
        """The same bytes in another shape; makes no thunk."""
        return self._graph.reshape(self._tensor("reshape", x), shape)

    def rows(self, x: Operand, first: int, last: int) -> Tensor:
        """Rows [first, last) of a plain tensor along its first axis, which is no Extent: the same bytes; makes no thunk."""
        tensor = self._tensor("rows", x)
        n_rows = tensor.shape[0] if tensor.spec.is_plain and tensor.shape else 0
        whole = isinstance(first, int) and isinstance(last, int)
        if isinstance(n_rows, Extent) or not whole or not 0 <= first < last <= n_rows:
            raise ShapeError(
                f"rows: got [{first}, {last}) of {tensor.spec}; wanted rows of a plain tensor that has them"
            )
        part = TensorSpec((last - first, *tensor.shape[1:]), tensor.spec.dtype)
        view = Tensor(part, f"{tensor.name}[{first}:{last}]", "view", base=tensor, graph=self._graph)
        self._placement.offsets[view] = tensor.spec.nbytes // n_rows * first
        return view

    def output(self, name: str, x: Operand) -> Tensor:
        """Names a tensor as a result of the run; one that lies on a device is not read back: it is the plan's `away[name]`.
        PlanError for rows that are not the first."""
        tensor = self._tensor("output", x)
        if self._placement.offset(tensor):
            raise PlanError(f"execution graph: output {name!r} is {tensor.name}; wanted a whole tensor")
        return self._graph.output(name, tensor)

    # --- nodes -----------------------------------------------------------------------------------------------------
    def node(
        self,
        op: str,
        *inputs: Operand,
        device: str = "cpu",
        after: After = (),
        into: Sequence[Tensor] | None = None,
        name: str | None = None,
        **attrs: Any,
    ) -> ExecutionNode:
        """A use of an op on a device. A node stands for its only output; an array becomes a constant.

        `into` are tensors to write the outputs to, instead of new ones. ShapeError as the op's; PlanError for an unknown op, a
        name that is taken, or memory that cannot be written.
        """
        if op not in ops.NAMES:
            raise PlanError(f"execution graph: no op {op!r}; wanted one of {', '.join(ops.NAMES)}")
        return self._add(ops.get(op), inputs, attrs, device, after, into, name)

    def custom(
        self,
        function: object,
        inputs: Sequence[Operand],
        outputs: Sequence[Spec],
        *,
        updates: Sequence[int] = (),
        programs: Dim = 1,
        after: After = (),
        into: Sequence[Tensor] | None = None,
        name: str = "custom",
    ) -> ExecutionNode:
        """A node that runs the caller's function on the host, as Graph.custom has it; `updates` may name buffers too."""
        tensors = [self._tensor(name, x) for x in inputs]
        op = custom_op(name, function, tuple(t.spec for t in tensors), outputs, updates, programs)
        return self._add(op, tensors, {}, "cpu", after, into, name)

    def copy(
        self,
        x: Operand,
        device: str | None = None,
        *,
        into: Tensor | None = None,
        after: After = (),
        name: str | None = None,
    ) -> ExecutionNode:
        """A copy of a tensor's bytes to a device, or into a tensor as large, wherever that lies. Between two devices outside of
        the host it takes two: by way of the CPU."""
        if device is not None and into is None:
            return self._add(TRANSFER, [x], {}, device, after, None, name)
        if device is not None or not isinstance(into, Tensor):
            raise PlanError("execution graph: a copy goes to a device or into a tensor; wanted one of the two")
        return self._add(TRANSFER, [x], {}, self._placement.device(into), after, [into], name)

    def _add(
        self,
        op: Op,
        inputs: Sequence[Operand],
        attrs: Attrs,
        device: str,
        after: After,
        into: Sequence[Tensor] | None,
        name: str | None,
    ) -> ExecutionNode:
        label = name or self._free(op.name)
        if label in self._nodes:
            raise PlanError(f"execution graph: there is a node {label!r} already; wanted another name")
        earlier = listed(label, "after", after, (ExecutionNode, str), "nodes of this graph or their names")
        tensors = tuple(self._tensor(label, x, f"{label}.{i}") for i, x in enumerate(inputs))
        specs = op.outputs(tuple(t.spec for t in tensors), attrs)
        for index in op.updates:
            self._check_written(label, tensors[index])
        outputs = self._outputs(label, specs, device) if into is None else self._given(label, specs, into)
        node = Node(op, tensors, outputs, dict(attrs), label, device)
        self._graph.nodes.append(node)
        made = self._nodes[label] = ExecutionNode(node, earlier)
        return made

    def _free(self, name: str) -> str:
        taken = sum(key == name or key.startswith(f"{name}.") for key in self._nodes)
        return f"{name}.{taken + 1}" if taken else name

    def _outputs(self, label: str, specs: Sequence[TensorSpec], device: str) -> tuple[Tensor, ...]:
        names = (label if i == 0 else f"{label}:{i}" for i in range(len(specs)))
        return tuple(
            self._on(device, Tensor(s, n, "value", graph=self._graph)) for s, n in zip(specs, names, strict=True)
        )

    def _given(self, label: str, specs: Sequence[TensorSpec], into: Sequence[Tensor]) -> tuple[Tensor, ...]:
        into = listed(label, "into", into, (Tensor,), "states or buffers")
        if [t.spec for t in into] != list(specs):
            came, wanted = (", ".join(map(str, found)) or "nothing" for found in ([t.spec for t in into], specs))
            raise ShapeError(f"{label}: got memory for {came}; wanted it for {wanted}")
        for tensor in into:
            self._check_written(label, self._tensor(label, tensor))
        return tuple(Tensor(t.spec, t.name, "view", base=t, graph=self._graph) for t in into)

    def _check_written(self, label: str, tensor: Tensor) -> None:
        if root(tensor).kind in ("constant", "input"):
            raise PlanError(
                f"execution graph: {label!r} writes {tensor.name}; wanted a state or a buffer, no {root(tensor).kind}"
            )

    def _tensor(self, label: str, x: Operand, name: str = "constant") -> Tensor:
        if isinstance(x, np.ndarray):
            return self.constant(name, x)
        tensor = x.output if isinstance(x, ExecutionNode) else x
        if not isinstance(tensor, Tensor) or tensor.graph is not self._graph:
            raise ShapeError(f"{label}: got {x!r}; wanted a tensor or node of this execution graph, or an array")
        return tensor

    def _on(self, device: str, tensor: Tensor) -> Tensor:
        self._placement.devices[tensor] = device
        return tensor

    # --- plan ------------------------------------------------------------------------------------------------------
    def compile(
        self,
        *,
        sync: str = "hazards",
        threads: int | None = None,
        weights: Weights | None = None,
        memory: Mapping[str, Array | DeviceArray] | None = None,
        arena: Array | None = None,
        tune: bool | None = None,
    ) -> ExecutionPlan:
        """Grinds the graph into an ExecutionPlan, as `camshaft.compile` does; `memory`, `weights`, `arena` and `tune` as there.

        `sync` says what waits. 'hazards': a node for those it comes `after`, and for earlier ones that touch the same bytes.
        'each': besides, every node for the one before it. 'explicit': a node for those it comes `after` and no other; then two
        nodes that touch the same bytes, one writing, in no order are an error. PlanError for such, for an order that goes in a
        circle, an unknown node or a tensor on another device; BackendError where a device has no proved kernel for a node.
        """
        started = time.perf_counter()
        given = given_memory(self._graph, memory or {})
        unknown = sorted(
            set(memory or ()) - {n for t in (self._graph.inputs, self._graph.states, self._graph.outputs) for n in t}
        )
        if unknown:
            raise PlanError(f"execution graph: memory for {', '.join(unknown)}, which it does not name")
        named = [(n.name, [self._named(n, a) for a in n.after]) for n in self.nodes]
        if settings().tune if tune is None else tune:
            hook("tune_graphs")([self._graph], None, thread_count(threads))
        placed = lower_placed(self._graph, self._placement, given)
        order = order_nodes(named, placed.thunks, sync)
        check_made([self._graph.nodes[number] for number in order.numbers], self._graph.outputs)
        placed.put(order.numbers)
        watch_lowered(placed.lowered)
        made = make_schedule(placed.lowered.thunks, extents_of_graph(self._graph), order.after, order.before)
        return bind_lowered(
            self._graph, placed.lowered, placed.choices, made, threads, weights or Weights(), given, arena, started
        )

    def _named(self, node: ExecutionNode, earlier: ExecutionNode | str) -> str:
        if isinstance(earlier, str):
            return earlier
        if self._nodes.get(earlier.name) is not earlier:
            raise PlanError(
                f"execution graph: {node.name!r} comes after {earlier.name!r} of another graph; wanted one of this"
            )
        return earlier.name
