"""Bind a schedule's buffers to device memory, and turn its thunks into the device's commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from camshaft.backends.device import HOST, Bytes, Command, CopyCommand, Device, LaunchCommand, Memory, Place
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.ops.spec import TensorSpec
from camshaft.plan.buffers import Buffer, BufferSlice, Lifetime
from camshaft.plan.lowering.spaces import is_unified
from camshaft.plan.memory.arena import MemoryPlan
from camshaft.plan.memory.binding import BoundMemory
from camshaft.plan.schedule import Schedule, Thunk


@dataclass(frozen=True)
class DeviceArray:
    """A plain tensor in a device's memory: a plan's state, input or output. `memory=` shares it among plans."""

    device: Device
    memory: Memory
    spec: TensorSpec

    @classmethod
    def zeros(cls, device: Device, spec: TensorSpec) -> DeviceArray:
        """Allocates zeroed memory. Raises BackendError if the device has too little."""
        return cls(device, device.allocate(spec.nbytes), spec)

    @property
    def nbytes(self) -> int:
        return self.spec.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.bounds

    def read(self, rows: int | None = None) -> np.ndarray[Any, Any]:
        """Copies the elements, or the first `rows` along axis 0, after all work submitted earlier."""
        shape = self.spec.bounds if rows is None else (rows, *self.spec.bounds[1:])
        nbytes = self.nbytes if rows is None else self.nbytes // self.spec.bounds[0] * rows
        return self.memory.read(0, nbytes).view(self.spec.parts[0].dtype.numpy).reshape(shape)

    def write(self, values: np.ndarray[Any, Any]) -> None:
        """Writes elements from the start. Raises PlanError for another dtype or too many elements."""
        if values.dtype != self.spec.parts[0].dtype.numpy or values.nbytes > self.nbytes:
            raise PlanError(f"memory of {self.spec} got {values.dtype} {list(values.shape)}")
        self.memory.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8))

    def close(self) -> None:
        """Frees the memory."""
        self.memory.close()


@dataclass(frozen=True)
class DeviceRows:
    """The first rows of a DeviceArray, read by `copy`."""

    array: DeviceArray
    rows: int

    def copy(self) -> np.ndarray[Any, Any]:
        """Returns the rows' current values."""
        return self.array.read(self.rows)


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device's part of a plan. `close` closes `own`: the arena and what the plan allocated."""

    device: Device
    arena: Memory | None
    offsets: Mapping[Buffer, int]
    memories: Mapping[Buffer, Memory]
    own: tuple[Memory, ...]

    def place(self, piece: BufferSlice) -> Place:
        """Returns the slice's place in device memory."""
        if piece.buffer.lifetime is not Lifetime.TEMP:
            return Place(self.memories[piece.buffer], piece.offset, piece.nbytes)
        assert self.arena is not None
        return Place(self.arena, self.offsets[piece.buffer] + piece.offset, piece.nbytes)

    def host_view(self, buffer: Buffer) -> Bytes:
        """Returns the buffer's bytes as a host array; the device must have unified memory."""
        place = self.place(buffer.slice())
        whole: Bytes = place.memory.array()  # type: ignore[attr-defined]  # such a device's memory has it
        return whole[place.offset_nbytes : place.offset_nbytes + place.nbytes]

    def shown_to_host(self, memory: BoundMemory, buffers: Sequence[Buffer]) -> BoundMemory:
        """Returns the host's memory, with this device's buffers added if the device has unified memory."""
        if not is_unified(self.device):
            return memory
        pieces = {b: self.host_view(b) for b in buffers if b.space == self.device.space}
        addresses = {b: int(piece.ctypes.data) for b, piece in pieces.items()}
        return replace(memory, pieces={**memory.pieces, **pieces}, addresses={**memory.addresses, **addresses})

    def close(self) -> None:
        for memory in self.own:
            memory.close()


def bind_devices(
    schedule: Schedule,
    plan: MemoryPlan,
    devices: Sequence[Device],
    given: Mapping[Buffer, Memory],
    own: Sequence[Memory],
) -> dict[str, DeviceMemory]:
    """Returns each device's memory: an arena and the given buffers. Raises PlanError if some is missing, too small or shared."""
    spaces = {device.space: device for device in devices}
    away = [b for b in schedule.buffers if b.space != HOST]
    unknown = sorted({b.space for b in away} - set(spaces))
    if unknown:
        raise PlanError(f"a plan has buffers in {', '.join(unknown)}; it got devices for {', '.join(spaces) or 'none'}")
    _check_given(schedule, [b for b in away if b.lifetime is not Lifetime.TEMP], given)
    made = {}
    for space, device in spaces.items():
        nbytes = plan.device_nbytes.get(space, 0)
        arena = device.allocate(nbytes) if nbytes else None
        memories = {b: m for b, m in given.items() if b.space == space}
        closes = tuple(m for m in own if any(m is other for other in memories.values()))
        made[space] = DeviceMemory(device, arena, plan.offsets, memories, closes + ((arena,) if arena else ()))
    return made


def _check_given(schedule: Schedule, wanted: Sequence[Buffer], given: Mapping[Buffer, Memory]) -> None:
    written = {buffer for thunk in schedule.thunks for buffer in thunk.written}
    seen: dict[int, Buffer] = {}
    for buffer in wanted:
        if buffer not in given:
            raise PlanError(f"buffer {buffer.name!r} got no memory on {buffer.space}")
        if given[buffer].nbytes < buffer.nbytes:
            raise PlanError(f"buffer {buffer.name!r} got {given[buffer].nbytes} bytes; wanted {buffer.nbytes}")
        other = seen.setdefault(id(given[buffer]), buffer)
        if other is not buffer and (other in written or buffer in written):
            raise PlanError(
                f"buffers {other.name!r} and {buffer.name!r} got the same memory, and one of them is written"
            )


def commands(schedule: Schedule, first: int, last: int, memory: DeviceMemory, host: BoundMemory) -> list[Command]:
    """Returns the device's commands for thunks [first, last), which are all on it."""
    index = {extent: i for i, extent in enumerate(schedule.extents)}
    pairs = zip(schedule.thunks[first:last], schedule.waits[first:last], strict=True)
    return [
        _copy(thunk, wait, memory, host, index) if thunk.kind == "copy" else _launch(thunk, wait, memory, index)
        for thunk, wait in pairs
    ]


def _copy(
    thunk: Thunk, wait: bool, memory: DeviceMemory, host: BoundMemory, index: Mapping[Extent, int]
) -> CopyCommand:
    source, destination = (use.slice for use in thunk.uses)
    ends = [host.bytes_of(s) if s.buffer.space == HOST else memory.place(s) for s in (source, destination)]
    extent = next(((index[extent], extent.bound) for extent in thunk.extents), None)
    return CopyCommand(thunk.name, ends[0], ends[1], wait, extent)


def _launch(thunk: Thunk, wait: bool, memory: DeviceMemory, index: Mapping[Extent, int]) -> LaunchCommand:
    arrays = tuple(memory.place(arg) for arg in thunk.args if isinstance(arg, BufferSlice))
    scalars = tuple(index[arg] for arg in thunk.args if not isinstance(arg, BufferSlice))
    factors = tuple((index[extent], divisor) for extent, divisor in thunk.programs.factors)
    kernel: Any = thunk.entry
    return LaunchCommand(thunk.name, kernel, arrays, scalars, thunk.programs.constant, factors, wait)
