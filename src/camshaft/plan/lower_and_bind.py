"""Lower a graph whose variants are chosen, plan its memory, load its weights, and bind all into an ExecutionPlan."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from camshaft.backends.registry import device
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.graph.graph import ArraySource, Graph, Tensor, root
from camshaft.graph.node import Node
from camshaft.ops.spec import Dim
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.hooks import hook
from camshaft.plan.lowering.constant_thunks import run_constant_thunks, take_constant_thunks
from camshaft.plan.lowering.lower import Lowered, lower, tensor_devices
from camshaft.plan.lowering.replicate_small import replicate_small
from camshaft.plan.lowering.sync import order_lowered
from camshaft.plan.memory.arena import MemoryPlan, make_schedule
from camshaft.plan.memory.buffer_memory import BufferMemory, allocate_buffers, given_memory
from camshaft.plan.memory.device_memory import DeviceArray
from camshaft.plan.memory.weights import Weights
from camshaft.plan.runtime.execute import bind
from camshaft.plan.runtime.runnable import RunnableSchedule
from camshaft.plan.schedule import Schedule, Thunk
from camshaft.selection.choice import Choice
from camshaft.settings import setting, settings

Array = np.ndarray[Any, Any]


def lower_and_bind(
    graph: Graph,
    choices: Sequence[Choice],
    workers: int,
    weights: Weights,
    memory: Mapping[str, Array | DeviceArray],
    arena: Array | None,
    sync: str | None,
) -> ExecutionPlan:
    """Lowers a graph with one choice per node, plans memory, loads weights and binds."""
    started = time.perf_counter()
    given, extents = given_memory(graph, memory), extents_of_graph(graph)
    devices = {t: m.device if isinstance(m, DeviceArray) else device("cpu") for t, m in given.items()}
    lowered = lower(graph, choices, tensor_devices(graph, devices), as_written=sync is not None)
    order = order_lowered(graph, lowered, sync) if sync is not None else None
    if settings().instrumented:  # CAMSHAFT_OVERRIDE and CAMSHAFT_INTERPRET replace thunks
        hook("lowered")(lowered)
    once: Sequence[Thunk] = ()
    if order is not None:
        made = make_schedule(lowered.thunks, extents, order.after, order.before)
    else:
        # An overridden kernel is compared with its op's reference in the first run, so constant thunks stay in it.
        once = take_constant_thunks(lowered) if setting("override") is None else ()
        # a single thunk has no reader that would wait for it
        thunks = replicate_small(lowered, workers) if len(lowered.thunks) > 1 else lowered.thunks
        made = make_schedule(thunks, extents, workers=workers)
    return bind_lowered(graph, lowered, choices, made, workers, weights, given, arena, started, once)


def bind_lowered(
    graph: Graph,
    lowered: Lowered,
    choices: Sequence[Choice],
    made: tuple[Schedule, MemoryPlan],
    workers: int,
    weights: Weights,
    given: Mapping[Tensor, Array | DeviceArray],
    arena: Array | None,
    started: float,
    once: Sequence[Thunk] = (),
) -> ExecutionPlan:
    """Loads weights, runs the `once` thunks and binds the schedule of a lowered graph.

    `started` is the perf_counter value at the start of compilation.
    """
    schedule, memory_plan = made
    memory = allocate_buffers(lowered, weights, given, workers)
    memory.arrays.update(run_constant_thunks(once, memory.arrays, workers))
    needed = set(schedule.buffers)
    arrays = {buffer: array for buffer, array in memory.arrays.items() if buffer in needed}
    bound: RunnableSchedule
    if lowered.devices:
        from camshaft.plan.runtime.multi_device import bind_mixed  # most plans are on the host only

        bound = bind_mixed(
            schedule,
            memory_plan,
            tuple(lowered.devices.values()),
            arena=arena,
            buffers=arrays,
            device_buffers={buffer: m for buffer, m in memory.memories.items() if buffer in needed},
            own=memory.own,
            threads=workers,
        )
    else:
        bound = bind(schedule, memory_plan, arena=arena, buffers=arrays, threads=workers)
    lent = frozenset(name for name, tensor in graph.inputs.items() if tensor in given)
    plan = _plan(graph, lowered, choices, bound, memory, lent, time.perf_counter() - started)
    if settings().instrumented:
        plan = hook("built")(plan)
    return plan


def _limits(graph: Graph) -> dict[str, tuple[Dim, ...]]:
    """Returns the exclusive upper bounds of each index input, by name, from the ops that read it: the smallest integer, then
    Extents. Raises PlanError for a constant out of bounds."""
    names = {tensor: name for name, tensor in graph.inputs.items()}
    limits: dict[str, dict[Dim, None]] = {}
    for node in graph.nodes:
        for index, limit in node.op.indexes.items():
            tensor, found = root(node.inputs[index]), limit(node.spec)
            if tensor in names:
                limits.setdefault(names[tensor], {})[found] = None
            elif isinstance(tensor.source, ArraySource):
                _check_constant(node, tensor.source.array, found.bound if isinstance(found, Extent) else found)
    return {name: _least(found) for name, found in limits.items()}


def _least(limits: Iterable[Dim]) -> tuple[Dim, ...]:
    fixed = [n for n in limits if isinstance(n, int)]
    return (*([min(fixed)] if fixed else []), *(n for n in limits if isinstance(n, Extent)))


def _check_constant(node: Node, array: Array, limit: int) -> None:
    if array.size and not 0 <= array.min() <= array.max() < limit:
        came = f"constant indexes from {array.min()} to {array.max()}"
        raise PlanError(f"{node.name}: got {came}; wanted 0 to {limit - 1}")


def extents_of_graph(graph: Graph) -> list[Extent]:
    """Returns every Extent in the graph's shapes and attributes, even if no thunk reads it."""
    specs = [t.spec for t in (*graph.inputs.values(), *graph.states.values())]
    found = [d for spec in specs for d in spec.shape] + [v for node in graph.nodes for v in node.attrs.values()]
    return list(dict.fromkeys(d for d in found if isinstance(d, Extent)))


def _plan(
    graph: Graph,
    lowered: Lowered,
    choices: Sequence[Choice],
    bound: RunnableSchedule,
    memory: BufferMemory,
    lent: frozenset[str],
    seconds: float,
) -> ExecutionPlan:
    def views(tensors: Mapping[str, Tensor]) -> dict[str, Array | DeviceArray]:
        return {name: memory.view(lowered.home(t), t.spec, lowered.devices) for name, t in tensors.items()}

    named = {**views(graph.inputs), **views(graph.outputs)}
    specs = {name: tensor.spec for name, tensor in {**graph.inputs, **graph.outputs}.items()}
    away = {name: view for name, view in named.items() if isinstance(view, DeviceArray)}
    inputs, outputs = (
        {name: view for name in tensors if not isinstance(view := named[name], DeviceArray)}
        for tensors in (graph.inputs, graph.outputs)
    )
    states, limits = views(graph.states), _limits(graph)
    return ExecutionPlan(
        bound, inputs, outputs, states, away, specs, choices, graph, limits, lent, seconds, lowered.origins
    )
