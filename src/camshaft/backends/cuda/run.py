"""Commands made ready for an NVIDIA GPU: a run is one graph launch, or, without a graph, launch by launch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.backends.cuda.driver import DriverError, ask, bindings
from camshaft.backends.cuda.graph import StepGraph, capture
from camshaft.backends.cuda.memory import CudaMemory
from camshaft.backends.cuda.steps import CopyStep, LaunchStep, Step
from camshaft.backends.device import Command, CopyCommand, LaunchCommand
from camshaft.errors import BackendError

if TYPE_CHECKING:
    from camshaft.backends.cuda.device import CudaDevice


class CudaRun:
    """A list of commands. Active extents lie in memory of the GPU, where kernels read them; a run writes them when they change.

    `timed` runs go launch by launch between events, as events inside of a graph only order.
    """

    def __init__(self, device: CudaDevice, commands: Sequence[Command], n_extents: int, timed: bool) -> None:
        self.device, self.n_extents = device, n_extents
        self.active = CudaMemory(device, 8 * max(n_extents, 1))
        self.values = np.zeros(max(n_extents, 1), np.int64)
        self.last: tuple[int, ...] | None = None
        self.steps = [self._step(command) for command in commands]
        self.varying = [s for s in self.steps if s.varies]
        self.copies = [s for s in self.steps if isinstance(s, CopyStep) and s.array is not None]
        self.running = False
        with device.entered():
            flags = bindings().CUevent_flags
            self.done = ask("cuEventCreate", flags.CU_EVENT_DISABLE_TIMING)
            n_events = len(self.steps) + 1 if timed else 0
            self.events = [ask("cuEventCreate", flags.CU_EVENT_DEFAULT) for _ in range(n_events)]
            self.graph: StepGraph | None = None if timed or not self.steps else self._captured()

    def _step(self, command: Command) -> Step:
        if isinstance(command, LaunchCommand):
            return LaunchStep.of(command, self.active.address)
        assert isinstance(command, CopyCommand)
        return CopyStep.of(command, self.device)

    def _captured(self) -> StepGraph | None:
        try:
            return capture(self.device, self.steps)
        except DriverError as error:
            warnings.warn(f"{self.device.name}: run launch by launch, as no graph was made: {error}", stacklevel=4)
            return None

    def submit(self, active: Sequence[int]) -> None:
        """Enqueues all commands; BackendError where the driver refuses. A run not waited for is waited for first."""
        if len(active) != self.n_extents:
            raise BackendError(f"{self.device.name}: {len(active)} active extents; wanted {self.n_extents}")
        with self.device.entered():
            if self.running and self.copies:
                self.wait()
            if tuple(active) != self.last:
                self._set_active(tuple(active))
            for copy in self.copies:
                copy.take()
            if self.graph is not None:
                self.graph.launch(self.device.stream)
            else:
                self._one_by_one(self.device.stream)
            ask("cuEventRecord", self.done, self.device.stream)
            self.running = True

    def _set_active(self, active: tuple[int, ...]) -> None:
        for step in self.varying:
            if step.follow(active) and self.graph is not None:
                self.graph.update(step)
        self.values[: len(active)] = active
        # ordinary memory: the driver has taken it when the call returns
        ask("cuMemcpyHtoDAsync", self.active.address, self.values.ctypes.data, self.values.nbytes, self.device.stream)
        self.last = active

    def _one_by_one(self, stream: Any) -> None:
        if self.events:
            ask("cuEventRecord", self.events[0], stream)
        for i, step in enumerate(self.steps):
            step.enqueue(stream)
            if self.events:
                ask("cuEventRecord", self.events[i + 1], stream)

    def wait(self) -> None:
        """Returns when the last submit is done and its downloads have arrived. BackendError if it failed."""
        with self.device.entered():
            if not self.running:
                return
            self.running = False
            ask("cuEventSynchronize", self.done)
            for copy in self.copies:
                copy.give()

    def elapsed_ns(self) -> tuple[int, ...] | None:
        """Nanoseconds of each command of the last run; None unless the run is timed and was submitted."""
        if not self.events or self.last is None:
            return None
        with self.device.entered():
            pairs = zip(self.events, self.events[1:], strict=False)
            return tuple(round(1e6 * ask("cuEventElapsedTime", a, b)) for a, b in pairs)

    def close(self) -> None:
        """Gives graph, events and memory back, after the last run has ended."""
        with self.device.entered():
            self.wait()
            if self.graph is not None:
                self.graph.close()
                self.graph = None
            for event in (self.done, *self.events):
                ask("cuEventDestroy", event)
            self.events = []
            for copy in self.copies:
                if copy.pinned is not None:
                    copy.pinned.close()
            self.active.close()
