"""Schedule: thunks in order, over buffers without addresses."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from camshaft.backends.device import HOST, CompiledKernel
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.plan.runtime.native.layout import MAX_FACTORS

COPY_NBYTES_PER_PROGRAM = 1 << 16

HostFunction = Callable[..., Any]
# For each thunk, the numbers of earlier ones that it follows; empty where nobody asked for an order.
Order: TypeAlias = tuple[tuple[int, ...], ...]


class Lifetime(enum.Enum):
    """How long a buffer's bytes matter. Only TEMP is planned into the arena."""

    CONSTANT = "constant"
    STATE = "state"
    IO = "io"
    TEMP = "temp"


@dataclass(frozen=True, eq=False)
class Buffer:
    """An allocation, equal only to itself. `alignment` in bytes is a power of two; `space` says whose memory it is: HOST for
    the process's own, else a device's name."""

    name: str
    nbytes: int
    lifetime: Lifetime
    alignment: int = 64
    space: str = HOST

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            raise PlanError(f"buffer {self.name!r} got nbytes {self.nbytes}; wanted 0 or more")
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise PlanError(f"buffer {self.name!r} got alignment {self.alignment}; wanted a power of two")

    def slice(self, offset: int = 0, nbytes: int | None = None) -> BufferSlice:
        """Bytes [offset, offset + nbytes) of this buffer; all that follows `offset` when nbytes is None."""
        return BufferSlice(self, offset, self.nbytes - offset if nbytes is None else nbytes)


@dataclass(frozen=True)
class BufferSlice:
    """Bytes [offset, offset + nbytes) of a buffer. PlanError when they are not all inside it."""

    buffer: Buffer
    offset: int
    nbytes: int

    def __post_init__(self) -> None:
        if self.offset < 0 or self.nbytes < 0 or self.end > self.buffer.nbytes:
            raise PlanError(
                f"slice [{self.offset}, {self.end}) of buffer {self.buffer.name!r}; it has {self.buffer.nbytes} bytes"
            )

    @property
    def end(self) -> int:
        return self.offset + self.nbytes

    def slice(self, offset: int = 0, nbytes: int | None = None) -> BufferSlice:
        """Bytes [offset, offset + nbytes) of this slice; all that follows `offset` when nbytes is None."""
        return BufferSlice(self.buffer, self.offset + offset, self.nbytes - offset if nbytes is None else nbytes)

    def contains(self, other: BufferSlice) -> bool:
        """Whether every byte of `other` is one of this slice's."""
        return self.buffer is other.buffer and self.offset <= other.offset and other.end <= self.end

    def overlaps(self, other: BufferSlice) -> bool:
        """Whether a byte is in both, by buffer and offset (two buffers of the arena may still share memory)."""
        return self.buffer is other.buffer and max(self.offset, other.offset) < min(self.end, other.end)


@dataclass(frozen=True)
class BufferUse:
    """What a thunk does with a slice. A thunk that reads and writes the same bytes states two uses."""

    slice: BufferSlice
    access: Literal["read", "write"]


@dataclass(frozen=True)
class Programs:
    """A thunk's number of programs: constant * product of ceil(active(extent) / divisor). At most 3 factors."""

    constant: int
    factors: tuple[tuple[Extent, int], ...] = ()

    def __post_init__(self) -> None:
        if self.constant < 0 or any(divisor < 1 for _, divisor in self.factors):
            raise PlanError(f"{self}: wanted a constant of 0 or more and divisors of 1 or more")
        if len(self.factors) > MAX_FACTORS:
            raise PlanError(f"{self}: has {len(self.factors)} factors; the executor takes {MAX_FACTORS}")

    def count(self, active: Mapping[Extent, int]) -> int:
        """The number of programs when the extents have these active values."""
        total = self.constant
        for extent, divisor in self.factors:
            total *= -(-active[extent] // divisor)
        return total

    @property
    def bound(self) -> int:
        """The number of programs when every extent is at its bound."""
        return self.count({extent: extent.bound for extent, _ in self.factors})


@dataclass(frozen=True)
class Thunk:
    """The unit of execution.

    A kernel's argument block is `args` in order: a slice gives its address, an Extent the address of its active value.
    A host thunk's entry is called as entry(*args) with a memoryview of bytes per slice (read-only unless a write is
    stated) and an int per Extent. A copy has an entry like a kernel, or None: then args are (source, destination) and
    memmove does it, or `device` where one of them is in its space; there a third argument may be the Extent along whose bound
    the bytes are spread, of which only the active ones are copied. Every slice in `args` lies inside a stated use: hazards
    are found from the uses alone. `device` is HOST for what the native executor runs, else the space of the device.
    A thunk that runs `everywhere` is run whole by every worker, and writes temporaries of which each worker has a copy of its
    own; whoever reads such a one reads the copy of the worker that it runs on.
    """

    name: str
    op: str
    variant: str
    reason: str
    kind: Literal["kernel", "copy", "host"]
    entry: CompiledKernel | HostFunction | None
    args: tuple[BufferSlice | Extent, ...]
    uses: tuple[BufferUse, ...]
    programs: Programs = Programs(1)
    device: str = HOST
    replicated: bool = False

    def __post_init__(self) -> None:
        for arg in self.args:
            if isinstance(arg, BufferSlice) and not any(use.slice.contains(arg) for use in self.uses):
                raise PlanError(f"thunk {self.name!r} has the argument {arg} outside every use that it states")
        if self.kind == "host" and (not callable(self.entry) or self.programs != Programs(1)):
            raise PlanError(f"host thunk {self.name!r}: wanted a Python callable and exactly one program")
        if self.kind == "host" and self.device != HOST:
            raise PlanError(f"host thunk {self.name!r} is placed on {self.device}; Python runs on the host only")
        if self.kind == "kernel" and not hasattr(self.entry, "address" if self.device == HOST else "name"):
            raise PlanError(f"kernel thunk {self.name!r} got the entry {self.entry!r}; wanted a compiled kernel")
        if self.kind == "copy" and self.entry is None:
            self._check_copy()
        if self.device != HOST:
            self._check_spaces()
        if self.replicated:
            self._check_everywhere()

    def _check_everywhere(self) -> None:
        written = (use.slice.buffer for use in self.uses if use.access == "write")
        if (self.kind, self.device) != ("kernel", HOST) or any(b.lifetime is not Lifetime.TEMP for b in written):
            raise PlanError(f"thunk {self.name!r} runs everywhere; wanted a kernel on the host that writes temporaries")

    def _check_spaces(self) -> None:
        allowed = {HOST, self.device} if self.kind == "copy" else {self.device}
        for use in self.uses:
            if use.slice.buffer.space not in allowed:
                where = f"buffer {use.slice.buffer.name!r} lies in {use.slice.buffer.space}"
                raise PlanError(f"thunk {self.name!r} runs on {self.device}, but {where}; wanted a copy there")

    def _check_copy(self) -> None:
        match self.args:
            case (BufferSlice() as source, BufferSlice() as destination, *extent) if (
                source.nbytes == destination.nbytes
            ):
                wanted = Programs(-(-source.nbytes // COPY_NBYTES_PER_PROGRAM))
                if (
                    self.programs == wanted
                    and not source.overlaps(destination)
                    and self._is_spread(source.nbytes, extent)
                ):
                    return
        raise PlanError(
            f"copy thunk {self.name!r}: wanted two slices of equal size that do not overlap (see copy_thunk)"
        )

    def _is_spread(self, nbytes: int, extent: Sequence[object]) -> bool:
        """Whether there is no extent, or one that divides the bytes, on a device."""
        match extent:
            case []:
                return True
            case [Extent() as spread]:
                return self.device != HOST and nbytes % spread.bound == 0
        return False

    def writes(self, target: BufferSlice) -> bool:
        """Whether a stated write touches `target`."""
        return any(use.access == "write" and use.slice.overlaps(target) for use in self.uses)

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The extents that the arguments or the number of programs depend on."""
        named = [arg for arg in self.args if isinstance(arg, Extent)] + [extent for extent, _ in self.programs.factors]
        return tuple(dict.fromkeys(named))


def copy_thunk(
    name: str,
    source: BufferSlice,
    destination: BufferSlice,
    reason: str = "asked for",
    extent: Extent | None = None,
) -> Thunk:
    """A thunk that copies `source` to `destination` (equal sizes, no overlap): by memmove, 64 KiB a program, or by the device
    in whose space one of them lies, which leaves out what is not active of an `extent` that the bytes are spread along.
    PlanError for slices of two devices: such a copy goes through the host."""
    uses = (BufferUse(source, "read"), BufferUse(destination, "write"))
    programs = Programs(-(-source.nbytes // COPY_NBYTES_PER_PROGRAM))
    device = destination.buffer.space if source.buffer.space == HOST else source.buffer.space
    how = "memmove" if device == HOST else device
    args = (source, destination) if extent is None or device == HOST else (source, destination, extent)
    return Thunk(name, "copy", how, reason, "copy", None, args, uses, programs, device)


def programs_for(thunk: Thunk, active: Mapping[Extent, int]) -> int:
    """How many programs the executor runs of `thunk` when extents have these active values."""
    return thunk.programs.count(active)


@dataclass(frozen=True)
class Schedule:
    """Thunks in order. waits[i]: every earlier thunk is done before thunk i starts; thunks without a wait between
    them may run side by side. Programs of one thunk may always run side by side. after[i], where a caller asked for an
    order of its own, are the numbers of earlier thunks that have ended before thunk i starts, whatever their bytes."""

    thunks: tuple[Thunk, ...]
    waits: tuple[bool, ...]
    extents: tuple[Extent, ...]
    buffers: tuple[Buffer, ...]
    after: Order = ()

    def __post_init__(self) -> None:
        if len(self.waits) != len(self.thunks):
            raise PlanError(f"a schedule has {len(self.thunks)} thunks and {len(self.waits)} wait flags")
        if self.after and len(self.after) != len(self.thunks):
            raise PlanError(f"a schedule has {len(self.thunks)} thunks and an order of {len(self.after)}")
        for index, earlier in enumerate(self.after):
            if any(not 0 <= other < index for other in earlier):
                raise PlanError(
                    f"thunk {self.thunks[index].name!r} was to follow {earlier}; wanted numbers below {index}"
                )
        if len({extent.name for extent in self.extents}) != len(self.extents):
            raise PlanError(f"two extents of a schedule have one name: {[str(extent) for extent in self.extents]}")
        missing = set(extents_of(self.thunks)) - set(self.extents)
        if missing:
            raise PlanError(f"thunks use extents that their schedule does not list: {sorted(e.name for e in missing)}")
        unlisted = {buffer.name for buffer in set(buffers_of(self.thunks)) - set(self.buffers)}
        if unlisted:
            raise PlanError(f"thunks use buffers that their schedule does not list: {sorted(unlisted)}")


def buffers_of(thunks: Iterable[Thunk]) -> tuple[Buffer, ...]:
    """Every buffer that the thunks use, in the order of first use."""
    return tuple(dict.fromkeys(use.slice.buffer for thunk in thunks for use in thunk.uses))


def own_buffers(thunks: Iterable[Thunk]) -> frozenset[Buffer]:
    """The temporaries of which each worker has its own: what thunks that run everywhere write. PlanError where another thunk
    writes one of them too."""
    writers: dict[Buffer, set[bool]] = {}
    for thunk in thunks:
        for use in thunk.uses:
            if use.access == "write":
                writers.setdefault(use.slice.buffer, set()).add(thunk.replicated)
    for buffer, kinds in writers.items():
        if len(kinds) > 1:
            raise PlanError(f"temporary {buffer.name!r} is written everywhere and by one worker; wanted one of both")
    return frozenset(buffer for buffer, kinds in writers.items() if True in kinds)


def extents_of(thunks: Iterable[Thunk]) -> tuple[Extent, ...]:
    """Every extent that the thunks depend on, in the order of first use."""
    return tuple(dict.fromkeys(extent for thunk in thunks for extent in thunk.extents))
