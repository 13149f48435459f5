"""What training needs in memory: by kind, of plans; and estimated from a graph, before it is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from camshaft.graph.graph import Graph, Tensor, root
from camshaft.graph.passes.recompute import recompute
from camshaft.plan.buffers import Lifetime
from camshaft.plan.execution_plan import ExecutionPlan

_STATES = {
    "parameters": "parameters",
    "optimizer": "optimizer",
    "average": "averages",
    "gradient": "gradients of micro-batches",
}
_TEMPORARY = "activations and gradients"


def anonymous_nbytes() -> int | None:
    """Bytes of this process's memory that no file backs; None where the system does not say it as Linux does."""
    status = Path("/proc/self/status")
    lines = status.read_text("ascii").splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), None)


def memory_by_kind(plans: Sequence[ExecutionPlan]) -> Mapping[str, int]:
    """Bytes that plans hold together: `weights` that are not learned, `parameters`, `optimizer`, `activations and gradients` (the
    plans' arenas), `batch` (inputs and outputs), `averages` and `gradients of micro-batches`.

    Weights and states, which plans of one step share, count once; kinds without bytes are left out."""
    found: dict[str, int] = {}
    weights: dict[tuple[str, int], int] = {}
    states: dict[str, int] = {}
    for plan in plans:
        for buffer in plan.bound.schedule.buffers:
            if buffer.lifetime is Lifetime.CONSTANT:
                weights[buffer.name, buffer.nbytes] = buffer.nbytes
            elif buffer.lifetime is Lifetime.IO:
                found["batch"] = found.get("batch", 0) + buffer.nbytes
        states |= {name: tensor.spec.nbytes for name, tensor in plan.graph.states.items()}
        memory = plan.bound.memory_plan
        arenas = memory.arena_nbytes + sum(memory.device_nbytes.values())
        found[_TEMPORARY] = found.get(_TEMPORARY, 0) + arenas
    for name, nbytes in states.items():
        kind = _STATES.get(name.partition("/")[0], "batch")
        found[kind] = found.get(kind, 0) + nbytes
    found["weights"] = sum(weights.values())
    return {kind: found[kind] for kind in ("weights", *_STATES.values(), _TEMPORARY, "batch") if found.get(kind)}


def estimated_nbytes(graph: Graph, *, temporaries_alone: bool = False) -> int:
    """The bytes of a graph's constants, states and inputs, unless `temporaries_alone`, and the most that its other tensors hold
    at once.

    A tensor is held from its node to the last that reads it, in the order of the program. The plan, whose rewrites need fewer
    tensors and whose kernels need memory of their own, differs: for steps of LoRA by less than a fifth."""
    graph = recompute(graph)
    last: dict[Tensor, int] = {}
    for i, node in enumerate(graph.nodes):
        last.update({root(t): i for t in (*node.inputs, *node.outputs)})
    last |= {root(t): len(graph.nodes) for t in graph.outputs.values()}
    lasting = {*graph.inputs.values(), *graph.states.values(), *(t for t in last if t.kind == "constant")}
    now = most = 0
    ends: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        for tensor in {root(t) for t in node.outputs} - lasting:
            now += tensor.spec.nbytes
            ends[last[tensor]] = ends.get(last[tensor], 0) + tensor.spec.nbytes
        most = max(most, now)
        now -= ends.pop(i, 0)
    return most if temporaries_alone else most + sum(t.spec.nbytes for t in lasting)
