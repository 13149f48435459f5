"""Device: the protocol that every kind of target implements, and what launches and memory look like behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from camshaft.lang import ir
    from camshaft.lang.kernel import Constant, Kernel

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
# Devices of this space run kernels on the process's own memory, by address, in plan/'s native executor.
HOST = "host"


class CompiledKernel(Protocol):
    """Something launchable. One of a device in HOST space has `address`, of the ABI `void entry(args, first, last)`."""

    @property
    def name(self) -> str: ...


class Memory(Protocol):
    """An allocation on a device outside of HOST space. Freed by `close` or when dropped."""

    @property
    def nbytes(self) -> int: ...

    def write(self, data: Bytes, offset_nbytes: int = 0) -> None:
        """Copies bytes in. BackendError past the end. Ordered before every later submit."""

    def read(self, offset_nbytes: int = 0, nbytes: int | None = None) -> Bytes:
        """A copy of bytes, after everything submitted before."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Place:
    """Bytes [offset, offset + nbytes) of an allocation."""

    memory: Memory
    offset_nbytes: int
    nbytes: int


@dataclass(frozen=True)
class LaunchCommand:
    """One kernel over its grid. `arrays` in the kernel's order; `scalars` and `factors` name extents by their index in the
    run's list of active values. The launch has constant * product of ceil(active[extent] / divisor) programs."""

    name: str
    kernel: CompiledKernel
    arrays: tuple[Place, ...]
    scalars: tuple[int, ...] = ()
    constant: int = 1
    factors: tuple[tuple[int, int], ...] = ()
    wait: bool = True

    def programs(self, active: Sequence[int]) -> int:
        """The number of programs for these active values."""
        total = self.constant
        for extent, divisor in self.factors:
            total *= -(-active[extent] // divisor)
        return total


@dataclass(frozen=True)
class CopyCommand:
    """Copies bytes; either end may be an array of this process (uint8, contiguous, of the same size), at most one is.

    `extent`, where only a run's active part matters, is (index among the active values, bound of that extent): the first
    nbytes * active / bound bytes are copied, and what of the rest is, is the device's choice.
    """

    name: str
    source: Place | Bytes
    destination: Place | Bytes
    wait: bool = True
    extent: tuple[int, int] | None = None

    def nbytes(self, active: Sequence[int]) -> int:
        """The number of bytes for these active values."""
        if self.extent is None:
            return self.source.nbytes
        index, bound = self.extent
        return self.source.nbytes // bound * active[index]


Command: TypeAlias = LaunchCommand | CopyCommand


class DeviceRun(Protocol):
    """A list of commands made ready once: pipelines, bindings, graphs. `submit` decides and allocates nothing."""

    def submit(self, active: Sequence[int]) -> None:
        """Enqueues all commands in order with these active extents; uploads read their arrays before it returns."""

    def wait(self) -> None:
        """Returns when the last submit is done and what it copies to this process has arrived. BackendError if it failed."""

    def elapsed_ns(self) -> tuple[int, ...] | None:
        """Nanoseconds of each command of the last run by the device's own clock; None where it has none or was not asked."""

    def close(self) -> None: ...


class Device(Protocol):
    """`name` as the registry has it ('webgpu:1'), `backend` the word that variants use ('webgpu'), `lanes` a program's lanes
    unless a launch names its own, `space` the memory its kernels see (HOST, or the device's name)."""

    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def lanes(self) -> int: ...
    @property
    def features(self) -> frozenset[str]: ...
    @property
    def space(self) -> str: ...
    @property
    def limits(self) -> Mapping[str, int]:
        """Among them, outside of HOST space: 'alignment' (bytes, of places of buffers) and 'memory' (bytes, if known)."""

    def refusal(
        self,
        kernel: Kernel,
        arrays: Sequence[ir.ArrayParam],
        scalars: Sequence[str],
        constants: Mapping[str, Constant],
        grid: Sequence[ir.GridDim],
        lanes: int | None = None,
    ) -> str | None:
        """None, or why this device cannot have the kernel: an instruction, a dtype, a limit. Cheap: nothing is compiled."""

    def compile(
        self,
        kernel: Kernel,
        arrays: Sequence[ir.ArrayParam],
        scalars: Sequence[str],
        constants: Mapping[str, Constant],
        grid: Sequence[ir.GridDim],
        lanes: int | None = None,
    ) -> CompiledKernel:
        """The kernel for this device, compiled at most once. BackendError with the compiler's words."""

    def allocate(self, nbytes: int) -> Memory:
        """Zeroed memory. BackendError that says how much was asked for when there is none. Not for HOST devices."""

    def bind(self, commands: Sequence[Command], n_extents: int, *, timed: bool = False) -> DeviceRun:
        """Makes commands ready to run. Not for HOST devices."""


@dataclass(frozen=True)
class DeviceInfo:
    """A row of `camshaft devices`. `absent` is None for a device that can be used, else the reason."""

    name: str
    backend: str
    description: str
    absent: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
