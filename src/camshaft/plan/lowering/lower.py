"""Lower a graph to thunks: choose and build a variant for each node; its launches become thunks over buffers.

Views and packed constants share their root's buffer and make no thunk. Where nodes run
on several devices, spaces.py adds the copies.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from camshaft.backends.device import HOST, Device
from camshaft.graph.custom import COPY
from camshaft.graph.graph import Graph, Node, Tensor, root
from camshaft.plan.lowering.node_range import NodeRange
from camshaft.plan.lowering.node_thunks import Built, Use, built, space_of, thunks_of
from camshaft.plan.lowering.spaces import Residency, is_unified, place
from camshaft.plan.schedule import Buffer, BufferSlice, Thunk
from camshaft.selection.select import Choice


@dataclass
class Lowered:
    """Thunks, the residency of root tensors, the devices outside the host's space, and constants that lowering created."""

    versions: Residency
    devices: Mapping[str, Device]
    made: dict[Buffer, np.ndarray[Any, Any]] = field(default_factory=dict)
    origins: list[NodeRange] = field(default_factory=list)

    @property
    def thunks(self) -> list[Thunk]:
        return self.versions.thunks

    def home(self, tensor: Tensor) -> Buffer:
        """Returns the buffer in the root's home space, which callers provide or read."""
        base = root(tensor)
        return self.versions.buffer(base, self.versions.homes[base])


def lower(
    graph: Graph, choices: Sequence[Choice], places: Mapping[Tensor, Device] | None = None, *, as_written: bool = False
) -> Lowered:
    """Every node's thunks, in order, with the node's choice, and the copies between spaces.

    Outputs of the graph are IO: a caller reads them after the run. `places` says where the memory of a root tensor is that the
    caller brings or places. A graph `as_written` has its own copies: PlanError for a tensor that lies elsewhere than its
    reader runs, and outputs stay where they are made.
    """
    devices: dict[str, Device] = {}
    for device in (*(choice.device for choice in choices), *(places or {}).values()):
        if device.space != HOST:
            devices.setdefault(device.space, device)
    results = frozenset(root(t) for t in graph.outputs.values())
    builds: dict[Hashable, Built] = {}
    uses = [Use(n.name, n.spec, choice) for n, choice in zip(graph.nodes, choices, strict=True)]
    made = [None if use.choice.op is COPY else built(use, builds) for use in uses]
    spaces = [
        choice.device.space if m is None else space_of(m, choice) for m, choice in zip(made, choices, strict=True)
    ]
    homes = _homes(graph, spaces, devices, () if as_written else graph.outputs.values())
    homes |= {tensor: device.space for tensor, device in (places or {}).items()}
    lowered = Lowered(Residency(devices, homes, results, []), devices)
    for tensor in (*graph.inputs.values(), *graph.states.values(), *graph.outputs.values()):
        if root(tensor).kind != "constant" or root(tensor) in results:
            lowered.home(tensor)
    for node, use, space, build in zip(graph.nodes, uses, spaces, made, strict=True):
        if build is None:
            lowered.thunks.append(lowered.versions.transfer(node))
            continue
        if as_written:
            lowered.versions.check_at_home(node, space)
        memory = _node_memory(node, space, lowered.versions)
        first = len(lowered.thunks)
        lowered.thunks.extend(thunks_of(use, build, *memory, lowered.made))
        lowered.origins.append(NodeRange(node, use.choice, first, len(lowered.thunks), *map(tuple, memory)))
    lowered.versions.settle()
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


def _node_memory(node: Node, space: str, versions: Residency) -> tuple[list[BufferSlice], list[BufferSlice]]:
    """Returns the node's inputs and outputs in a space; copies inputs there and marks written tensors as newest there."""
    inputs = [place(versions.read(root(t), space), t) for t in node.inputs]
    for index in node.op.updates:
        versions.write(root(node.inputs[index]), space)
    return inputs, [place(versions.write(root(t), space), t) for t in node.outputs]
