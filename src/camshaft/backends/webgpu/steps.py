"""The steps of a run, determined when it is bound.

Consecutive launches share a compute pass; a copy between buffers ends it. The queue writes uploads before all commands. If an
earlier command uses the same bytes, the queue writes the upload to a buffer (the inbox) and the encoder copies it in order.
Downloads are copied by the same encoder to one staging buffer (the outbox).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from camshaft.backends.device import Bytes, Command, CopyCommand, LaunchCommand, Place, check_copy
from camshaft.backends.webgpu.binding import Binder, checked
from camshaft.backends.webgpu.copies import bind_copy, is_encodable
from camshaft.backends.webgpu.memory import Staging, WebGpuMemory, words_nbytes
from camshaft.backends.webgpu.stamps import Stamps


@dataclass
class Pass:
    """A compute pass. `numbers` are the Binder's dispatch numbers; `dispatches` are their (pipeline, group, formula)."""

    descriptor: Any
    numbers: list[int] = field(default_factory=list)
    dispatches: list[tuple[Any, Any, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Size:
    """The size of a copy rounded up to whole words, at most `nbytes`. The copy starts `before` bytes before its data."""

    nbytes: int
    command: CopyCommand | None = None
    before: int = 0

    def words_nbytes(self, active: Sequence[int]) -> int:
        """Returns the bytes of these words for a run's active extents."""
        if self.command is None or self.command.extent is None:
            return self.nbytes
        count = self.command.nbytes(active)
        return min(words_nbytes(self.before + count), self.nbytes) if count else 0


@dataclass(frozen=True)
class Fill:
    """A copy from a caller's array to an upload block in host memory, before the writes."""

    target: Bytes
    command: CopyCommand
    array: Bytes


@dataclass(frozen=True)
class Download:
    """A copy from byte `first` of the outbox to a caller's array."""

    first: int
    command: CopyCommand
    array: Bytes


@dataclass(frozen=True)
class BufferCopy:
    """An encoder's copy of whole words between two buffers. `source_nbytes` and `destination_nbytes` are offsets."""

    source: Any
    source_nbytes: int
    destination: Any
    destination_nbytes: int
    size: Size


@dataclass(frozen=True)
class Write:
    """A write of whole words from the host `address` to a buffer, before the commands."""

    buffer: Any
    offset_nbytes: int
    address: int
    size: Size


@dataclass
class Steps:
    """The steps of a run in order: `fills`, `writes`, `steps`, and `downloads` after it has finished."""

    steps: list[Pass | BufferCopy] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    downloads: list[Download] = field(default_factory=list)
    inbox: WebGpuMemory | None = None
    outbox: Staging | None = None
    stamps: Stamps | None = None


def make_steps(binder: Binder, commands: Sequence[Command], stamps: Stamps | None) -> Steps:
    """Makes the steps of the commands with their buffers, pipelines and bind groups. BackendError for invalid commands."""
    maker = _Maker(binder, commands, stamps)
    for number, command in enumerate(commands):
        maker.add(number, command)
    dispatches = binder.finish()
    for step in maker.made.steps:
        if isinstance(step, Pass):
            bound = [dispatches[number] for number in step.numbers]
            step.dispatches = [(b.pipeline, b.group, b.formula) for b in bound]
    return maker.made


class _Maker:
    def __init__(self, binder: Binder, commands: Sequence[Command], stamps: Stamps | None) -> None:
        self.binder, self.device, self.commands, self.stamps = binder, binder.device, commands, stamps
        self.made = Steps(stamps=stamps)
        uploads = [i for i, c in enumerate(commands) if isinstance(c, CopyCommand) and isinstance(c.source, np.ndarray)]
        self.staged = {i: 0 for i in uploads if not self.is_direct(i)}
        self.in_nbytes = _lay_out(self.staged, lambda i: _host_nbytes(commands[i]))
        self.returned = {
            i: 0 for i, c in enumerate(commands) if isinstance(c, CopyCommand) and isinstance(c.destination, np.ndarray)
        }
        # Up to 3 bytes before the data, so that the copy starts at a whole word.
        self.out_nbytes = _lay_out(self.returned, lambda i: _host_nbytes(commands[i]) + 3)
        self._make_boxes()

    def _make_boxes(self) -> None:
        if self.in_nbytes:
            self.made.inbox = WebGpuMemory(self.device, self.in_nbytes)
            self.block = np.zeros(self.in_nbytes, np.uint8)
        if self.out_nbytes:
            self.made.outbox = Staging(self.device, self.out_nbytes)

    def is_direct(self, number: int) -> bool:
        """Returns whether upload `number` can be written before all commands: no earlier command uses these bytes, and they
        are whole words or end at the buffer's end."""
        command = self.commands[number]
        assert isinstance(command, CopyCommand)
        place = self.place(command, command.destination)
        ends = (
            place.offset_nbytes + place.nbytes
        ) % 4 == 0 or place.offset_nbytes + place.nbytes == place.memory.nbytes
        touched = (p for earlier in self.commands[:number] for p in _places(earlier))
        direct = place.offset_nbytes % 4 == 0 and ends and not any(_overlap(place, p) for p in touched)
        return direct or not place.nbytes

    def place(self, command: CopyCommand, end: Place | Bytes) -> Place:
        check_copy(self.device.name, command)
        assert isinstance(end, Place)
        return checked(end, self.device, command.name)

    # --- steps -----------------------------------------------------------------------------------------------------
    def add(self, number: int, command: Command) -> None:
        if isinstance(command, LaunchCommand):
            self.dispatch(number, [self.binder.launch(command)])
        elif isinstance(command.source, np.ndarray):
            self.upload(number, command, command.source)
        elif isinstance(command.destination, np.ndarray):
            self.download(number, command, command.destination)
        else:
            source, destination = self.place(command, command.source), self.place(command, command.destination)
            self.copy(number, command, source, destination)

    def dispatch(self, number: int, dispatches: list[int]) -> None:
        """Adds dispatches to the current pass. In a timed run each command has its own pass."""
        steps = self.made.steps
        if self.stamps is not None:
            steps.append(Pass(self.stamps.descriptor(number), dispatches))
        elif steps and isinstance(steps[-1], Pass):
            steps[-1].numbers.extend(dispatches)
        else:
            steps.append(Pass(self.device.native.ffi.NULL, dispatches))

    def encode(self, number: int, copy: BufferCopy) -> None:
        """Adds an encoder copy. In a timed run, empty passes before and after it write its timestamps."""
        before = [] if self.stamps is None else [Pass(self.stamps.descriptor(number, end=False))]
        after = [] if self.stamps is None else [Pass(self.stamps.descriptor(number, begin=False))]
        self.made.steps += [*before, copy, *after]

    def copy(self, number: int, command: CopyCommand, source: Place, destination: Place) -> None:
        if not source.nbytes:
            self.dispatch(number, [])
        elif is_encodable(source, destination):
            self.encode(number, _buffer_copy(command, source, destination))
        else:
            self.dispatch(number, list(bind_copy(self.binder, self.device.copy_kernels(), source, destination)))

    def upload(self, number: int, command: CopyCommand, array: Bytes) -> None:
        destination = self.place(command, command.destination)
        if number in self.staged:
            assert self.made.inbox is not None
            first = self.staged[number]
            room = words_nbytes(array.nbytes)
            self.made.fills.append(Fill(self.block[first : first + array.nbytes], command, array))
            self.made.writes.append(
                Write(self.made.inbox.handle, first, self.block.ctypes.data + first, Size(room, command))
            )
            self.copy(number, command, Place(self.made.inbox, first, array.nbytes), destination)
            return
        self.dispatch(number, [])
        whole = array
        if array.nbytes % 4:
            whole = np.zeros(words_nbytes(array.nbytes), np.uint8)
            self.made.fills.append(Fill(whole[: array.nbytes], command, array))
        if array.nbytes:
            assert isinstance(destination.memory, WebGpuMemory)
            to = destination.memory.handle, destination.offset_nbytes
            self.made.writes.append(Write(*to, whole.ctypes.data, Size(whole.nbytes, command)))

    def download(self, number: int, command: CopyCommand, array: Bytes) -> None:
        source, first = self.place(command, command.source), self.returned[number]
        low = source.offset_nbytes // 4 * 4
        before = source.offset_nbytes - low
        self.made.downloads.append(Download(first + before, command, array))
        if not array.nbytes:
            self.dispatch(number, [])
            return
        assert isinstance(source.memory, WebGpuMemory)
        assert self.made.outbox is not None
        nbytes = words_nbytes(source.offset_nbytes + source.nbytes) - low
        size = Size(nbytes, command, before)
        self.encode(number, BufferCopy(source.memory.handle, low, self.made.outbox.handle, first, size))


def _buffer_copy(command: CopyCommand, source: Place, destination: Place) -> BufferCopy:
    assert isinstance(source.memory, WebGpuMemory)
    assert isinstance(destination.memory, WebGpuMemory)
    begin, to = source.offset_nbytes, destination.offset_nbytes
    return BufferCopy(source.memory.handle, begin, destination.memory.handle, to, Size(source.nbytes, command))


def _lay_out(offsets: dict[int, int], nbytes: Any) -> int:
    """Assigns each number an offset in a block, a multiple of 16 bytes. Returns the block's size."""
    end = 0
    for number in offsets:
        offsets[number] = end
        end += -(-nbytes(number) // 16) * 16
    return end


def _host_nbytes(command: Command) -> int:
    assert isinstance(command, CopyCommand)
    return int((command.source if isinstance(command.source, np.ndarray) else command.destination).nbytes)


def _places(command: Command) -> list[Place]:
    ends = command.arrays if isinstance(command, LaunchCommand) else (command.source, command.destination)
    return [end for end in ends if isinstance(end, Place)]


def _overlap(a: Place, b: Place) -> bool:
    low, high = sorted((a, b), key=lambda place: place.offset_nbytes)
    return a.memory is b.memory and high.offset_nbytes < low.offset_nbytes + low.nbytes
