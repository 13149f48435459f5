"""Lower a graph to thunks: choose a device and variant for each node, build it, and make its launches thunks over buffers.

Views and packed constants share their root's buffer and add no thunk. Where nodes run on several devices, spaces.py adds copies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from camshaft.backends.device import HOST, Device
from camshaft.backends.registry import device
from camshaft.errors import PlanError
from camshaft.graph.custom import COPY, MEMCPY, CustomOp
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.graph.node import Node
from camshaft.plan.buffers import Buffer, BufferSlice
from camshaft.plan.lowering.node_thunks import Built, NodeRange, build_variant, space_of, thunks_of
from camshaft.plan.lowering.spaces import Residency, is_unified, place
from camshaft.plan.schedule import Thunk
from camshaft.selection.choice import Choice
from camshaft.selection.kernel_dispatch import KernelDispatch, dispatched
from camshaft.selection.override import check_override
from camshaft.selection.select import choose


def choose_variants(
    nodes: Sequence[Node],
    override: str | None,
    strict: bool,
    dispatcher: KernelDispatch | None = None,
    upcoming: Callable[[], Sequence[Node]] = tuple,
) -> list[Choice]:
    """Returns a Choice per node, on its own device or by the override.

    The caller's functions and the ops that the dispatcher supports need no choice. The variants of all other nodes on a device
    are proved together, along with those of the nodes that `upcoming` returns for the override's device. Raises BackendError
    like `choose`, and for an unavailable device.
    """
    wanted = {name: check_override(name) for name in {n.device for n in nodes} if name is not None}
    names = [override if node.device is None else wanted[node.device] for node in nodes]
    found = [_given_choice(node, dispatcher) for node in nodes]
    for name in dict.fromkeys(names):
        indexes = [i for i, other in enumerate(names) if other == name and found[i] is None]
        uses = [(nodes[i].op, nodes[i].spec) for i in indexes]
        later = (lambda: [(node.op, node.spec) for node in upcoming()]) if name == override else tuple
        chosen = choose(uses, name, strict=strict, upcoming=later)
        for i, choice in zip(indexes, chosen, strict=True):
            found[i] = choice
    return [choice for choice in found if choice is not None]


def _given_choice(node: Node, dispatcher: KernelDispatch | None) -> Choice | None:
    """Returns the choice for a caller's function, a copy, or an op that the dispatcher supports."""
    if isinstance(node.op, CustomOp):
        return Choice(node.op, node.op.variants[0], "simd", device("cpu"), "the caller's own function", ())
    if node.op is COPY:
        return Choice(node.op, MEMCPY, "simd", device_of(node.device or "cpu"), "the caller's copy", ())
    return None if dispatcher is None else dispatched(dispatcher, node.op, node.spec)


def device_of(name: str) -> Device:
    """Returns the device of that name. Raises BackendError if it is not available."""
    return device(check_override(name))


def tensor_devices(graph: Graph, given: Mapping[Tensor, Device]) -> dict[Tensor, Device]:
    """Returns the device of each root tensor that the graph places or whose memory is `given`. PlanError if they differ."""
    named = (*graph.inputs.values(), *graph.states.values(), *(t for n in graph.nodes for t in (*n.inputs, *n.outputs)))
    placed = {base: device_of(base.device) for base in map(root, named) if base.device is not None}
    for tensor, there in given.items():
        if tensor in placed and placed[tensor].space != there.space:
            wanted = placed[tensor].space
            raise PlanError(f"compile: memory for {tensor.name!r} is on {there.space}; wanted it on {wanted}")
    return {**given, **placed}


@dataclass
class Lowered:
    """Thunks, the residency of root tensors, the devices outside the host's space, and constants that lowering created."""

    residency: Residency
    devices: Mapping[str, Device]
    made: dict[Buffer, np.ndarray[Any, Any]] = field(default_factory=dict)
    origins: list[NodeRange] = field(default_factory=list)

    @property
    def thunks(self) -> list[Thunk]:
        return self.residency.thunks

    def home(self, tensor: Tensor) -> Buffer:
        """Returns the buffer in the root's home space, which callers provide or read."""
        base = root(tensor)
        return self.residency.buffer(base, self.residency.homes[base])


def lower(
    graph: Graph, choices: Sequence[Choice], places: Mapping[Tensor, Device] | None = None, *, as_written: bool = False
) -> Lowered:
    """Returns the thunks of every node with its choice, in order, and the copies between spaces.

    Outputs of the graph are IO: a caller reads them after the run. `places` maps root tensors to the device of their memory. In
    a graph `as_written` the caller makes the copies: PlanError for a tensor that is not in its reader's space, and outputs stay
    where they are computed.
    """
    devices: dict[str, Device] = {}
    for used in (*(choice.device for choice in choices), *(places or {}).values()):
        if used.space != HOST:
            devices.setdefault(used.space, used)
    results = frozenset(root(t) for t in graph.outputs.values())
    builds: dict[Hashable, Built] = {}
    chosen = list(zip(graph.nodes, choices, strict=True))
    made = [None if node.op is COPY else build_variant(node.spec, choice, builds) for node, choice in chosen]
    spaces = [
        choice.device.space if m is None else space_of(m, choice) for m, choice in zip(made, choices, strict=True)
    ]
    homes = _homes(graph, spaces, devices, () if as_written else graph.outputs.values())
    homes |= {tensor: there.space for tensor, there in (places or {}).items()}
    lowered = Lowered(Residency(devices, homes, results, []), devices)
    for tensor in (*graph.inputs.values(), *graph.states.values(), *graph.outputs.values()):
        if root(tensor).kind != "constant" or root(tensor) in results:
            lowered.home(tensor)
    for (node, choice), space, build in zip(chosen, spaces, made, strict=True):
        if build is None:
            lowered.thunks.append(lowered.residency.transfer(node))
            continue
        if as_written:
            lowered.residency.check_at_home(node, space)
        memory = _node_memory(node, space, lowered.residency)
        first = len(lowered.thunks)
        lowered.thunks.extend(thunks_of(node, choice, build, *memory, lowered.made))
        lowered.origins.append(NodeRange(node, choice, first, len(lowered.thunks), *map(tuple, memory)))
    lowered.residency.copy_home()
    return lowered


def _homes(
    graph: Graph, spaces: Sequence[str], devices: Mapping[str, Device], read: Iterable[Tensor]
) -> dict[Tensor, str]:
    """Returns each root tensor's home space.

    Inputs and outputs: the host. States: the device that updates them first. Values: the device that computes them. Tensors
    that a device with unified memory accesses: that device.
    """
    homes = {root(t): HOST for t in (*graph.inputs.values(), *graph.states.values(), *read)}
    states: dict[Tensor, str] = {}
    shared: dict[Tensor, str] = {}
    for node, space in zip(graph.nodes, spaces, strict=True):
        for tensor in (*node.inputs, *node.outputs):
            homes.setdefault(root(tensor), space if any(tensor is made for made in node.outputs) else HOST)
            if space in devices and is_unified(devices[space]):
                shared.setdefault(root(tensor), space)
        written = (*(node.inputs[i] for i in node.op.updates), *node.outputs)
        for tensor in map(root, () if node.op is COPY else written):
            if tensor.kind == "state":
                states.setdefault(tensor, space)
    for tensor in map(root, graph.outputs.values()):
        homes.setdefault(tensor, HOST)
    return homes | states | shared


def _node_memory(node: Node, space: str, residency: Residency) -> tuple[list[BufferSlice], list[BufferSlice]]:
    """Returns the node's inputs and outputs in a space; copies inputs there and marks written tensors as newest there."""
    inputs = [place(residency.read(root(t), space), t) for t in node.inputs]
    for index in node.op.updates:
        residency.write(root(node.inputs[index]), space)
    return inputs, [place(residency.write(root(t), space), t) for t in node.outputs]
