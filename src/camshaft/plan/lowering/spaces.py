"""Residency: which memory spaces have the newest value of each tensor, and the copies to other spaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from camshaft.backends.device import HOST, Device
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.graph.graph import Tensor, offset_nbytes, root
from camshaft.graph.node import Node
from camshaft.ops.spec import TensorSpec
from camshaft.plan.buffers import Buffer, BufferSlice, Lifetime
from camshaft.plan.lowering.node_thunks import alignment_of
from camshaft.plan.schedule import Thunk, copy_thunk

LIFETIMES = {
    "input": Lifetime.IO,
    "constant": Lifetime.CONSTANT,
    "state": Lifetime.STATE,
    "value": Lifetime.TEMP,
    "buffer": Lifetime.TEMP,
}
_ALIGNMENT = 64


@dataclass
class Residency:
    """The spaces that have the newest value of each root tensor, and the copy thunks added so far.

    `homes` maps a tensor to the space of its own memory; `results` are the graph's outputs, which a caller reads there after the
    run. A value is copied to a space once; a write in one space invalidates the other copies. On a device with unified memory, a
    tensor whose home is that device has one buffer, shared with the host.
    """

    devices: Mapping[str, Device]
    homes: Mapping[Tensor, str]
    results: frozenset[Tensor]
    thunks: list[Thunk]
    buffers: dict[tuple[Tensor, str], Buffer] = field(default_factory=dict)
    _valid: dict[Tensor, set[str]] = field(default_factory=dict)

    def read(self, tensor: Tensor, space: str) -> Buffer:
        """Returns the buffer with the tensor's newest value in a space; adds the copies that it needs."""
        there = self._memory_space(tensor, space)
        valid = self._valid.setdefault(tensor, {self._memory_space(tensor, self.homes[tensor])})
        if tensor.kind != "constant" and there not in valid:
            self._copy(tensor, there)
        return self.buffer(tensor, there)

    def write(self, tensor: Tensor, space: str) -> Buffer:
        """Returns the buffer for a new value and invalidates the tensor's other copies."""
        there = self._memory_space(tensor, space)
        self._valid[tensor] = {there}
        return self.buffer(tensor, there)

    def transfer(self, node: Node) -> Thunk:
        """Returns the thunk of an explicit copy node, between the homes of two tensors."""
        source, destination = (place(self.read(root(t), self.homes[root(t)]), t) for t in (*node.inputs, *node.outputs))
        spaces = source.buffer.space, destination.buffer.space
        if HOST not in spaces and spaces[0] != spaces[1]:
            raise PlanError(
                f"compile: {node.name!r} goes from {spaces[0]} to {spaces[1]}; wanted two copies, through the cpu"
            )
        is_state = any(root(tensor).kind == "state" for tensor in (*node.inputs, *node.outputs))
        extent = None if is_state else leading_extent(node.inputs[0].spec)
        return copy_thunk(node.name, source, destination, "the caller's copy", extent)

    def check_at_home(self, node: Node, space: str) -> None:
        """Raises PlanError if a node's tensor is in another space than the node, or at an offset that kernels don't accept."""
        names = [f"its input {i}," for i in range(len(node.inputs))] + ["its output"] * len(node.outputs)
        for name, tensor in zip(names, (*node.inputs, *node.outputs), strict=True):
            base, at = root(tensor), offset_nbytes(tensor)
            home = space if base.kind == "constant" else self.homes[base]
            if home != space and self._memory_space(base, space) != home:
                raise PlanError(
                    f"compile: {node.name!r} runs on {space}, but {name} {tensor.name} is on {home}; wanted a copy there"
                )
            if space != HOST and at % alignment_of(self.devices[space]):
                wanted = alignment_of(self.devices[space])
                raise PlanError(
                    f"compile: {node.name!r} got {tensor.name} at byte {at}; wanted a multiple of {wanted} there"
                )

    def copy_home(self) -> None:
        """Copies outputs and states to their home spaces, where callers read them after the run."""
        for tensor in list(self._valid):
            if tensor in self.results or tensor.kind == "state":
                self.read(tensor, self.homes[tensor])

    def buffer(self, tensor: Tensor, space: str) -> Buffer:
        """Returns the tensor's buffer in a space, created on first use."""
        found = self.buffers.get((tensor, space))
        if found is None:
            at_home = space == self.homes[tensor]
            alignment = _ALIGNMENT if space == HOST else alignment_of(self.devices[space])
            name = tensor.name if at_home else f"{tensor.name}@{space}"
            lifetime = self._lifetime(tensor) if at_home or tensor.kind == "constant" else Lifetime.TEMP
            found = self.buffers[tensor, space] = Buffer(name, tensor.spec.nbytes, lifetime, alignment, space)
        return found

    def _lifetime(self, tensor: Tensor) -> Lifetime:
        made = tensor.kind in ("value", "buffer")
        return Lifetime.IO if tensor in self.results and made else LIFETIMES[tensor.kind]

    def _memory_space(self, tensor: Tensor, space: str) -> str:
        """Returns the space of the memory that `space` uses for the tensor: its home if the host can address that."""
        home = self.homes[tensor]
        return home if space == HOST and home != HOST and is_unified(self.devices[home]) else space

    def _copy(self, tensor: Tensor, space: str) -> None:
        valid = self._valid[tensor]
        source = HOST if HOST in valid else min(valid)
        if source != HOST and space != HOST:  # device to device goes through the host
            self._copy(tensor, HOST)
            source = HOST
        pieces = self.buffer(tensor, source).slice(), self.buffer(tensor, space).slice()
        why = f"{tensor.name} is in {source}, wanted in {space}"
        # the inactive part of a state may have values of an earlier run
        extent = None if tensor.kind == "state" else leading_extent(tensor.spec)
        self.thunks.append(copy_thunk(f"{tensor.name} → {space}", *pieces, reason=why, extent=extent))
        valid.add(space)


def place(buffer: Buffer, tensor: Tensor) -> BufferSlice:
    """Returns the tensor's slice of its root's buffer."""
    return buffer.slice(offset_nbytes(tensor), tensor.spec.nbytes)


def leading_extent(spec: TensorSpec) -> Extent | None:
    """Returns the leading extent, whose active part is a proportional prefix of the bytes; None if there is none."""
    first = next((dim for dim in spec.shape if dim != 1), None)
    return first if isinstance(first, Extent) and spec.is_plain else None


def is_unified(device: Device) -> bool:
    """Whether the host can address the device's memory; its Memory then has array(), uint8 over the same bytes."""
    return bool(device.limits.get("unified", 0))
