"""What the plan of a step needs in memory, by kind."""

from __future__ import annotations

from collections.abc import Mapping

from camshaft.backends.device import HOST
from camshaft.plan.buffers import Lifetime
from camshaft.plan.execution_plan import ExecutionPlan

_STATES = {
    "parameters": "parameters",
    "optimizer": "optimizer",
    "average": "averages",
    "gradient": "gradients of micro-batches",
}


def memory_by_kind(plan: ExecutionPlan) -> Mapping[str, int]:
    """Bytes by kind: `weights` that are not learned, `parameters`, `optimizer`, `activations and gradients` (the arena), `batch`.

    Kinds without bytes are left out. Constants that are packed count as they are packed."""
    found: dict[str, int] = {}
    for buffer in plan.bound.schedule.buffers:
        kind = {Lifetime.CONSTANT: "weights", Lifetime.IO: "batch"}.get(buffer.lifetime)
        if kind is not None:
            found[kind] = found.get(kind, 0) + buffer.nbytes
    for name, tensor in plan.graph.states.items():
        kind = _STATES.get(name.partition("/")[0], "batch")
        found[kind] = found.get(kind, 0) + tensor.spec.nbytes
    memory = plan.bound.memory_plan
    found["activations and gradients"] = memory.arena_nbytes + sum(
        nbytes for space, nbytes in memory.device_nbytes.items() if space != HOST
    )
    order = ("weights", *_STATES.values(), "activations and gradients", "batch")
    return {kind: found[kind] for kind in order if found.get(kind)}
