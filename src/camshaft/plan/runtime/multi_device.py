"""MultiDeviceSchedule: a bound schedule with thunks on several devices. A BoundSchedule runs its host thunks."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from camshaft.backends.device import HOST, Bytes, Device, DeviceRun, Memory
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.plan.buffers import Buffer, BufferSlice
from camshaft.plan.memory.arena import MemoryPlan
from camshaft.plan.memory.binding import BoundMemory, bind_memory
from camshaft.plan.memory.binding import Memory as HostMemory
from camshaft.plan.memory.device_memory import DeviceMemory, bind_devices, commands
from camshaft.plan.runtime.execute import BoundSchedule, check_waits
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.runnable import ClosablePlan
from camshaft.plan.runtime.segments import Segment, cut
from camshaft.plan.runtime.timed import Counts, DeviceTimes, Lanes, TimedRun, clock, timing
from camshaft.plan.runtime.workers import inside_host_thunk
from camshaft.plan.schedule import Schedule, buffers_of


class MultiDeviceSchedule(ClosablePlan):
    """A schedule bound to memory on every device, made by `bind_mixed`. A RunnableSchedule.

    Device segments are submitted and run asynchronously; a segment that needs the bytes of another waits for it.
    """

    native = None

    def __init__(
        self,
        schedule: Schedule,
        memory_plan: MemoryPlan,
        host: BoundSchedule,
        host_memory: BoundMemory,
        devices: Mapping[str, DeviceMemory],
    ) -> None:
        self.schedule, self.memory_plan, self.threads = schedule, memory_plan, host.threads
        self.segments = cut(schedule.thunks, memory_plan.offsets, schedule.after)
        self._host, self._host_memory, self._devices = host, host_memory, devices
        self._lock = threading.Lock()
        places = np.cumsum([0, *(thunk.device == HOST for thunk in schedule.thunks)])
        self._host_index = tuple(int(place) for place in places)  # number of host thunks before each thunk
        self._runs: dict[tuple[int, int], DeviceRun] = {}
        self._timed_runs: dict[tuple[int, int], DeviceRun] = {}
        for segment in self.segments:
            if segment.device != HOST:
                self._device_run(segment, segment.first, segment.last)

    @property
    def active(self) -> dict[Extent, int]:
        """Returns the active value of every extent."""
        return self._host.active

    def extent(self, extent: Extent) -> int:
        """Returns the extent's active value."""
        return self._host.extent(extent)

    def set_extent(self, extent: Extent, value: int) -> None:
        """See Runnable."""
        self._refuse_closed()
        if self._lock.locked():
            raise PlanError(f"extent {extent.name!r} was set while its plan runs")
        self._host.set_extent(extent, value)

    def bytes_of(self, piece: BufferSlice) -> Bytes:
        """See RunnableSchedule."""
        self._refuse_closed()
        if piece.buffer.space == HOST:
            return self._host_memory.bytes_of(piece)
        place = self._devices[piece.buffer.space].place(piece)
        return place.memory.read(place.offset_nbytes, place.nbytes)

    def run(self, first: int = 0, last: int | None = None) -> None:
        """See Runnable. All thunks on every device have finished when it returns."""
        end = len(self.schedule.thunks) if last is None else last
        if not 0 <= first <= end <= len(self.schedule.thunks):
            raise PlanError(f"thunks [{first}, {end}) of a plan that has {len(self.schedule.thunks)}")
        if inside_host_thunk() and self._host.is_running:
            raise PlanError("a host thunk's function ran a plan that needs the workers it is called by")
        with self._lock:
            self._refuse_closed()
            running: dict[int, DeviceRun] = {}
            try:
                for index, segment in enumerate(self.segments):
                    self._run_segment(index, segment, max(first, segment.first), min(end, segment.last), running)
            finally:
                _wait_for_all(running)

    def _run_segment(self, index: int, segment: Segment, first: int, last: int, running: dict[int, DeviceRun]) -> None:
        """Runs or submits the thunks [first, last) of a segment, after the segments that it waits for."""
        if first >= last:
            return
        for earlier in segment.after:
            if earlier in running:
                running.pop(earlier).wait()
        if segment.device == HOST:
            self._host.run(self._host_index[first], self._host_index[last])
            return
        run = self._device_run(segment, first, last)
        running[index] = run
        run.submit(self._host.active_values)

    def _device_run(self, segment: Segment, first: int, last: int) -> DeviceRun:
        """Returns thunks [first, last) bound to their device; cached per range. Whole segments are bound with the plan."""
        found = self._runs.get((first, last))
        if found is None:
            found = self._runs[first, last] = self._bind(segment.device, first, last)
        return found

    def _bind(self, device: str, first: int, last: int, *, timed: bool = False) -> DeviceRun:
        memory = self._devices[device]
        made = commands(self.schedule, first, last, memory, self._host_memory)
        return memory.device.bind(made, len(self.schedule.extents), timed=timed)

    def timed(self) -> TimedRun:
        """See Runnable. Segments run one after the other, timed by the host's stamps and the devices' own clocks."""
        devices = tuple(dict.fromkeys(segment.device for segment in self.segments if segment.device != HOST))
        lanes = Lanes(self.threads, self.schedule.waits, devices)
        host_stamps: list[tuple[Segment, Counts]] = []
        with timing(), self._lock:
            self._refuse_closed()
            began, times = time.perf_counter_ns(), []
            for segment in self.segments:
                if segment.device == HOST:
                    places = self._host_index[segment.first], self._host_index[segment.last]
                    host_stamps.append((segment, self._host.stamps(*places)))
                else:
                    times.append(self._timed(segment))
            ended = time.perf_counter_ns()
        for segment, stamps in host_stamps:
            ticks, programs = stamps[..., : layout.SIZE], stamps[..., layout.SIZE]
            lanes.put(segment.first, segment.last, clock().ns(ticks) - began, programs)
        for each in times:
            lanes.put_device(each, began)
        return lanes.done(float(began), float(ended - began))

    def _timed(self, segment: Segment) -> DeviceTimes:
        key = (segment.first, segment.last)
        if key not in self._timed_runs:
            self._timed_runs[key] = self._bind(segment.device, *key, timed=True)
        run = self._timed_runs[key]
        began = time.perf_counter_ns()
        run.submit(self._host.active_values)
        run.wait()
        return DeviceTimes(segment.device, *key, began, run.elapsed_ns())

    def close(self) -> None:
        """See Runnable."""
        if inside_host_thunk() and self._host.is_running:
            raise PlanError("a host thunk's function closed the plan that runs it")
        with self._lock:
            self._closed = True
            self._host.close()
            for run in (*self._runs.values(), *self._timed_runs.values()):
                run.close()
            for memory in self._devices.values():
                memory.close()
            self._runs.clear()
            self._timed_runs.clear()
            self._host_memory = BoundMemory(np.empty(0, np.uint8), {}, {})
            self._devices = {}


def _wait_for_all(running: Mapping[int, DeviceRun]) -> None:
    """Waits for all runs, then raises the first error with a note for each other one."""
    errors: list[Exception] = []
    for run in running.values():
        try:
            run.wait()
        except Exception as error:
            errors.append(error)
    for other in errors[1:]:
        errors[0].add_note(f"another device of the same run failed too: {type(other).__name__}: {other}")
    if errors:
        raise errors[0]


def bind_mixed(
    schedule: Schedule,
    memory_plan: MemoryPlan,
    devices: Sequence[Device],
    *,
    arena: Bytes | None = None,
    buffers: Mapping[Buffer, HostMemory] | None = None,
    device_buffers: Mapping[Buffer, Memory] | None = None,
    own: Sequence[Memory] = (),
    threads: int = 1,
) -> MultiDeviceSchedule:
    """Binds a schedule to host memory, like `bind`, and to the memory of its devices.

    `device_buffers` gives the memory of every CONSTANT, STATE and IO buffer that is not on the host; the plan closes those in
    `own`. Raises PlanError like `bind`.
    """
    check_waits(schedule, memory_plan)
    host_memory = bind_memory(schedule, memory_plan, arena, buffers or {})
    bound = bind_devices(schedule, memory_plan, devices, device_buffers or {}, own)
    for memory in bound.values():
        host_memory = memory.shown_to_host(host_memory, schedule.buffers)
    thunks = tuple(thunk for thunk in schedule.thunks if thunk.device == HOST)
    waits = tuple(wait for thunk, wait in zip(schedule.thunks, schedule.waits, strict=True) if thunk.device == HOST)
    host_schedule = Schedule(thunks, waits, schedule.extents, buffers_of(thunks))
    host = BoundSchedule(host_schedule, memory_plan, host_memory, threads)
    return MultiDeviceSchedule(schedule, memory_plan, host, host_memory, bound)
