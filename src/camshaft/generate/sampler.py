"""Sampler: draws tokens from the model's logits on the model's device, by small plans over the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from camshaft.generate.sampling import Sampling, recent_tokens, seed_words
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.plan.compile import compile
from camshaft.plan.device_memory import DeviceArray
from camshaft.plan.execution_plan import ExecutionPlan

Array = np.ndarray[Any, Any]


class SamplerPlans:
    """Compiles what a Sampling asks for once: argmax or sample, with the repeat penalty or without."""

    def __init__(self, logits: Array | DeviceArray, backend: str | None) -> None:
        self._logits, self._backend = logits, backend
        self._plans: dict[tuple[bool, int], ExecutionPlan] = {}

    def plan(self, sampling: Sampling) -> ExecutionPlan:
        """The plan from logits to `token`."""
        penalized = sampling.repeat_last_n if sampling.has_penalty else 0
        key = (sampling.is_greedy, penalized)
        if key not in self._plans:
            self._plans[key] = self._compile(*key)
        return self._plans[key]

    def _compile(self, greedy: bool, penalized: int) -> ExecutionPlan:
        graph = Graph()
        logits = graph.input("logits", (1, self._logits.shape[1]), "f32")
        if penalized:
            recent, penalty = graph.input("recent", (1, penalized), "i32"), graph.input("penalty", (1,), "f32")
            logits = F.repeat_penalty(logits, recent, penalty)
        graph.output("token", F.argmax(logits) if greedy else self._sample(graph, logits))
        return compile(graph, backend=self._backend, threads=1, memory={"logits": self._logits})

    def _sample(self, graph: Graph, logits: Tensor) -> Tensor:
        kinds = {"temperature": "f32", "top_k": "i32", "top_p": "f32", "min_p": "f32"}
        settings = [graph.input(name, (1,), dtype) for name, dtype in kinds.items()]
        result: Tensor = F.sample(logits, *settings, graph.input("seed", (1, 3), "u32"))
        return result

    def close(self) -> None:
        """Lets go of every plan."""
        for plan in self._plans.values():
            plan.close()


class Sampler:
    """One generation's draws. The same Sampling with a seed draws the same tokens from the same logits."""

    def __init__(self, plan: ExecutionPlan, sampling: Sampling) -> None:
        self._plan, self._sampling = plan, sampling
        self._seed = sampling.start_seed()
        self._step = 0

    def draw(self, history: Sequence[int]) -> int:
        """The next token from the logits of the last run; `history` are the tokens before it."""
        for name, values in self._plan.inputs.items():  # all of them: other samplers use the same plan
            if name != "logits":
                values[0] = self._input(name, values, history)
        self._step += 1
        self._plan.bound.run()
        return int(self._plan.outputs["token"][0])

    def _input(self, name: str, memory: Array, history: Sequence[int]) -> Any:
        if name == "recent":
            return recent_tokens(history, self._sampling.repeat_last_n, memory.shape[1])
        if name == "seed":
            return seed_words(self._seed, self._step)
        return getattr(self._sampling, "repeat_penalty" if name == "penalty" else name)
