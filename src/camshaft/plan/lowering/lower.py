"""From a graph to thunks: a variant is chosen and built for each node, and its launches become thunks over buffers.

Views and packed constants share their root's buffer and make no thunk. Where nodes run
on several devices, spaces.py adds the copies.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from camshaft.backends.device import HOST, Device
from camshaft.graph.graph import Graph, Node, Tensor, root
from camshaft.plan.lowering.node_range import NodeRange
from camshaft.plan.lowering.node_thunks import Built, Use, built, space_of, thunks_of
from camshaft.plan.lowering.spaces import Residency, is_unified
from camshaft.plan.schedule import Buffer, Thunk
from camshaft.selection.select import Choice


@dataclass
class Lowered:
    """Thunks, where every root tensor lies, the devices outside of the host's space, and the memory of constants that lowering
    itself made."""

    versions: Residency
    devices: Mapping[str, Device]
    made: dict[Buffer, np.ndarray[Any, Any]] = field(default_factory=dict)
    origins: list[NodeRange] = field(default_factory=list)

    @property
    def thunks(self) -> list[Thunk]:
        return self.versions.thunks

    def home(self, tensor: Tensor) -> Buffer:
        """The buffer that a caller gives or reads: where the root's own memory lies."""
        base = root(tensor)
        return self.versions.buffer(base, self.versions.homes[base])


def lower(graph: Graph, choices: Sequence[Choice], given: Mapping[Tensor, str] | None = None) -> Lowered:
    """Every node's thunks, in order, with the node's choice, and the copies between spaces.

    Outputs of the graph are IO: a caller reads them after the run. `given` says in which space the memory of a root tensor
    is that the caller brings.
    """
    devices = {choice.device.space: choice.device for choice in choices if choice.device.space != HOST}
    results = frozenset(root(t) for t in graph.outputs.values())
    builds: dict[Hashable, Built] = {}
    uses = [Use(n.name, n.spec, choice) for n, choice in zip(graph.nodes, choices, strict=True)]
    made = [built(use, builds) for use in uses]
    spaces = [space_of(m, choice) for m, choice in zip(made, choices, strict=True)]
    homes = _homes(graph, spaces, devices) | dict(given or {})
    lowered = Lowered(Residency(devices, homes, results, []), devices)
    for tensor in (*graph.inputs.values(), *graph.states.values(), *graph.outputs.values()):
        if root(tensor).kind != "constant" or root(tensor) in results:
            lowered.home(tensor)
    for node, use, space, build in zip(graph.nodes, uses, spaces, made, strict=True):
        memory = _node_memory(node, space, lowered.versions)
        first = len(lowered.thunks)
        lowered.thunks.extend(thunks_of(use, build, *memory, lowered.made))
        lowered.origins.append(NodeRange(node, use.choice, first, len(lowered.thunks), *map(tuple, memory)))
    lowered.versions.settle()
    return lowered


def _homes(graph: Graph, spaces: Sequence[str], devices: Mapping[str, Device]) -> dict[Tensor, str]:
    """Where each root tensor's own memory lies. What a caller gives or reads lies in the host's; a state where it is updated
    first, a value where it is made; whatever a device with unified memory touches, there."""
    homes = {root(t): HOST for t in (*graph.inputs.values(), *graph.states.values(), *graph.outputs.values())}
    states: dict[Tensor, str] = {}
    shared: dict[Tensor, str] = {}
    for node, space in zip(graph.nodes, spaces, strict=True):
        for tensor in (*node.inputs, *node.outputs):
            homes.setdefault(root(tensor), space if tensor in node.outputs else HOST)
            if space in devices and is_unified(devices[space]):
                shared.setdefault(root(tensor), space)
        for tensor in (root(node.inputs[i]) for i in node.op.updates):
            if tensor.kind == "state":
                states.setdefault(tensor, space)
    return homes | states | shared


def _node_memory(node: Node, space: str, versions: Residency) -> tuple[list[Buffer], list[Buffer]]:
    """The node's inputs and outputs in a space, inputs brought there; what it updates or makes is newest there afterwards."""
    inputs = [versions.read(root(t), space) for t in node.inputs]
    for index in node.op.updates:
        versions.write(root(node.inputs[index]), space)
    return inputs, [versions.write(root(t), space) for t in node.outputs]
