"""Runnable: what every bound plan does, whatever it runs on. Four classes have it: BoundSchedule (execute.py) on the CPU,
MultiDeviceSchedule, InstrumentedSchedule around one of them, and CachedPlan, which has no thunks to show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from camshaft.backends.device import Bytes
    from camshaft.extent import Extent
    from camshaft.plan.memory.arena import MemoryPlan
    from camshaft.plan.runtime.execute import BoundSchedule
    from camshaft.plan.runtime.timed import TimedRun
    from camshaft.plan.schedule import BufferSlice, Schedule


class Runnable(Protocol):
    """Thunks with memory and workers. Every extent starts at its bound."""

    @property
    def threads(self) -> int:
        """The workers on the CPU."""

    @property
    def active(self) -> dict[Extent, int]:
        """The active value of every extent."""

    def extent(self, extent: Extent) -> int:
        """The extent's active value."""

    def set_extent(self, extent: Extent, value: int) -> None:
        """Makes `value`, 0 to the bound, the extent's active value for later runs.

        PlanError when the value is out of range, the extent is not this plan's, or the plan runs or is closed.
        """

    def run(self, first: int = 0, last: int | None = None) -> None:
        """Runs thunks [first, last), all by default, and returns when the last is done; Python threads go on meanwhile.

        Raises what a host thunk raised or a device reports, after all of them finished. PlanError when the range is not the
        schedule's, the plan is closed, or a host thunk's function calls this for a plan that would wait for itself.
        """

    def timed(self) -> TimedRun:
        """Runs every thunk once and says when. Devices take turns here, so that each is timed alone.

        PlanError inside of a host thunk, where the cores' counters disagree, or as `run`.
        """

    def close(self) -> None:
        """Lets go of the memory, after a run in progress. The plan cannot run again; closing twice is allowed."""


class RunnableSchedule(Runnable, Protocol):
    """One that has its schedule and memory to show."""

    @property
    def schedule(self) -> Schedule: ...
    @property
    def memory_plan(self) -> MemoryPlan: ...
    @property
    def native(self) -> BoundSchedule | None:
        """The same plan as one that the native executor alone runs and nobody watches; None where it is none."""

    def bytes_of(self, piece: BufferSlice) -> Bytes:
        """The slice's bytes, uint8 [nbytes]: the memory itself on the host, a copy from a device. A temporary's hold only from
        write to last read."""
