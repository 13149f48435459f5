"""Steps captured as one CUDA graph, replayed with the number of workgroups that a run wants.

A graph's launches keep their grids and its copies their sizes, but both follow the active extents. A launch or copy whose count
changed since the last run has its node set anew (about a microsecond each): decoding token by token changes few nodes, seldom,
and no workgroup is started that has nothing to do, as it would be with grids at their bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from camshaft.backends.cuda.driver import DriverError, ask, bindings
from camshaft.backends.cuda.steps import LaunchStep, Step

if TYPE_CHECKING:
    from camshaft.backends.cuda.device import CudaDevice


class StepGraph:
    """An instantiated graph of steps and the node of each that has one."""

    def __init__(self, device: CudaDevice, graph: Any, executable: Any, nodes: dict[Step, Any]) -> None:
        self.device = device
        self.graph, self.executable, self.nodes = graph, executable, nodes
        self.params = {step: step.node_params() for step in nodes if step.varies}

    def update(self, step: Step) -> None:
        """Makes the step's grid, or the bytes that it copies, those of its node."""
        if step not in self.nodes:
            return  # a copy of nothing at all
        params, node = self.params[step], self.nodes[step]
        if isinstance(step, LaunchStep):
            params.gridDimX = step.grid
            ask("cuGraphExecKernelNodeSetParams", self.executable, node, params)
        else:
            params.WidthInBytes = step.node_nbytes
            ask("cuGraphExecMemcpyNodeSetParams", self.executable, node, params, self.device.context)

    def launch(self, stream: Any) -> None:
        ask("cuGraphLaunch", self.executable, stream)

    def close(self) -> None:
        ask("cuGraphExecDestroy", self.executable)
        ask("cuGraphDestroy", self.graph)


def capture(device: CudaDevice, steps: Sequence[Step]) -> StepGraph:
    """Captures the steps on the device's second stream. Those between two waits depend on all before them and not on each other.

    DriverError where the driver does not take it; the stream can be captured on again.
    """
    stream = device.capture_stream
    # relaxed: a finalizer that frees memory meanwhile must not break the capture
    ask("cuStreamBeginCapture", stream, bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        nodes = _enqueue(stream, steps)
    except DriverError:
        # ends the capture, which the failure has broken already: what it answers is known
        bindings().cuStreamEndCapture(stream)
        raise
    graph = ask("cuStreamEndCapture", stream)
    try:
        executable = ask("cuGraphInstantiate", graph, 0)
    except DriverError:
        ask("cuGraphDestroy", graph)
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
        made = list(ask("cuStreamGetCaptureInfo", stream)[3])
        group += [node for node in made if all(int(node) != int(b) for b in before)]
        if isinstance(step, LaunchStep) or step.nbytes:
            nodes[step] = made[0]
    _depend(stream, group)
    return nodes


def _depend(stream: Any, nodes: list[Any]) -> None:
    """What the next step that is captured comes after."""
    flag = bindings().CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    # from CUDA 13 on the call takes data of the edges as well
    data = () if _bindings_major() < 13 else (None,)
    ask("cuStreamUpdateCaptureDependencies", stream, nodes, *data, len(nodes), int(flag))


def _bindings_major() -> int:
    from cuda.bindings import __version__

    return int(str(__version__).split(".")[0])
