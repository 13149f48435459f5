"""camshaft.compile: check and rewrite a graph, choose its variants, and make an ExecutionPlan of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from camshaft import ops
from camshaft.errors import PlanError
from camshaft.graph.custom import COPY, CustomOp
from camshaft.graph.graph import Graph, offset_nbytes, root
from camshaft.graph.node import Node
from camshaft.graph.passes.rewrite import expanded, pack_weights, prepare
from camshaft.ops.kernels.launch import for_workers
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.hooks import hook
from camshaft.plan.lower_and_bind import lower_and_bind
from camshaft.plan.lowering.lower import choose_variants
from camshaft.plan.lowering.sync import SYNCS, as_written
from camshaft.plan.memory.device_memory import DeviceArray
from camshaft.plan.memory.weights import Weights
from camshaft.process import thread_count
from camshaft.selection.kernel_dispatch import KernelDispatch, check_dispatcher
from camshaft.selection.override import check_override, get_backend_override
from camshaft.settings import setting, settings

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
        rivals = weights is None and dispatcher is None and any(choice.losers for choice in choices)
        if rivals and setting("measure"):
            hook("measure_at_exit")(hook("used_in")(graph, choices, override), workers)
        return lower_and_bind(graph, choices, workers, weights or Weights(), memory or {}, arena, sync)


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
    _check_sync(graph, sync)
    if sync is None and not memory and not graph.outputs and not any(map(_has_effect, graph.nodes)):
        raise PlanError(f"compile: {graph!r} computes nothing; wanted an output (graph.output(name, tensor))")
    unknown = sorted(set(memory or ()) - {*graph.inputs, *graph.states, *graph.outputs})
    if unknown:
        raise PlanError(f"compile: memory for {', '.join(unknown)}, which the graph does not name")


def _check_sync(graph: Graph, sync: str | None) -> None:
    """Raises PlanError for an unknown strategy, and for a graph that requires `sync` compiled without it."""
    wanted = ", ".join(SYNCS)
    if sync is not None and sync not in SYNCS:
        raise PlanError(f"compile: got sync {sync!r}; wanted one of {wanted}")
    for node in graph.nodes if sync is None else ():
        feature = _feature_of_sync(node)
        if feature is not None:
            raise PlanError(f"compile: {node.name!r} {feature}, and there is no sync; wanted one of {wanted}")


def _feature_of_sync(node: Node) -> str | None:
    """Returns the feature of a node that requires `sync`, if any."""
    if node.op is COPY:
        return "is a copy"
    if node.after:
        return "comes after others"
    if any(t.base is not None for t in node.outputs):
        return "writes into given memory"
    parts = [t for t in node.inputs if root(t).kind == "buffer" or offset_nbytes(t)]
    return f"reads {parts[0].name}" if parts else None


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
