"""What training needs in memory: by kind, of plans; estimated from a graph; and the layers to recompute, so that a step fits."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from camshaft.errors import PlanError
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.graph.passes.recompute import recompute
from camshaft.plan.buffers import Lifetime
from camshaft.plan.execution_plan import ExecutionPlan

if TYPE_CHECKING:
    from camshaft.train.step.step import Step
    from camshaft.train.tuning.methods.tuned import TunedModel

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


def fit(model: TunedModel, step: Step, batch: Sequence[Any], budget_nbytes: int) -> None:
    """Sets `model.recomputed` to the fewest layers, by an estimate, with which the plans of a step hold at most the budget.

    The plans are compiled to be sure, and where they hold more, with more layers. PlanError if all layers are not enough.
    """
    layers = model.config.n_layers

    @functools.cache
    def estimate(n: int) -> int:
        model.recomputed = n
        return step.estimated_nbytes(*batch)

    n, allowed = 0, float(budget_nbytes)
    while True:
        n = _fewest(n, layers, lambda n: estimate(n) <= allowed)  # noqa: B023 - called before `allowed` changes
        model.recomputed = n
        needed = sum(memory_by_kind(step.plans_of(*batch)).values())
        if needed <= budget_nbytes:
            return
        if n == layers:
            raise PlanError(
                f"memory: a step holds {_size(needed)} with all {layers} layers recomputed; wanted at most "
                f"{_size(budget_nbytes)} (lower batch=, raise micro_batches=, or lower length=)"
            )
        step.close()
        n, allowed = n + 1, estimate(n) * budget_nbytes / needed


def _fewest(low: int, high: int, fits: Any) -> int:
    """The least number from `low` to `high` that fits; `high` if none does."""
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
