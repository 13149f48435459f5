"""Schedule: thunks in order, over buffers without addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from camshaft.backends.device import HOST, CompiledKernel
from camshaft.errors import PlanError, count, shortened
from camshaft.extent import Extent
from camshaft.plan.buffers import Buffer, BufferSlice, BufferUse, Lifetime
from camshaft.plan.runtime.native.layout import COPY_NBYTES_PER_PROGRAM, MAX_FACTORS

HostFunction = Callable[..., Any]
# For each thunk, the indices of earlier thunks that it follows; empty without an explicit order.
Order: TypeAlias = tuple[tuple[int, ...], ...]


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


@dataclass(frozen=True, slots=True)
class Thunk:
    """The unit of execution.

    Kernel: the argument block is `args` in order; a slice passes its address, an Extent the address of its active value.
    Host: called as entry(*args) with a memoryview of bytes per slice (read-only unless a use writes it) and an int per Extent.
    Copy: `entry` is a kernel, or None. With None, `args` are (source, destination), copied by memmove, or by `device` if one
    slice is in its space; a device copy may take a third argument, the Extent that the bytes are proportional to, and copies
    only the active bytes.

    Every slice in `args` must be inside one of `uses`: hazards are computed from `uses` alone. `device` is HOST for thunks that
    the native executor runs, else the device's space. Every worker runs all of a `replicated` thunk and writes its own copy of
    the temporaries; a reader reads the copy of the worker that it runs on.
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

    def __repr__(self) -> str:
        return f"Thunk({shortened(self.name)!r}: {self.op}/{self.variant}, {self.kind} on {self.device})"

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
        if self.kind == "copy" and self.entry is None and not self._is_copy():
            raise PlanError(
                f"copy thunk {self.name!r}: wanted two slices of equal size that do not overlap (see copy_thunk)"
            )
        if self.device != HOST:
            self._check_spaces()
        if self.replicated:
            self._check_everywhere()

    def _check_everywhere(self) -> None:
        temporary = all(buffer.lifetime is Lifetime.TEMP for buffer in self.written)
        if (self.kind, self.device) != ("kernel", HOST) or not temporary:
            raise PlanError(f"thunk {self.name!r} runs everywhere; wanted a kernel on the host that writes temporaries")

    def _check_spaces(self) -> None:
        allowed = {HOST, self.device} if self.kind == "copy" else {self.device}
        for use in self.uses:
            if use.slice.buffer.space not in allowed:
                where = f"buffer {use.slice.buffer.name!r} is in {use.slice.buffer.space}"
                raise PlanError(f"thunk {self.name!r} runs on {self.device}, but {where}; wanted a copy there")

    def _is_copy(self) -> bool:
        """Whether this is a valid copy without a kernel, as copy_thunk makes it."""
        match self.args:
            case (BufferSlice() as source, BufferSlice() as destination):
                pass
            case (BufferSlice() as source, BufferSlice() as destination, Extent() as extent):
                if self.device == HOST or source.nbytes % extent.bound:
                    return False
            case _:
                return False
        disjoint = source.nbytes == destination.nbytes and not source.overlaps(destination)
        return disjoint and self.programs == _copy_programs(source)

    def writes(self, target: BufferSlice) -> bool:
        """Whether a write use overlaps `target`."""
        return any(use.access == "write" and use.slice.overlaps(target) for use in self.uses)

    @property
    def written(self) -> tuple[Buffer, ...]:
        """Returns the buffer of every write use."""
        return tuple(use.slice.buffer for use in self.uses if use.access == "write")

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Returns the extents that the arguments or the number of programs depend on."""
        named = [arg for arg in self.args if isinstance(arg, Extent)] + [extent for extent, _ in self.programs.factors]
        return tuple(dict.fromkeys(named))


def copy_thunk(
    name: str,
    source: BufferSlice,
    destination: BufferSlice,
    reason: str = "explicit copy",
    extent: Extent | None = None,
) -> Thunk:
    """Returns a thunk that copies `source` to `destination` (equal sizes, no overlap).

    Host copies use memmove, 64 KiB per program. If one slice is in a device's space, the device copies, and with `extent` it
    copies only the active part. Raises PlanError for slices of two devices: that takes two copies, through the host.
    """
    uses = (BufferUse(source, "read"), BufferUse(destination, "write"))
    device = destination.buffer.space if source.buffer.space == HOST else source.buffer.space
    how = "memmove" if device == HOST else device
    args = (source, destination) if extent is None or device == HOST else (source, destination, extent)
    return Thunk(name, "copy", how, reason, "copy", None, args, uses, _copy_programs(source), device)


def _copy_programs(source: BufferSlice) -> Programs:
    return Programs(-(-source.nbytes // COPY_NBYTES_PER_PROGRAM))


@dataclass(frozen=True)
class Schedule:
    """Thunks in order, with their synchronization.

    waits[i]: every earlier thunk finishes before thunk i starts. Thunks without a wait between them may run concurrently, and
    so may the programs of one thunk. after[i], with an explicit order: indices of the earlier thunks that must finish before
    thunk i starts, whatever memory they access.
    """

    thunks: tuple[Thunk, ...]
    waits: tuple[bool, ...]
    extents: tuple[Extent, ...]
    buffers: tuple[Buffer, ...]
    after: Order = ()

    def __repr__(self) -> str:
        return f"Schedule({count(len(self.thunks), 'thunk')}, {count(sum(self.waits), 'wait')})"

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
    """Returns every buffer that the thunks use, in order of first use."""
    return tuple(dict.fromkeys(use.slice.buffer for thunk in thunks for use in thunk.uses))


def extents_of(thunks: Iterable[Thunk]) -> tuple[Extent, ...]:
    """Returns every extent that the thunks depend on, in order of first use."""
    return tuple(dict.fromkeys(extent for thunk in thunks for extent in thunk.extents))
