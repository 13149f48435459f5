"""Device: the protocol that every kind of target implements, and what launches and memory look like behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from camshaft.errors import BackendError

if TYPE_CHECKING:
    from camshaft.lang import CompileRequest

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
# A HOST device's kernels read and write host memory; plan/'s native executor calls them by address.
HOST = "host"


class CompiledKernel(Protocol):
    """A launchable kernel. On a HOST device it also has `address`, a function `void entry(args, first, last)`."""

    @property
    def name(self) -> str: ...


class Memory(Protocol):
    """An allocation on a device that is not in HOST space. `close` or garbage collection frees it."""

    @property
    def nbytes(self) -> int: ...

    def write(self, data: Bytes, offset_nbytes: int = 0) -> None:
        """Copies `data` to the device before any later submit. BackendError if it passes the end."""

    def read(self, offset_nbytes: int = 0, nbytes: int | None = None) -> Bytes:
        """Returns a copy of the bytes after all earlier submits have finished."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Place:
    """A byte range of an allocation: [offset_nbytes, offset_nbytes + nbytes)."""

    memory: Memory
    offset_nbytes: int
    nbytes: int


@dataclass(frozen=True)
class LaunchCommand:
    """A kernel launch. `arrays` are in the kernel's order; `scalars` and `factors` refer to extents by their index in the
    run's list of active values. The launch has constant * product of ceil(active[extent] / divisor) programs."""

    name: str
    kernel: CompiledKernel
    arrays: tuple[Place, ...]
    scalars: tuple[int, ...] = ()
    constant: int = 1
    factors: tuple[tuple[int, int], ...] = ()
    wait: bool = True

    def programs(self, active: Sequence[int]) -> int:
        """Returns the number of programs for these active values."""
        total = self.constant
        for extent, divisor in self.factors:
            total *= -(-active[extent] // divisor)
        return total


@dataclass(frozen=True)
class CopyCommand:
    """A copy of bytes. At most one end is a host array (uint8, contiguous, of the same size).

    `extent` is (index among the active values, bound of that extent) or None. With an extent, the copy covers the first
    nbytes * active / bound bytes; the device may or may not copy the rest.
    """

    name: str
    source: Place | Bytes
    destination: Place | Bytes
    wait: bool = True
    extent: tuple[int, int] | None = None

    def nbytes(self, active: Sequence[int]) -> int:
        """Returns the number of bytes to copy for these active values."""
        if self.extent is None:
            return self.source.nbytes
        index, bound = self.extent
        return self.source.nbytes // bound * active[index]


Command: TypeAlias = LaunchCommand | CopyCommand


class DeviceRun(Protocol):
    """A list of commands with pipelines, bindings and graphs created in advance. `submit` allocates nothing."""

    def submit(self, active: Sequence[int]) -> None:
        """Enqueues all commands in order with these active extents. Uploads read their arrays before this returns."""

    def wait(self) -> None:
        """Waits until the last submit and its copies to the host are complete. BackendError if it failed."""

    def elapsed_ns(self) -> tuple[int, ...] | None:
        """Returns the nanoseconds of each command of the last run by the device's clock; None if it was not timed."""

    def close(self) -> None: ...


class Device(Protocol):
    """A device that compiles and runs kernels.

    `name` is the registry's name ('webgpu:1') and `backend` the name that variants use ('webgpu'). `lanes` is the default
    number of lanes of a program. `space` is the memory that kernels access: HOST, or the device's name.
    """

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
        """Device limits. Outside HOST space: 'alignment' (bytes, of buffer offsets) and 'memory' (bytes, if known)."""

    def refusal(self, request: CompileRequest) -> str | None:
        """Returns why this device cannot run the kernel (an instruction, a dtype, a limit), or None. Compiles nothing."""

    def compile(self, request: CompileRequest) -> CompiledKernel:
        """Compiles the kernel at most once. BackendError with the compiler's message."""

    def allocate(self, nbytes: int) -> Memory:
        """Allocates zeroed memory. BackendError with the requested size if there is not enough. Not for HOST devices."""

    def bind(self, commands: Sequence[Command], n_extents: int, *, timed: bool = False) -> DeviceRun:
        """Prepares commands to run. Not for HOST devices."""


@dataclass(frozen=True)
class DeviceInfo:
    """A row of `camshaft devices`. `absent` is None for a usable device, else the reason why it is not."""

    name: str
    backend: str
    description: str
    absent: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Backend:
    """A kind of target.

    `absent` returns None, or why the backend cannot be used here. `order` lists the backends whose variants it uses; an op
    takes those of the first backend in the list that it has any for. `make(suffix)` creates a device ('webgpu:1' has the
    suffix '1', 'webgpu' has ''); `devices` lists the devices of this machine. `sources` are glob patterns of the camshaft
    files that compiled kernels depend on; a third-party backend leaves it empty and sets `version`. `runs` is False for a
    backend that only plans and emits, which needs no validation.
    """

    name: str
    order: tuple[str, ...]
    absent: Callable[[], str | None]
    make: Callable[[str], Device]
    devices: Callable[[], tuple[DeviceInfo, ...]]
    sources: tuple[str, ...] = ()
    version: str = ""
    runs: bool = True


def device_name(backend: str, index: int) -> str:
    """Returns the name of a backend's device: 'webgpu', then 'webgpu:1' and so on."""
    return f"{backend}:{index}" if index else backend


def check_range(what: str, offset_nbytes: int, nbytes: int, of_nbytes: int) -> None:
    """Raises BackendError unless the bytes from `offset_nbytes` on are in an allocation of `of_nbytes`."""
    if offset_nbytes < 0 or nbytes < 0 or offset_nbytes + nbytes > of_nbytes:
        raise BackendError(f"{what} of bytes [{offset_nbytes}, {offset_nbytes + nbytes}) of {of_nbytes}")


def check_place(device: str, what: str, place: Place, is_own: bool) -> None:
    """Raises BackendError unless the place is a range of open memory of this device (`is_own`)."""
    if not is_own:
        raise BackendError(f"{device}: {what!r} got memory that is not this device's, or closed")
    check_range(f"{device}: {what!r} got a place", place.offset_nbytes, place.nbytes, place.memory.nbytes)


def check_copy(device: str, command: CopyCommand) -> None:
    """Raises BackendError unless a copy has an end on the device, ends of one size, and a contiguous array of uint8."""
    source, destination = command.source, command.destination
    if isinstance(source, np.ndarray) and isinstance(destination, np.ndarray):
        raise BackendError(f"{device}: copy {command.name!r} from an array to an array is not a device's")
    for end in (source, destination):
        if isinstance(end, np.ndarray) and not (end.flags.c_contiguous and end.dtype == np.uint8):
            raise BackendError(f"{device}: copy {command.name!r} of an array that is not contiguous uint8")
    if source.nbytes != destination.nbytes:
        raise BackendError(f"{device}: copy {command.name!r} of {source.nbytes} and {destination.nbytes} bytes")


def check_active(device: str, active: Sequence[int], n_extents: int) -> None:
    """Raises BackendError unless there is an active value for each extent."""
    if len(active) != n_extents:
        raise BackendError(f"{device}: active extents {list(active)}; wanted {n_extents}")
