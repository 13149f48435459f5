"""camshaft.compile: rewrite, lower and bind a graph into an ExecutionPlan."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from camshaft.backends.registry import device
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.graph.graph import Graph, Node, Tensor, root
from camshaft.graph.rewrite import pack_weights, prepare
from camshaft.ops.kernels.target import for_workers
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.hooks import hook
from camshaft.plan.instrument import watch_built, watch_lowered
from camshaft.plan.lowering.choose_devices import choose_placed, places_of
from camshaft.plan.lowering.constant_thunks import run_constant_thunks, take_constant_thunks
from camshaft.plan.lowering.lower import Lowered, lower
from camshaft.plan.lowering.replicate_small import run_everywhere
from camshaft.plan.lowering.sync import as_written, check_sync, order_lowered
from camshaft.plan.memory.arena import MemoryPlan, make_schedule
from camshaft.plan.memory.buffer_memory import Held, given_memory, hold
from camshaft.plan.memory.device_memory import DeviceArray
from camshaft.plan.memory.weights import Weights
from camshaft.plan.runtime.execute import bind
from camshaft.plan.runtime.multi_device import bind_mixed
from camshaft.plan.runtime.runnable import RunnableSchedule
from camshaft.plan.schedule import Schedule, Thunk
from camshaft.selection.kernel_dispatch import KernelDispatch, check_dispatcher
from camshaft.selection.override import check_override, get_backend_override
from camshaft.selection.select import Choice
from camshaft.settings import setting, settings, thread_count

Array = np.ndarray[Any, Any]


def compile(
    graph: Graph,
    *,
    backend: str | None = None,
    threads: int | None = None,
    activations: str = "f32",
    weights: Weights | None = None,
    memory: Mapping[str, Array | DeviceArray] | None = None,
    arena: Array | None = None,
    strict: bool = False,
    dispatcher: KernelDispatch | None = None,
    tune: bool | None = None,
    sync: str | None = None,
) -> ExecutionPlan:
    """Grinds a graph into an ExecutionPlan.

    `backend` names a backend or device for the nodes that the graph does not place itself. `activations` 'q8' quantizes the
    inputs of quantized matmuls to 8 bits, 'f32' does not. `memory` gives, by name, the memory of states, inputs and outputs:
    arrays (64-byte aligned) or DeviceArrays; the others get their own, zeroed. `weights` shares packed constants among plans;
    `arena` is the caller's memory for the host's temporaries. A node without a kernel on its device runs on the CPU, with
    copies, unless `strict`. A `dispatcher` computes the ops that it knows, as the graph was written: nothing is fused or
    quantized for it. `tune` (by default CAMSHAFT_TUNE) measures the kernels of shapes that nobody measured yet and searches
    their tunables, which takes seconds a shape, and keeps the times.

    With `sync` the graph is computed as it was written: nothing is fused, copied or run elsewhere, and results stay where they
    are made. A node then waits, by 'hazards', for those it comes `after` and for earlier ones that touch the same bytes; by
    'each' for the one before it too; by 'explicit' for those it comes `after` alone, and then two that touch the same bytes,
    one writing, in no order are an error.

    BackendError when no proved variant serves a node, PlanError for wrong memory, and for a tensor or an order that `sync`
    finds missing.
    """
    (plan,) = compile_all(
        (graph,),
        backend=backend,
        threads=threads,
        activations=activations,
        weights=weights,
        memory=memory,
        arena=arena,
        strict=strict,
        dispatcher=dispatcher,
        tune=tune,
        sync=sync,
    )
    return plan


def compile_all(
    graphs: Sequence[Graph],
    *,
    backend: str | None = None,
    threads: int | None = None,
    activations: str = "f32",
    weights: Weights | None = None,
    memory: Mapping[str, Array | DeviceArray] | None = None,
    arena: Array | None = None,
    strict: bool = False,
    dispatcher: KernelDispatch | None = None,
    tune: bool | None = None,
    sync: str | None = None,
    foreseen: Callable[[], Sequence[Graph]] = tuple,
) -> list[ExecutionPlan]:
    """Grinds several graphs, as `compile` does each, proving what they all use in one go; memory goes to those that name it.

    `foreseen` gives graphs that will be ground soon: where anything is to be proved, what they use is proved in that go too.
    """
    if activations not in ("q8", "f32"):
        raise PlanError(f"compile: activations {activations!r}; wanted q8 or f32")
    if sync is not None and activations != "f32":
        raise PlanError(f"compile: activations {activations!r} with sync {sync!r}; wanted f32, as it was written")
    check_sync(graphs, sync)
    unknown = sorted(set(memory or ()) - {n for g in graphs for n in (*g.inputs, *g.states, *g.outputs)})
    if unknown:
        raise PlanError(f"compile: memory for {', '.join(unknown)}, which the graph does not name")
    override = check_override(backend) if backend is not None else get_backend_override()
    if dispatcher is not None:
        check_dispatcher(dispatcher)
    if sync is not None:
        ready = [as_written(graph) for graph in graphs]
    else:
        ready = [prepare(graph, activations) if dispatcher is None else pack_weights(graph) for graph in graphs]
    if (settings().tune if tune is None else tune) and dispatcher is None:
        hook("tune_graphs")(ready, override, thread_count(threads))

    def soon() -> list[Node]:
        return [node for graph in foreseen() for node in prepare(graph, activations).nodes]

    nodes = [node for graph in ready for node in graph.nodes]
    weights = weights or Weights()
    with for_workers(thread_count(threads)):
        later = soon if dispatcher is None and sync is None else tuple
        choices = iter(choose_placed(nodes, override, strict or sync is not None, dispatcher, later))
        return [
            _grind(graph, [next(choices) for _ in graph.nodes], threads, weights, memory or {}, arena, sync)
            for graph in ready
        ]


def _grind(
    graph: Graph,
    choices: Sequence[Choice],
    threads: int | None,
    weights: Weights,
    memory: Mapping[str, Array | DeviceArray],
    arena: Array | None,
    sync: str | None,
) -> ExecutionPlan:
    """Lowers a graph whose nodes have their choices, plans memory, loads weights and binds."""
    started = time.perf_counter()
    given, extents = given_memory(graph, memory), extents_of_graph(graph)
    there = {t: held.device if isinstance(held, DeviceArray) else device("cpu") for t, held in given.items()}
    lowered = lower(graph, choices, places_of(graph, there), as_written=sync is not None)
    once: Sequence[Thunk] = ()
    if sync is not None:
        order = order_lowered(graph, lowered, sync)
        watch_lowered(lowered)
        made = make_schedule(lowered.thunks, extents, order.after, order.before)
    else:
        watch_lowered(lowered)
        # A replaced kernel is compared with its op's reference in the first run, so it is part of that.
        once = take_constant_thunks(lowered) if setting("override") is None else ()
        workers = thread_count(threads)
        made = make_schedule(run_everywhere(lowered, workers), extents, workers=workers)
    return bind_lowered(graph, lowered, choices, made, threads, weights, given, arena, started, once)


def bind_lowered(
    graph: Graph,
    lowered: Lowered,
    choices: Sequence[Choice],
    made: tuple[Schedule, MemoryPlan],
    threads: int | None,
    weights: Weights,
    given: Mapping[Tensor, Array | DeviceArray],
    arena: Array | None,
    started: float,
    once: Sequence[Thunk] = (),
) -> ExecutionPlan:
    """Loads weights and binds the schedule of a graph that was lowered, begun at `started` (perf_counter). Thunks that run
    `once` have run when it is bound."""
    schedule, memory_plan = made
    workers = thread_count(threads)
    held = hold(lowered, weights, given, workers)
    held.arrays.update(run_constant_thunks(once, held.arrays, workers))
    needed = set(schedule.buffers)
    buffers = {buffer: array for buffer, array in held.arrays.items() if buffer in needed}
    bound: RunnableSchedule
    if lowered.devices:
        away = {buffer: memory for buffer, memory in held.memories.items() if buffer in needed}
        bound = bind_mixed(
            schedule,
            memory_plan,
            tuple(lowered.devices.values()),
            arena=arena,
            buffers=buffers,
            device_buffers=away,
            own=held.own,
            threads=workers,
        )
    else:
        bound = bind(schedule, memory_plan, arena=arena, buffers=buffers, threads=workers)
    plan = _plan(graph, lowered, choices, bound, held, time.perf_counter() - started)
    return watch_built(plan)


def _limits(graph: Graph) -> dict[str, int]:
    """What each input that indexes something stays under, by the ops that read it."""
    names = {tensor: name for name, tensor in graph.inputs.items()}
    limits: dict[str, int] = {}
    for node in graph.nodes:
        for index, limit in node.op.indexes.items():
            name = names.get(root(node.inputs[index]))
            if name is not None:
                limits[name] = min(limit(node.spec), limits.get(name, limit(node.spec)))
    return limits


def extents_of_graph(graph: Graph) -> list[Extent]:
    """Every Extent that the graph speaks of, whether a thunk reads it or not."""
    specs = [t.spec for t in (*graph.inputs.values(), *graph.states.values())]
    found = [d for spec in specs for d in spec.shape] + [v for node in graph.nodes for v in node.attrs.values()]
    return list(dict.fromkeys(d for d in found if isinstance(d, Extent)))


def _plan(
    graph: Graph,
    lowered: Lowered,
    choices: Sequence[Choice],
    bound: RunnableSchedule,
    held: Held,
    seconds: float,
) -> ExecutionPlan:
    def views(tensors: Mapping[str, Tensor]) -> dict[str, Array | DeviceArray]:
        return {name: held.view(lowered.home(t), t.spec, lowered.devices) for name, t in tensors.items()}

    named = {**views(graph.inputs), **views(graph.outputs)}
    specs = {name: tensor.spec for name, tensor in {**graph.inputs, **graph.outputs}.items()}
    away = {name: view for name, view in named.items() if isinstance(view, DeviceArray)}
    inputs, outputs = (
        {name: view for name in tensors if not isinstance(view := named[name], DeviceArray)}
        for tensors in (graph.inputs, graph.outputs)
    )
    states, limits = views(graph.states), _limits(graph)
    return ExecutionPlan(bound, inputs, outputs, states, away, specs, choices, graph, limits, seconds, lowered.origins)
