"""From the nodes of an ExecutionGraph to thunks, each where its caller placed it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from camshaft.backends.device import HOST
from camshaft.errors import PlanError
from camshaft.graph.graph import Graph, Node, Tensor, root
from camshaft.plan.lowering.choose_devices import choose_placed, device_of
from camshaft.plan.lowering.execution_node import TRANSFER
from camshaft.plan.lowering.lower import Lowered
from camshaft.plan.lowering.node_range import NodeRange
from camshaft.plan.lowering.node_thunks import Built, Use, alignment_of, built, space_of, thunks_of
from camshaft.plan.lowering.spaces import Residency, is_unified, leading_extent
from camshaft.plan.memory.device_memory import DeviceArray
from camshaft.plan.schedule import BufferSlice, Thunk, copy_thunk
from camshaft.selection.select import Choice


@dataclass
class Placement:
    """Where tensors lie: the device of each that has memory of its own, the offsets in bytes of views inside their base."""

    devices: dict[Tensor, str] = field(default_factory=dict)
    offsets: dict[Tensor, int] = field(default_factory=dict)

    def device(self, tensor: Tensor) -> str:
        """The name of the device that a tensor lies on; constants count as the CPU's."""
        return self.devices.get(root(tensor), "cpu")

    def offset(self, tensor: Tensor) -> int:
        """The tensor's first byte in its root's memory."""
        found, at = self.offsets.get(tensor, 0), tensor.base
        while at is not None:
            found, at = found + self.offsets.get(at, 0), at.base
        return found


@dataclass(frozen=True)
class Placed:
    """The thunks of each node, by its number, and the memory that they work on. `lowered` has no thunks before `put`."""

    lowered: Lowered
    choices: list[Choice]
    thunks: list[list[Thunk]]
    origins: Mapping[int, NodeRange]

    def put(self, numbers: Iterable[int]) -> None:
        """Gives `lowered` the thunks of the nodes in this order."""
        for number in numbers:
            first = len(self.lowered.thunks)
            self.lowered.thunks.extend(self.thunks[number])
            if number in self.origins:
                origin = self.origins[number]
                self.lowered.origins.append(replace(origin, first=first, last=len(self.lowered.thunks)))


def lower_placed(graph: Graph, placement: Placement, given: Mapping[Tensor, object]) -> Placed:
    """Every node's thunks with a proved variant of its device, over memory that lies there.

    PlanError for a tensor on another device, or `given` on another; BackendError for a device or a kernel that is not to be had.
    """
    names = dict.fromkeys((*placement.devices.values(), *(node.device or "cpu" for node in graph.nodes)))
    found = {name: device_of(name) for name in names}
    homes = {tensor: found[name].space for tensor, name in placement.devices.items()}
    _check_given(given, homes)
    kernels = [node for node in graph.nodes if node.op is not TRANSFER]
    choices = choose_placed(kernels, None, strict=True)
    away = {d.space: d for d in (*found.values(), *(c.device for c in choices)) if d.space != HOST}
    results = frozenset(root(t) for t in graph.outputs.values())
    lowered = Lowered(Residency(away, homes, results, []), away)
    maker = _Lowering(placement, lowered)
    for tensor in (*graph.inputs.values(), *graph.states.values(), *graph.outputs.values()):
        maker.memory(tensor, None)
    chosen = dict(zip(kernels, choices, strict=True))
    origins: dict[int, NodeRange] = {}
    thunks: list[list[Thunk]] = []
    for number, node in enumerate(graph.nodes):
        if node.op is TRANSFER:
            thunks.append([maker.copy(node)])
        else:
            made, origins[number] = maker.kernels(node, chosen[node])
            thunks.append(made)
    return Placed(lowered, choices, thunks, origins)


def check_made(nodes: Iterable[Node], outputs: Mapping[str, Tensor]) -> None:
    """PlanError where a node, in this order, reads a value that none before it wrote any part of; or an output is such."""
    made: set[Tensor] = set()
    for node in nodes:
        for tensor in node.inputs:
            if root(tensor).kind == "value" and root(tensor) not in made:
                raise PlanError(f"{_named(node)} reads {tensor.name}, which no node before it writes")
        made.update(root(t) for t in node.outputs)
    for name, tensor in outputs.items():
        if root(tensor).kind == "value" and root(tensor) not in made:
            raise PlanError(f"execution graph: output {name!r} is {tensor.name}, which no node writes")


def _check_given(given: Mapping[Tensor, object], homes: Mapping[Tensor, str]) -> None:
    for tensor, memory in given.items():
        space = memory.device.space if isinstance(memory, DeviceArray) else HOST
        if homes.get(tensor, HOST) != space:
            raise PlanError(
                f"execution graph: memory for {tensor.name!r} lies on {space}; wanted it on {homes[tensor]}"
            )


@dataclass
class _Lowering:
    placement: Placement
    lowered: Lowered
    builds: dict[Hashable, Built] = field(default_factory=dict)

    def kernels(self, node: Node, choice: Choice) -> tuple[list[Thunk], NodeRange]:
        use = Use(node.name, node.spec, choice)
        made = built(use, self.builds)
        space = space_of(made, choice)
        inputs = [self._at(node, i, t, space) for i, t in enumerate(node.inputs)]
        outputs = [self._at(node, None, t, space) for t in node.outputs]
        thunks = thunks_of(use, made, inputs, outputs, self.lowered.made)
        return thunks, NodeRange(node, choice, 0, len(thunks), tuple(inputs), tuple(outputs))

    def copy(self, node: Node) -> Thunk:
        source, destination = self.memory(node.inputs[0], None), self.memory(node.outputs[0], None)
        spaces = source.buffer.space, destination.buffer.space
        if HOST not in spaces and spaces[0] != spaces[1]:
            raise PlanError(
                f"{_named(node)} goes from {spaces[0]} to {spaces[1]}; wanted two copies, by way of the cpu"
            )
        roots = root(node.inputs[0]), root(node.outputs[0])
        kept = any(tensor.kind == "state" for tensor in roots)
        spread = None if kept else leading_extent(node.inputs[0].spec)
        return copy_thunk(node.name, source, destination, "the caller's copy", spread)

    def _at(self, node: Node, index: int | None, tensor: Tensor, space: str) -> BufferSlice:
        """The tensor's memory, which must be in the space where the node runs."""
        found = self.memory(tensor, space)
        home = found.buffer.space
        if home != space and not (space == HOST and is_unified(self.lowered.devices[home])):
            what = "its output" if index is None else f"its input {index},"
            raise PlanError(
                f"{_named(node)} runs on {space}, but {what} {tensor.name} lies on {home}; wanted a copy there"
            )
        if space != HOST and found.offset % alignment_of(self.lowered.devices[space]):
            wanted = alignment_of(self.lowered.devices[space])
            raise PlanError(
                f"{_named(node)} got {tensor.name} at byte {found.offset}; wanted a multiple of {wanted} there"
            )
        return found

    def memory(self, tensor: Tensor, space: str | None) -> BufferSlice:
        """The tensor's bytes; of a constant those in a space (None: the host's)."""
        base, versions = root(tensor), self.lowered.versions
        seat = (space or HOST) if base.kind == "constant" else versions.homes[base]
        return versions.buffer(base, seat).slice(self.placement.offset(tensor), tensor.spec.nbytes)


def _named(node: Node) -> str:
    return f"execution graph: {node.name!r}"
