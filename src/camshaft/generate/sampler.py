"""Sample tokens on the model's device, with small plans over its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from camshaft.errors import LogitsError, SettingError
from camshaft.extent import Extent
from camshaft.generate.options import Sampling
from camshaft.ops.spec import Dim
from camshaft.plan.cached_plan import CachedPlan

if TYPE_CHECKING:
    from camshaft.generate.plan_cache import PlanCache
    from camshaft.plan.execution_plan import ExecutionPlan
    from camshaft.plan.memory.device_memory import DeviceArray

    Plan: TypeAlias = ExecutionPlan | CachedPlan

Array = np.ndarray[Any, Any]
NO_TOKEN = -1
_FINITE = np.finfo(np.float32)


def n_penalized(sampling: Sampling) -> int:
    """The number of recent tokens with a penalty: the part of a Sampling that its plan depends on."""
    return sampling.repeat_last_n if sampling.has_penalty else 0


class SamplerPlans:
    """Compiles a plan per number of penalized tokens. Greedy sampling is a temperature of 0."""

    def __init__(self, logits: Array | DeviceArray, backend: str | None, threads: int, plan_cache: PlanCache) -> None:
        self._logits, self._backend, self._threads, self._plan_cache = logits, backend, threads, plan_cache
        self._rows = Extent("rows", logits.shape[0])
        self._plans: dict[tuple[int, Dim], Plan] = {}

    def plan(self, sampling: Sampling) -> Plan:
        """The plan from the first row of `logits` to a token."""
        return self._plan(n_penalized(sampling), 1)

    def draw(self, samplers: Sequence[Sampler], histories: Sequence[Sequence[int]]) -> list[int]:
        """Draw a token from each of the first rows of `logits` with its sampler, -1 from a row with a NaN; `histories` are the
        preceding tokens."""
        tokens: dict[int, Array] = {}
        for penalized in {s.penalized for s in samplers}:
            plan = self._plan(penalized, self._rows)
            plan.set_extent(self._rows, len(samplers))
            for row, (sampler, history) in enumerate(zip(samplers, histories, strict=True)):
                sampler.fill(plan, row, history)
            plan.bound.run()
            tokens[penalized] = plan.outputs["token"]
        for sampler in samplers:
            sampler.step += 1
        return [int(tokens[s.penalized][row]) for row, s in enumerate(samplers)]

    def logits_of(self, row: int) -> Array:
        """A copy of one row of `logits`, f32 [vocab]."""
        rows: Array = self._logits if isinstance(self._logits, np.ndarray) else self._logits.read(row + 1)
        return np.array(rows[row])

    def _plan(self, penalized: int, rows: Dim) -> Plan:
        key = penalized, rows
        if key not in self._plans:
            name, memory = f"sampler.{penalized}.{rows}", {"logits": self._logits}
            cached = self._plan_cache.get(name, lambda: memory)
            if cached is None:
                compiled = self._compile(penalized, rows)
                self._plan_cache.add(name, compiled, memory)
            self._plans[key] = cached or compiled
        return self._plans[key]

    def _compile(self, penalized: int, rows: Dim) -> ExecutionPlan:
        from camshaft.generate.graphs import sampling_graph  # not needed if the plans are cached
        from camshaft.plan.compile import compile

        graph = sampling_graph(penalized, rows, self._logits.shape[1])
        threads = 1 if rows == 1 else self._threads
        return compile(graph, backend=self._backend, threads=threads, memory={"logits": self._logits})

    def close(self) -> None:
        """Release every plan."""
        for plan in self._plans.values():
            plan.close()


class Sampler:
    """The random draws of one generation. Equal seeds and logits give equal tokens."""

    def __init__(self, plan: Plan, sampling: Sampling) -> None:
        self._plan, self._sampling = plan, sampling
        self._seed = sampling.start_seed()
        self.penalized, self.step = n_penalized(sampling), 0

    def draw(self, history: Sequence[int]) -> int:
        """Draw the next token from the logits of the last run, -1 if one is NaN; `history` are the preceding tokens."""
        self.fill(self._plan, 0, history)
        self.step += 1
        self._plan.bound.run()
        return int(self._plan.outputs["token"][0])

    def fill(self, plan: Plan, row: int, history: Sequence[int]) -> None:
        """Write this sampler's row of every input except the logits; other samplers share the plan."""
        for name, values in plan.inputs.items():
            if name != "logits":
                values[row] = self._input(name, values, history)

    def _input(self, name: str, memory: Array, history: Sequence[int]) -> Any:
        if name == "recent":
            return recent_tokens(history, self._sampling.repeat_last_n, memory.shape[1])
        if name == "seed":
            return seed_words(self._seed, self.step)
        if name == "temperature" and self._sampling.greedy:
            return 0.0
        return getattr(self._sampling, "repeat_penalty" if name == "penalty" else name)


def check_drawn(token: int, position: int, n_generated: int, of: str = "") -> int:
    """Return `token`. Raises LogitsError if it is -1: the logits have a NaN."""
    if token < 0:
        raise LogitsError(
            f"{of}the model computed NaN logits for the token at position {position} (after {n_generated} generated tokens): "
            "its file may be damaged, or numbers overflow, which f32 activations may avoid"
        )
    return token


def log_probabilities(logits: Array, token: int, n: int) -> list[tuple[int, float]]:
    """(id, natural logarithm of the probability) of `token`, then of the `n` most probable tokens, ties by the smaller id.

    `logits` f32 [vocab] are the model's, before temperature and filters; infinite ones count as the largest finite number.
    """
    x = np.clip(logits.astype(np.float64), _FINITE.min, _FINITE.max)
    shifted = x - x.max()
    logs = shifted - np.log(np.exp(shifted).sum())
    n = min(n, len(x))
    least = np.partition(x, len(x) - n)[len(x) - n] if n else np.inf
    candidates = np.flatnonzero(x >= least)
    best = candidates[np.argsort(-x[candidates], kind="stable")][:n]
    return [(int(i), float(logs[i])) for i in (token, *best)]


def seed_words(seed: int, step: int) -> tuple[int, int, int]:
    """One row of the op sample's seed input: the seed's low and high words, and the step."""
    mask = 2**32 - 1
    return seed & mask, seed >> 32 & mask, step & mask


def recent_tokens(tokens: Sequence[int], last_n: int, width: int) -> Array:
    """The distinct ids among the last `last_n` tokens, int32 [width], padded with NO_TOKEN. Raises SettingError if
    `width` is too small."""
    if last_n > width:
        raise SettingError(f"Sampling repeat_last_n={last_n}: wanted at most {width}, the width of this plan")
    ids = np.full(max(width, 1), NO_TOKEN, np.int32)
    distinct = list(dict.fromkeys(tokens[-last_n:])) if last_n else []
    ids[: len(distinct)] = distinct
    return ids
