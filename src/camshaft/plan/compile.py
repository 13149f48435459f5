"""camshaft.compile: a graph through the passes, dispatch and lowering to an ExecutionPlan with named inputs and outputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from camshaft.backends.device import HOST
from camshaft.dispatch.kernel_dispatch import KernelDispatch
from camshaft.dispatch.override import check_override, get_backend_override
from camshaft.dispatch.select import Choice
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.graph.passes.layout import pack_weights
from camshaft.graph.passes.prepare import prepare
from camshaft.ops.spec import TensorSpec
from camshaft.plan.device_memory import DeviceArray
from camshaft.plan.execute import BoundSchedule, bind
from camshaft.plan.held import Held, given_memory, hold
from camshaft.plan.lower import Lowered, lower
from camshaft.plan.memory import make_schedule
from camshaft.plan.mixed import MixedSchedule, bind_mixed
from camshaft.plan.placing import choose_placed
from camshaft.plan.weights import Weights
from camshaft.settings import thread_count

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ExecutionPlan:
    """A graph that is bound and ready to run. `inputs`, `outputs` and `states` are views of its memory, by name; a state on a
    device is a DeviceArray, with read() and write(). `away` are the inputs and outputs that the caller gave as DeviceArrays."""

    bound: BoundSchedule | MixedSchedule
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    states: dict[str, Array | DeviceArray]
    away: Mapping[str, DeviceArray]
    specs: Mapping[str, TensorSpec]
    choices: Sequence[Choice] = field(repr=False)
    limits: Mapping[str, int] = field(default_factory=dict)
    compile_s: float = 0.0

    def set_extent(self, extent: Extent, value: int) -> None:
        """Makes `value` the active value of an extent for later runs. PlanError out of 0 to its bound."""
        self.bound.set_extent(extent, value)

    def run(self, **inputs: object) -> dict[str, Array]:
        """Copies the named inputs in, runs every thunk, and gives views of the outputs (valid until the next run), but for
        those that stay on a device (`away`).

        An input whose first axis is an Extent may be shorter than its bound: that sets the extent. PlanError for a name,
        shape or dtype that is not the graph's; an input that is not named keeps its last value.
        """
        values = {name: np.asarray(value) for name, value in inputs.items()}
        active: dict[Extent, int] = {}
        for name, value in values.items():
            self._check(name, value, active)
        for extent, size in active.items():
            self.set_extent(extent, size)
        for name, value in values.items():
            self.inputs[name][tuple(slice(size) for size in value.shape)] = value
        self.bound.run()
        return {name: self._active(name, array) for name, array in self.outputs.items()}

    def _check(self, name: str, value: Array, active: dict[Extent, int]) -> None:
        """Adds to `active` what the value's shape says of extents."""
        if name not in self.inputs:
            raise PlanError(f"run: no input {name!r}; this plan has {', '.join(self.inputs) or 'none'}")
        memory, spec = self.inputs[name], self.specs[name]
        came = f"run: input {name!r} came as {value.dtype} {list(value.shape)}"
        if value.dtype != memory.dtype or value.ndim != memory.ndim:
            raise PlanError(f"{came}; wanted {spec}")
        for size, dim in zip(value.shape, spec.shape, strict=True):
            if not isinstance(dim, Extent):
                if size != dim:
                    raise PlanError(f"{came}; wanted {spec}")
            elif size > dim.bound:
                raise PlanError(f"{came}; wanted {spec}")
            elif active.setdefault(dim, size) != size:
                raise PlanError(f"{came}, but another input has {active[dim]} {dim.name}")

        limit = self.limits.get(name)
        if limit is not None and value.size and not 0 <= value.min() <= value.max() < limit:
            raise PlanError(
                f"run: input {name!r} holds indexes from {value.min()} to {value.max()}; wanted 0 to {limit - 1}"
            )

    def _active(self, name: str, array: Array) -> Array:
        return array[
            tuple(slice(self.bound.extent(d)) if isinstance(d, Extent) else slice(None) for d in self.specs[name].shape)
        ]

    def explain(self) -> str:
        """Thunks with their variants and why, waits, the arena, and what the other variants lost by."""
        schedule, memory = self.bound.schedule, self.bound.memory_plan
        lines = [
            f"{len(schedule.thunks)} thunks, {sum(schedule.waits)} waits, {self.bound.threads} threads; arena "
            f"{memory.arena_nbytes} bytes for {memory.temp_nbytes_sum} bytes of temporaries"
        ]
        for index, (thunk, wait) in enumerate(zip(schedule.thunks, schedule.waits, strict=True)):
            kind = "" if thunk.kind == "kernel" else f" ({thunk.kind})"
            mark = "|" if wait else " "
            where = "" if thunk.device == HOST else f" on {thunk.device}"
            what = f"{thunk.op}/{thunk.variant}{kind}{where}, {thunk.programs.bound} programs"
            lines.append(f"{mark}{index:4d} {thunk.name}: {what}; {thunk.reason}")
        lost = {f"{c.op.name}/{x.variant} ({x.backend}): {x.reason}" for c in self.choices for x in c.losers}
        lines += ["not chosen:", *(f"  {text}" for text in sorted(lost))] if lost else []
        places = [(b.space, f"  {offset:9d} +{b.nbytes:9d} {b.name}") for b, offset in memory.offsets.items()]
        lines += ["arena:", *(text for space, text in places if space == HOST)]
        for device, nbytes in memory.device_nbytes.items():
            lines += [f"arena on {device}, {nbytes} bytes:", *(text for space, text in places if space == device)]
        return "\n".join(lines)

    def close(self) -> None:
        """Lets go of the plan's memory; `inputs` and `outputs` stay readable. It cannot run again."""
        self.bound.close()
        self.states.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
) -> ExecutionPlan:
    """Grinds a graph into an ExecutionPlan.

    `backend` names a backend or device for the nodes that the graph does not place itself. `activations` 'q8' quantizes the
    inputs of quantized matmuls to 8 bits, 'f32' does not. `memory` gives, by name, the memory of states, inputs and outputs:
    arrays (64-byte aligned) or DeviceArrays; the others get their own, zeroed. `weights` shares packed constants among plans;
    `arena` is the caller's memory for the host's temporaries. A node without a kernel on its device runs on the CPU, with
    copies, unless `strict`. A `dispatcher` computes the ops that it knows, as the graph was written: nothing is fused or
    quantized for it. BackendError when no proved variant serves a node, PlanError for wrong memory.
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
) -> list[ExecutionPlan]:
    """Grinds several graphs, as `compile` does each, proving what they all use in one go; memory goes to those that name it."""
    if activations not in ("q8", "f32"):
        raise PlanError(f"compile: activations {activations!r}; wanted q8 or f32")
    unknown = sorted(set(memory or ()) - {n for g in graphs for n in (*g.inputs, *g.states, *g.outputs)})
    if unknown:
        raise PlanError(f"compile: memory for {', '.join(unknown)}, which the graph does not name")
    override = check_override(backend) if backend is not None else get_backend_override()
    ready = [prepare(graph, activations) if dispatcher is None else pack_weights(graph) for graph in graphs]
    choices = iter(choose_placed([node for graph in ready for node in graph.nodes], override, strict, dispatcher))
    weights = weights or Weights()
    return [
        _grind(graph, [next(choices) for _ in graph.nodes], threads, weights, memory or {}, arena) for graph in ready
    ]


def _grind(
    graph: Graph,
    choices: Sequence[Choice],
    threads: int | None,
    weights: Weights,
    memory: Mapping[str, Array | DeviceArray],
    arena: Array | None,
) -> ExecutionPlan:
    """Lowers, plans memory, loads weights and binds."""
    started = time.perf_counter()
    given = given_memory(graph, memory)
    homes = {t: held.device.space if isinstance(held, DeviceArray) else HOST for t, held in given.items()}
    lowered = lower(graph, choices, homes)
    schedule, memory_plan = make_schedule(lowered.thunks, _extents(graph))
    workers = thread_count(threads)
    held = hold(lowered, weights, given, workers)
    needed = set(schedule.buffers)
    buffers = {buffer: array for buffer, array in held.arrays.items() if buffer in needed}
    bound: BoundSchedule | MixedSchedule
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
    return _plan(graph, lowered, choices, bound, held, time.perf_counter() - started)


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


def _extents(graph: Graph) -> list[Extent]:
    """Every Extent that the graph speaks of, whether a thunk reads it or not."""
    specs = [t.spec for t in (*graph.inputs.values(), *graph.states.values())]
    found = [d for spec in specs for d in spec.shape] + [v for node in graph.nodes for v in node.attrs.values()]
    return list(dict.fromkeys(d for d in found if isinstance(d, Extent)))


def _plan(
    graph: Graph,
    lowered: Lowered,
    choices: Sequence[Choice],
    bound: BoundSchedule | MixedSchedule,
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
    return ExecutionPlan(bound, inputs, outputs, views(graph.states), away, specs, choices, _limits(graph), seconds)
