"""Describes an open model: how long it took to open, and its plan for single tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from camshaft.generate.model_plans import ModelPlans
    from camshaft.plan.schedule import Thunk


@dataclass(frozen=True)
class Timings:
    """Seconds: `load_s` to open the file and tokenizer, `compile_s` to compile the prompt plan and pack weights."""

    load_s: float
    compile_s: float


@dataclass(frozen=True)
class PlanDescription:
    """The compiled plan for single tokens: thunks, whether each waits for earlier ones, and memory use: of the KV cache and the
    recurrent layers' states, that of one session. `window_nbytes` of the KV cache are rings of `ring_rows` tokens, of layers that
    see `window` tokens. `copy_nbytes` has a copy of states and windows, to go back to earlier tokens. `mapped_nbytes` of the
    weights stay in files, `mapped` says which; of experts up to `resident_nbytes` keep their memory."""

    thunks: tuple[Thunk, ...]
    waits: tuple[bool, ...]
    arena_nbytes: int
    temp_nbytes_sum: int
    weights_nbytes: int
    kv_cache_nbytes: int
    state_nbytes: int = 0
    window_nbytes: int = 0
    window: int = 0
    ring_rows: int = 0
    copy_nbytes: int = 0
    mapped: str = ""
    mapped_nbytes: int = 0
    resident_nbytes: int = 0


def describe(plans: ModelPlans) -> PlanDescription:
    """Describe the plan for single tokens, and the memory use of all plans."""
    bound, cache, files = plans.single.bound, plans.cache, plans.residency
    return PlanDescription(
        bound.schedule.thunks,
        bound.schedule.waits,
        bound.memory_plan.arena_nbytes + sum(bound.memory_plan.device_nbytes.values()),
        bound.memory_plan.temp_nbytes_sum,
        plans.weights.nbytes,
        cache.session_nbytes,
        cache.state_nbytes,
        cache.ring_nbytes,
        0 if cache.ring is None else cache.ring.window,
        0 if cache.ring is None else cache.ring.rows,
        sum(cache.copied_nbytes.values()),
        files.what if files else "",
        files.mapped.nbytes if files else 0,
        files.experts.use.most_nbytes if files and files.experts else 0,
    )
