"""A device that is none: kernels of the CPU on memory that host thunks cannot see, work that is done only when it is waited for.

Everything that plans do across devices is tested with it. `FakeDevice.counts` says how often what was done.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from camshaft.backends import registry
from camshaft.backends.cpu.device import CpuDevice, CpuKernel, cpu_device
from camshaft.backends.device import Backend, Bytes, Command, CopyCommand, LaunchCommand, Place
from camshaft.errors import BackendError
from camshaft.lang import CompileRequest
from camshaft.plan.memory.allocate import aligned_bytes
from camshaft.selection.choice import Choice
from camshaft.selection.select import choose

POISON = 0xCD
ALIGNMENT = 256


@dataclass
class FakeMemory:
    """Bytes of a fake device. On one with unified memory, `array` shows them to the host."""

    device: FakeDevice
    nbytes: int
    _data: Bytes | None

    def data(self) -> Bytes:
        """The bytes, after everything that was submitted."""
        if self._data is None:
            raise BackendError("memory was used after it was closed")
        return self._data

    def array(self) -> Bytes:
        assert self.device.limits["unified"]
        return self.data()

    def write(self, data: Bytes, offset_nbytes: int = 0) -> None:
        self.device.drain()
        if offset_nbytes + data.nbytes > self.nbytes:
            raise BackendError(f"{data.nbytes} bytes at {offset_nbytes} of memory of {self.nbytes}")
        self.data()[offset_nbytes : offset_nbytes + data.nbytes] = data

    def read(self, offset_nbytes: int = 0, nbytes: int | None = None) -> Bytes:
        self.device.drain()
        end = self.nbytes if nbytes is None else offset_nbytes + nbytes
        return self.data()[offset_nbytes:end].copy()

    def close(self) -> None:
        if self._data is not None:
            self._data = None
            self.device.live_nbytes -= self.nbytes

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True)
class FakeKernel:
    """A kernel of the CPU, by no address that an executor could take."""

    name: str
    code: CpuKernel


@dataclass
class FakeRun:
    """Commands that are checked and kept. A submit reads what is uploaded; the rest happens when somebody waits."""

    device: FakeDevice
    commands: tuple[Command, ...]
    n_extents: int
    timed: bool = False
    _closed: bool = False

    def submit(self, active: Sequence[int]) -> None:
        assert not self._closed
        assert len(active) == self.n_extents
        self.device.counts["submits"] += 1
        uploads = [c.source[: c.nbytes(active)].copy() if isinstance(c, CopyCommand) and not isinstance(c.source, Place)
                   else None for c in self.commands]  # fmt: skip
        self.device.queue.append((self, tuple(active), uploads))

    def wait(self) -> None:
        self.device.counts["waits"] += 1
        self.device.drain()
        if self.device.lost is not None:
            raise BackendError(self.device.lost)

    def elapsed_ns(self) -> tuple[int, ...] | None:
        tick = self.device.tick_ns
        return (tick,) * len(self.commands) if self.timed and tick is not None else None

    def close(self) -> None:
        self._closed = True

    def run(self, active: Sequence[int], uploads: Sequence[Bytes | None]) -> None:
        for command, upload in zip(self.commands, uploads, strict=True):
            if isinstance(command, CopyCommand):
                self.device.counts["copies"] += 1
                self.device.counts["copied_nbytes"] += command.nbytes(active)
                _copy(command, upload, command.nbytes(active))
            else:
                self.device.counts["launches"] += 1
                _launch(command, active)


def _bytes(place: Place) -> Bytes:
    memory = place.memory
    assert isinstance(memory, FakeMemory)
    assert place.offset_nbytes + place.nbytes <= memory.nbytes
    return memory.data()[place.offset_nbytes : place.offset_nbytes + place.nbytes]


def _copy(command: CopyCommand, upload: Bytes | None, nbytes: int) -> None:
    source = _bytes(command.source) if isinstance(command.source, Place) else upload
    assert source is not None
    target = _bytes(command.destination) if isinstance(command.destination, Place) else command.destination
    target[:nbytes] = source[:nbytes]


def _launch(command: LaunchCommand, active: Sequence[int]) -> None:
    assert isinstance(command.kernel, FakeKernel)
    scalars = np.array([active[i] for i in command.scalars], np.int64)
    words = [_bytes(place).ctypes.data for place in command.arrays]
    words += [scalars.ctypes.data + 8 * i for i in range(len(scalars))]
    args = (ctypes.c_int64 * max(len(words), 1))(*words)
    command.kernel.code(ctypes.addressof(args), 0, command.programs(active))


@dataclass
class FakeDevice:
    """`limits` as a real device's; `without` are ops' kernel names that it refuses; `lost` makes later waits fail;
    `tick_ns` is what its clock says of every command, None where it has no clock."""

    name: str = "fake:0"
    limits: Mapping[str, int] = field(default_factory=lambda: {"alignment": ALIGNMENT, "unified": 0})
    backend: str = "scalar"
    without: frozenset[str] = frozenset()
    counts: Counter[str] = field(default_factory=Counter)
    queue: list[Any] = field(default_factory=list)
    live_nbytes: int = 0
    lost: str | None = None
    tick_ns: int | None = None

    @property
    def space(self) -> str:
        return self.name

    @property
    def cpu(self) -> CpuDevice:
        return cpu_device("scalar")

    lanes = 1
    features: frozenset[str] = frozenset()

    def refusal(self, request: CompileRequest) -> str | None:
        name = request.kernel.name
        return f"{self.name} has no {name}" if name in self.without else None

    def compile(self, request: CompileRequest) -> FakeKernel:
        return FakeKernel(request.kernel.name, self.cpu.compile(request))

    def allocate(self, nbytes: int) -> FakeMemory:
        if nbytes > self.limits.get("memory", 1 << 40) - self.live_nbytes:
            raise BackendError(f"{self.name} has no memory for {nbytes} bytes")
        self.counts["allocations"] += 1
        self.live_nbytes += nbytes
        return FakeMemory(self, nbytes, aligned_bytes(nbytes, ALIGNMENT))

    def bind(self, commands: Sequence[Command], n_extents: int, *, timed: bool = False) -> FakeRun:
        self.counts["binds"] += 1
        for command in commands:
            for place in _places(command):
                assert isinstance(place.memory, FakeMemory)
                assert place.memory.device is self
                assert place.offset_nbytes % 64 == 0
        return FakeRun(self, tuple(commands), n_extents, timed)

    def drain(self) -> None:
        """Does what was submitted."""
        while self.queue:
            run, active, uploads = self.queue.pop(0)
            run.run(active, uploads)


def _places(command: Command) -> list[Place]:
    if isinstance(command, CopyCommand):
        return [end for end in (command.source, command.destination) if isinstance(end, Place)]
    return list(command.arrays)


def pass_for_null(device: FakeDevice, patch: Any) -> FakeDevice:
    """The device becomes the registry's 'null', which every op claims and which needs no proof."""
    row = Backend("null", ("null",), lambda: None, lambda suffix: device, lambda: (), runs=False)
    rows = {**registry.backends(), "null": row}
    patch.setattr(registry, "backends", lambda: rows)
    patch.setattr(registry, "_devices", {})
    return device


class Fakes:
    """Fake devices by name, and a `choose` that gives a node placed on one of them its scalar kernel there."""

    def __init__(self, *devices: FakeDevice) -> None:
        self.by_name = {device.name: device for device in devices}

    def check(self, name: str) -> str:
        from camshaft.selection.override import check_override

        return name if name in self.by_name else check_override(name)

    def device_of(self, name: str) -> Any:
        from camshaft.selection.override import check_override

        return self.by_name.get(name) or registry.device(check_override(name))

    def choose(self, uses: Any, override: str | None = None, **options: Any) -> tuple[Choice, ...]:
        device = self.by_name.get(override or "")
        if device is None:
            return choose(uses, override, **options)
        return tuple(replace(c, device=device) for c in choose(uses, "scalar", **options))

    def install(self, patch: Any) -> Fakes:
        """Puts them where plans look devices up; `patch` is pytest's monkeypatch."""
        patch.setattr("camshaft.plan.lowering.lower.choose", self.choose)
        patch.setattr("camshaft.plan.lowering.lower.check_override", self.check)
        patch.setattr("camshaft.plan.lowering.lower.device_of", self.device_of)
        patch.setattr("camshaft.plan.compile.check_override", self.check)
        return self
