"""Residency of tensors: the buffer of each in each space, and the copies that bring the newest value there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from camshaft.backends.device import HOST, Device
from camshaft.extent import Extent
from camshaft.graph.graph import Tensor
from camshaft.ops.spec import TensorSpec
from camshaft.plan.lowering.node_thunks import alignment_of
from camshaft.plan.schedule import Buffer, Lifetime, Thunk, copy_thunk

LIFETIMES = {
    "input": Lifetime.IO,
    "constant": Lifetime.CONSTANT,
    "state": Lifetime.STATE,
    "value": Lifetime.TEMP,
}
_ALIGNMENT = 64


@dataclass
class Residency:
    """Root tensors in spaces. `homes` is where each one's own memory lies; `results` are the graph's outputs, which a caller
    reads at home after the run. A copy is made once per value: writing in one space makes the others' versions stale.

    On a device with unified memory, a tensor whose home it is has one buffer, which the host uses too.
    """

    devices: Mapping[str, Device]
    homes: Mapping[Tensor, str]
    results: frozenset[Tensor]
    thunks: list[Thunk]
    buffers: dict[tuple[Tensor, str], Buffer] = field(default_factory=dict)
    _valid: dict[Tensor, set[str]] = field(default_factory=dict)

    def read(self, tensor: Tensor, space: str) -> Buffer:
        """The buffer with the tensor's newest value in a space; adds the copies that bring it there."""
        seat = self._seat(tensor, space)
        valid = self._valid.setdefault(tensor, {self._seat(tensor, self.homes[tensor])})
        if tensor.kind != "constant" and seat not in valid:
            self._copy(tensor, seat)
        return self.buffer(tensor, seat)

    def write(self, tensor: Tensor, space: str) -> Buffer:
        """The buffer that a new value goes to."""
        seat = self._seat(tensor, space)
        self._valid[tensor] = {seat}
        return self.buffer(tensor, seat)

    def settle(self) -> None:
        """Copies home what is read there after the run: outputs and states."""
        for tensor in list(self._valid):
            if tensor in self.results or tensor.kind == "state":
                self.read(tensor, self.homes[tensor])

    def buffer(self, tensor: Tensor, seat: str) -> Buffer:
        """The tensor's buffer in a space, made when it is first asked for."""
        found = self.buffers.get((tensor, seat))
        if found is None:
            at_home = seat == self.homes[tensor]
            alignment = _ALIGNMENT if seat == HOST else alignment_of(self.devices[seat])
            name = tensor.name if at_home else f"{tensor.name}@{seat}"
            lifetime = self._lifetime(tensor) if at_home or tensor.kind == "constant" else Lifetime.TEMP
            found = self.buffers[tensor, seat] = Buffer(name, tensor.spec.nbytes, lifetime, alignment, seat)
        return found

    def _lifetime(self, tensor: Tensor) -> Lifetime:
        return Lifetime.IO if tensor in self.results and tensor.kind == "value" else LIFETIMES[tensor.kind]

    def _seat(self, tensor: Tensor, space: str) -> str:
        home = self.homes[tensor]
        return home if space == HOST and home != HOST and is_unified(self.devices[home]) else space

    def _copy(self, tensor: Tensor, seat: str) -> None:
        valid = self._valid[tensor]
        source = HOST if HOST in valid else min(valid)
        if source != HOST and seat != HOST:  # from device to device: by way of the host
            self._copy(tensor, HOST)
            source = HOST
        pieces = self.buffer(tensor, source).slice(), self.buffer(tensor, seat).slice()
        why = f"{tensor.name} is in {source}, wanted in {seat}"
        # what of a state is not active in this run was so in another
        spread = None if tensor.kind == "state" else leading_extent(tensor.spec)
        self.thunks.append(copy_thunk(f"{tensor.name} → {seat}", *pieces, reason=why, extent=spread))
        valid.add(seat)


def leading_extent(spec: TensorSpec) -> Extent | None:
    """The extent whose active part is the first bytes of a tensor, in proportion; None where there is no such one."""
    first = next((dim for dim in spec.shape if dim != 1), None)
    return first if isinstance(first, Extent) and spec.is_plain else None


def is_unified(device: Device) -> bool:
    """Whether the host sees the device's memory as it is: its Memory then has array(), uint8 over the same bytes."""
    return bool(device.limits.get("unified", 0))
