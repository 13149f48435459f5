"""camshaft.compile: rewrite, lower and bind a graph into an ExecutionPlan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from camshaft import ops
from camshaft.backends.registry import device
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.graph.custom import CustomOp
from camshaft.graph.graph import ArraySource, Graph, Tensor, root
from camshaft.graph.node import Node
from camshaft.graph.passes.rewrite import expanded, pack_weights, prepare
from camshaft.ops.kernels.launch import for_workers
from camshaft.ops.spec import Dim
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.hooks import hook
from camshaft.plan.lowering.constant_thunks import run_constant_thunks, take_constant_thunks
from camshaft.plan.lowering.lower import Lowered, choose_variants, lower, tensor_devices
from camshaft.plan.lowering.replicate_small import replicate_small
from camshaft.plan.lowering.sync import as_written, check_sync, order_lowered
from camshaft.plan.memory.arena import MemoryPlan, make_schedule
from camshaft.plan.memory.buffer_memory import BufferMemory, allocate_buffers, given_memory
from camshaft.plan.memory.device_memory import DeviceArray
from camshaft.plan.memory.weights import Weights
from camshaft.plan.runtime.execute import bind
from camshaft.plan.runtime.runnable import RunnableSchedule
from camshaft.plan.schedule import Schedule, Thunk
from camshaft.selection.choice import Choice
from camshaft.selection.kernel_dispatch import KernelDispatch, check_dispatcher
from camshaft.selection.override import check_override, get_backend_override
from camshaft.settings import setting, settings, thread_count

Array = np.ndarray[Any, Any]
# What `compile` may do to the inputs of quantized products.
ACTIVATIONS = ("q8", "bf16", "f32")


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
    upcoming: Callable[[], Sequence[Graph]] = tuple,
) -> ExecutionPlan:
    """Compiles a graph into an ExecutionPlan.

    `backend` names the backend or device for nodes that the graph does not assign to a device. `activations` 'q8' quantizes
    the inputs of quantized matmuls to 8 bits, 'f32' does not; 'bf16' rounds those of more than 64 rows to bf16, and the
    weights and values of attention of many tokens too, for CPUs with AMX (the others as 'q8'). `memory` maps names of states,
    inputs and outputs to caller-owned arrays (64-byte aligned) or DeviceArrays; the plan allocates the rest, zeroed.
    `weights` shares packed constants among plans; `arena` is caller-owned memory for host temporaries. A node without a
    kernel on its device runs on the CPU, with copies, unless `strict`. A `dispatcher` computes the ops that it supports;
    fusion and activation quantization are then off. `tune` (default: CAMSHAFT_TUNE) measures kernels for shapes without
    stored timings, searches their tunables (seconds per shape) and stores the timings. If a variant must be proved, those of
    the graphs that `upcoming` returns, which will be compiled soon, are proved in the same batch.

    With `sync` the graph runs exactly as written: no fusion, no copies, no fallback to another device. 'hazards': a node waits
    for the nodes in its `after` and for earlier nodes that access the same bytes. 'each': it also waits for the previous node.
    'explicit': it waits only for the nodes in its `after`; two unordered nodes that access the same bytes, at least one of them
    writing, are an error.

    Raises BackendError when no proved variant supports a node, PlanError for invalid memory and for a tensor or an order that
    `sync` requires and the graph lacks.
    """
    _check_types(graph, weights, memory, strict=strict, tune=tune)
    _check_values(graph, activations, sync, memory)
    override = check_override(backend) if backend is not None else get_backend_override()
    if dispatcher is not None:
        check_dispatcher(dispatcher)
    plain = dispatcher is None and sync is None
    graph = _rewritten(graph, activations, sync, plain)
    workers = thread_count(threads)
    if (settings().tune if tune is None else tune) and dispatcher is None:
        hook("tune_graphs")([graph], override, workers)

    def later() -> list[Node]:
        return [node for other in upcoming() for node in prepare(other, activations).nodes] if plain else []

    with for_workers(workers):
        choices = choose_variants(graph.nodes, override, strict or sync is not None, dispatcher, later)
        # A model, which gives `weights`, measures its plans when it is closed.
        if weights is None and dispatcher is None and setting("measure"):
            hook("measure_at_exit")(hook("used_in")(graph, choices, override), workers)
        return _lower_and_bind(graph, choices, workers, weights or Weights(), memory or {}, arena, sync)


def _rewritten(graph: Graph, activations: str, sync: str | None, plain: bool) -> Graph:
    """Returns the graph that is lowered: the whole rewrite only if it is compiled neither as written nor for a dispatcher."""
    if sync is not None:
        composite = next((node for node in graph.nodes if ops.is_composite(node.op)), None)
        if sync == "explicit" and composite is not None:
            raise PlanError(
                f"compile: {composite.name}: {composite.op.name} has no kernel of its own, and sync 'explicit' has no order "
                "for its parts; wanted sync 'hazards' or 'each'"
            )
        return as_written(expanded(graph))
    return prepare(graph, activations) if plain else pack_weights(expanded(graph))


def _check_values(graph: Graph, activations: str, sync: str | None, memory: Mapping[str, Any] | None) -> None:
    """Raises PlanError for arguments that are not among the legal ones, do not fit each other, or compute nothing."""
    if activations not in ACTIVATIONS:
        raise PlanError(f"compile: activations {activations!r}; wanted {', '.join(ACTIVATIONS)}")
    if sync is not None and activations != "f32":
        raise PlanError(f"compile: activations {activations!r} with sync {sync!r}; wanted f32, as it was written")
    check_sync(graph, sync)
    if sync is None and not memory and not graph.outputs and not any(map(_has_effect, graph.nodes)):
        raise PlanError(f"compile: {graph!r} computes nothing; wanted an output (graph.output(name, tensor))")
    unknown = sorted(set(memory or ()) - {*graph.inputs, *graph.states, *graph.outputs})
    if unknown:
        raise PlanError(f"compile: memory for {', '.join(unknown)}, which the graph does not name")


def _check_types(graph: object, weights: object, memory: object, **flags: object) -> None:
    """Raises PlanError for a wrong type."""
    if not isinstance(graph, Graph):
        raise PlanError(f"compile: got {graph!r:.80}; wanted a camshaft.Graph")
    if weights is not None and not isinstance(weights, Weights):
        raise PlanError(f"compile: weights={weights!r:.80}; wanted Weights or None")
    if memory is not None and not isinstance(memory, Mapping):
        raise PlanError(f"compile: memory={memory!r:.80}; wanted a dict of arrays by name")
    for name, value in flags.items():
        if value is not None and not isinstance(value, bool):
            raise PlanError(f"compile: {name}={value!r:.80}; wanted True or False")


def _has_effect(node: Node) -> bool:
    """Whether the node changes memory that the caller can read, or runs the caller's function."""
    writes = any(root(t).kind in ("state", "buffer") for t in node.outputs)
    return writes or bool(node.op.updates) or isinstance(node.op, CustomOp)


def _lower_and_bind(
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
        made = make_schedule(replicate_small(lowered, workers), extents, workers=workers)
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
    """Returns the exclusive upper bounds of each index input, by name, from the ops that read it: the least integer, then
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
