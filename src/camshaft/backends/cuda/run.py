"""Bind a list of commands to an NVIDIA GPU: a run is one graph launch, or launch by launch where no graph can be captured."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.backends.cuda.driver import DriverError, bindings, driver_call
from camshaft.backends.cuda.memory import CudaMemory
from camshaft.backends.cuda.steps import CopyStep, LaunchStep, Step
from camshaft.backends.device import Command, CopyCommand, LaunchCommand, check_active

if TYPE_CHECKING:
    from camshaft.backends.cuda.device import CudaDevice


class StepGraph:
    """An instantiated graph of steps. `nodes` maps each step to its node; empty copies have none."""

    def __init__(self, device: CudaDevice, graph: Any, executable: Any, nodes: dict[Step, Any]) -> None:
        self.device = device
        self.graph, self.executable, self.nodes = graph, executable, nodes
        self.params = {step: step.node_params() for step in nodes if step.varies}

    def update(self, step: Step) -> None:
        """Sets the node's grid or copy size to the step's."""
        if step not in self.nodes:
            return  # an empty copy
        params, node = self.params[step], self.nodes[step]
        if isinstance(step, LaunchStep):
            params.gridDimX = step.grid
            driver_call("cuGraphExecKernelNodeSetParams", self.executable, node, params)
        else:
            params.WidthInBytes = step.node_nbytes
            driver_call("cuGraphExecMemcpyNodeSetParams", self.executable, node, params, self.device.context)

    def launch(self, stream: Any) -> None:
        driver_call("cuGraphLaunch", self.executable, stream)

    def close(self) -> None:
        driver_call("cuGraphExecDestroy", self.executable)
        driver_call("cuGraphDestroy", self.graph)


def capture(device: CudaDevice, steps: Sequence[Step]) -> StepGraph:
    """Captures the steps as a graph. Steps between two waits depend on all earlier steps and not on each other.

    DriverError if the driver rejects the graph; the capture stream stays usable.
    """
    stream = device.capture_stream
    # relaxed: a finalizer that frees memory during the capture must not invalidate it
    driver_call("cuStreamBeginCapture", stream, bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        nodes = _enqueue(stream, steps)
    except DriverError:
        # ends the invalidated capture; it always returns an error here
        bindings().cuStreamEndCapture(stream)
        raise
    graph = driver_call("cuStreamEndCapture", stream)
    try:
        executable = driver_call("cuGraphInstantiate", graph, 0)
    except DriverError:
        driver_call("cuGraphDestroy", graph)
        raise
    return StepGraph(device, graph, executable, nodes)


def _enqueue(stream: Any, steps: Sequence[Step]) -> dict[Step, Any]:
    before: list[Any] = []
    group: list[Any] = []
    nodes: dict[Step, Any] = {}
    for step in steps:
        if step.wait and group:
            before, group = group, []
        _depend(stream, before)
        step.enqueue(stream)
        made = list(driver_call("cuStreamGetCaptureInfo", stream)[3])
        group += [node for node in made if all(int(node) != int(b) for b in before)]
        if isinstance(step, LaunchStep) or step.nbytes:
            nodes[step] = made[0]
    _depend(stream, group)
    return nodes


def _depend(stream: Any, nodes: list[Any]) -> None:
    """Sets the nodes that the next captured step depends on."""
    flag = bindings().CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    # since CUDA 13 the call also takes edge data
    data = () if _bindings_major() < 13 else (None,)
    driver_call("cuStreamUpdateCaptureDependencies", stream, nodes, *data, len(nodes), int(flag))


def _bindings_major() -> int:
    from cuda.bindings import __version__

    return int(str(__version__).split(".")[0])


class CudaRun:
    """A prepared list of commands. Kernels read the active extents from GPU memory; `submit` writes them when they change.

    A `timed` run launches each step between events, because events inside a graph record no time.
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
            self.done = driver_call("cuEventCreate", flags.CU_EVENT_DISABLE_TIMING)
            n_events = len(self.steps) + 1 if timed else 0
            self.events = [driver_call("cuEventCreate", flags.CU_EVENT_DEFAULT) for _ in range(n_events)]
            self.graph: StepGraph | None = None if timed or not self.steps else self._captured()

    def _step(self, command: Command) -> Step:
        if isinstance(command, LaunchCommand):
            return LaunchStep.of(command, self.active.address, self.device)
        assert isinstance(command, CopyCommand)
        return CopyStep.of(command, self.device)

    def _captured(self) -> StepGraph | None:
        try:
            return capture(self.device, self.steps)
        except DriverError as error:
            warnings.warn(f"{self.device.name}: run launch by launch, as no graph was made: {error}", stacklevel=4)
            return None

    def submit(self, active: Sequence[int]) -> None:
        """Enqueues all commands, after waiting for a previous submit that has host copies. BackendError on failure."""
        check_active(self.device.name, active, self.n_extents)
        with self.device.entered():
            if self.running and self.copies:
                self.wait()
            if tuple(active) != self.last:
                self._set_active(tuple(active))
            for copy in self.copies:
                copy.stage_upload()
            if self.graph is not None:
                self.graph.launch(self.device.stream)
            else:
                self._one_by_one(self.device.stream)
            driver_call("cuEventRecord", self.done, self.device.stream)
            self.running = True

    def _set_active(self, active: tuple[int, ...]) -> None:
        for step in self.varying:
            if step.update(active) and self.graph is not None:
                self.graph.update(step)
        self.values[: len(active)] = active
        # pageable memory: the driver has copied it when the call returns
        driver_call(
            "cuMemcpyHtoDAsync", self.active.address, self.values.ctypes.data, self.values.nbytes, self.device.stream
        )
        self.last = active

    def _one_by_one(self, stream: Any) -> None:
        if self.events:
            driver_call("cuEventRecord", self.events[0], stream)
        for i, step in enumerate(self.steps):
            step.enqueue(stream)
            if self.events:
                driver_call("cuEventRecord", self.events[i + 1], stream)

    def wait(self) -> None:
        """Waits until the last submit and its downloads are complete. BackendError if it failed."""
        with self.device.entered():
            if not self.running:
                return
            self.running = False
            driver_call("cuEventSynchronize", self.done)
            for copy in self.copies:
                copy.unstage_download()

    def elapsed_ns(self) -> tuple[int, ...] | None:
        """Returns the nanoseconds of each command of the last run; None unless the run is timed and was submitted."""
        if not self.events or self.last is None:
            return None
        with self.device.entered():
            pairs = zip(self.events, self.events[1:], strict=False)
            return tuple(round(1e6 * driver_call("cuEventElapsedTime", a, b)) for a, b in pairs)

    def close(self) -> None:
        """Waits for the last run, then frees graph, events and memory."""
        with self.device.entered():
            self.wait()
            if self.graph is not None:
                self.graph.close()
                self.graph = None
            for event in (self.done, *self.events):
                driver_call("cuEventDestroy", event)
            self.events = []
            for copy in self.copies:
                if copy.pinned is not None:
                    copy.pinned.close()
            self.active.close()
