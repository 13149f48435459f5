"""camshaft.compile: a graph through the passes, dispatch and lowering to an ExecutionPlan with named inputs and outputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from camshaft.dispatch.override import check_override, get_backend_override
from camshaft.dispatch.select import Choice, choose
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.graph.passes.prepare import prepare
from camshaft.ops.spec import TensorSpec
from camshaft.plan.execute import BoundSchedule, bind
from camshaft.plan.lower import Lowered, lower
from camshaft.plan.memory import make_schedule
from camshaft.plan.schedule import Buffer, Lifetime
from camshaft.plan.weights import Weights
from camshaft.plan.workers import aligned_bytes
from camshaft.settings import thread_count

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ExecutionPlan:
    """A graph that is bound and ready to run. `inputs`, `outputs` and `states` are views of its memory, by name."""

    bound: BoundSchedule
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    states: dict[str, Array]
    specs: Mapping[str, TensorSpec]
    choices: Sequence[Choice] = field(repr=False)
    limits: Mapping[str, int] = field(default_factory=dict)
    compile_s: float = 0.0

    def set_extent(self, extent: Extent, value: int) -> None:
        """Makes `value` the active value of an extent for later runs. PlanError out of 0 to its bound."""
        self.bound.set_extent(extent, value)

    def run(self, **inputs: object) -> dict[str, Array]:
        """Copies the named inputs in, runs every thunk, and gives views of the outputs (valid until the next run).

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
            what = f"{thunk.op}/{thunk.variant}{kind}, {thunk.programs.bound} programs"
            lines.append(f"{mark}{index:4d} {thunk.name}: {what}; {thunk.reason}")
        lost = {f"{c.op.name}/{x.variant} ({x.backend}): {x.reason}" for c in self.choices for x in c.losers}
        lines += ["not chosen:", *(f"  {text}" for text in sorted(lost))] if lost else []
        lines += ["arena:", *(f"  {offset:9d} +{b.nbytes:9d} {b.name}" for b, offset in memory.offsets.items())]
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
    memory: Mapping[str, Array] | None = None,
    arena: Array | None = None,
) -> ExecutionPlan:
    """Grinds a graph into an ExecutionPlan.

    `activations` 'q8' quantizes the inputs of quantized matmuls to 8 bits, 'f32' does not. `memory` gives, by name, the memory of
    states, inputs and outputs (64-byte aligned); the others get their own, zeroed. `weights` shares packed constants among
    plans; `arena` is the caller's memory for temporaries. BackendError when no proved variant serves a node, PlanError for
    wrong memory.
    """
    (plan,) = compile_all(
        (graph,),
        backend=backend,
        threads=threads,
        activations=activations,
        weights=weights,
        memory=memory,
        arena=arena,
    )
    return plan


def compile_all(
    graphs: Sequence[Graph],
    *,
    backend: str | None = None,
    threads: int | None = None,
    activations: str = "f32",
    weights: Weights | None = None,
    memory: Mapping[str, Array] | None = None,
    arena: Array | None = None,
) -> list[ExecutionPlan]:
    """Grinds several graphs, as `compile` does each, proving what they all use in one go; memory goes to those that name it."""
    if activations not in ("q8", "f32"):
        raise PlanError(f"compile: activations {activations!r}; wanted q8 or f32")
    unknown = sorted(set(memory or ()) - {n for g in graphs for n in (*g.inputs, *g.states, *g.outputs)})
    if unknown:
        raise PlanError(f"compile: memory for {', '.join(unknown)}, which the graph does not name")
    override = check_override(backend) if backend is not None else get_backend_override()
    ready = [prepare(graph, activations) for graph in graphs]
    choices = iter(choose([(node.op, node.spec) for graph in ready for node in graph.nodes], override))
    weights = weights or Weights()
    return [
        _grind(graph, [next(choices) for _ in graph.nodes], threads, weights, memory or {}, arena) for graph in ready
    ]


def _grind(
    graph: Graph,
    choices: Sequence[Choice],
    threads: int | None,
    weights: Weights,
    memory: Mapping[str, Array],
    arena: Array | None,
) -> ExecutionPlan:
    """Lowers, plans memory, loads weights and binds."""
    started = time.perf_counter()
    lowered = lower(graph, choices)
    schedule, memory_plan = make_schedule(lowered.thunks, _extents(graph))
    workers = thread_count(threads)
    weights.prepare([t for t in lowered.buffers if t.kind == "constant"], workers)
    held = _bind_memory(graph, lowered, weights, memory)
    needed = set(schedule.buffers)
    buffers = {buffer: array for buffer, array in held.items() if buffer in needed}
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


def _bind_memory(graph: Graph, lowered: Lowered, weights: Weights, given: Mapping[str, Array]) -> dict[Buffer, Array]:
    named = {**graph.inputs, **graph.states, **graph.outputs}
    by_tensor = {root(named[name]): _given(named, name, array) for name, array in given.items() if name in named}
    memory: dict[Buffer, Array] = dict(lowered.made)
    for tensor, buffer in lowered.buffers.items():
        if tensor.kind == "constant":
            memory[buffer] = weights.memory(tensor)
        elif tensor in by_tensor:
            memory[buffer] = by_tensor[tensor].reshape(-1).view(np.uint8)[: buffer.nbytes]
        elif buffer.lifetime is not Lifetime.TEMP:
            memory[buffer] = aligned_bytes(buffer.nbytes, 64)
    return memory


def _given(named: Mapping[str, Tensor], name: str, array: Array) -> Array:
    """The caller's memory for a named tensor, which may be larger. PlanError where it cannot be that tensor's."""
    spec = named[name].spec
    dtype = spec.parts[0].dtype.numpy if spec.is_plain else np.dtype(np.uint8)
    if array.dtype not in (dtype, np.uint8) or not array.flags.c_contiguous or array.nbytes < spec.nbytes:
        raise PlanError(
            f"compile: memory for {name!r} came as {array.dtype} {list(array.shape)}, {array.nbytes} bytes; wanted {spec}, "
            f"{spec.nbytes} contiguous bytes"
        )
    return array


def _plan(
    graph: Graph,
    lowered: Lowered,
    choices: Sequence[Choice],
    bound: BoundSchedule,
    memory: Mapping[Buffer, Array],
    seconds: float,
) -> ExecutionPlan:
    def views(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
        return {
            n: _view(memory[lowered.buffers[root(t)]], t.spec) for n, t in tensors.items() if root(t) in lowered.buffers
        }

    named = {**graph.inputs, **graph.outputs}
    specs = {name: tensor.spec for name, tensor in named.items()}
    tensors = views(graph.inputs), views(graph.outputs), views(graph.states)
    return ExecutionPlan(bound, *tensors, specs, choices, _limits(graph), seconds)


def _view(memory: Array, spec: TensorSpec) -> Array:
    if not spec.is_plain:
        return memory
    raw = memory.reshape(-1).view(np.uint8)[: spec.nbytes]
    return raw.view(spec.parts[0].dtype.numpy).reshape(spec.bounds)
