"""NamedPlans: a model's plans by name, each compiled when it is first used or loaded from the plan cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from camshaft.errors import ModelError
from camshaft.generate.sampling.form import SamplingForm
from camshaft.generate.stored.plan_cache import PlanCache
from camshaft.models.config import ModelConfig
from camshaft.plan.cached.cached_plan import CachedPlan
from camshaft.plan.memory.weights import Weights
from camshaft.process import ForkLock

if TYPE_CHECKING:
    from camshaft.backends.device import Device
    from camshaft.graph.graph import Graph
    from camshaft.plan.execution_plan import ExecutionPlan


class NamedPlans(ABC):
    """Makes the plans of one model. Who inherits it says which graph a name has, and what memory all plans share."""

    config: ModelConfig
    device: Device | None
    weights: Weights
    plan_cache: PlanCache
    threads: int
    _kernels: str | None
    _activations: str

    def __init__(self) -> None:
        self._making, self._is_closed = ForkLock(), False
        self._compiled: dict[str, ExecutionPlan] = {}
        self._cached: dict[str, CachedPlan | None] = {}

    @abstractmethod
    def _graph(self, name: str) -> Graph: ...

    @abstractmethod
    def _memory(self) -> dict[str, Any]: ...

    @property
    def prompt(self) -> ExecutionPlan:
        """The compiled plan for prompts; compiles it even if a cached plan runs."""
        return self._compiled_plan("prompt")

    @property
    def single(self) -> ExecutionPlan:
        """The compiled plan for single tokens."""
        return self._compiled_plan("single")

    def _compiled_plan(self, name: str) -> ExecutionPlan:
        with self._making:
            return self._compiled[name] if name in self._compiled else self._compile(name, self._graph(name))

    def _compile(self, name: str, graph: Graph) -> ExecutionPlan:
        from camshaft.plan.compile import compile

        memory = self._memory()
        plan = compile(
            graph,
            backend=self._kernels,
            threads=self.threads,
            activations=self._activations,
            weights=self.weights,
            memory=memory,
            upcoming=self._upcoming,
        )
        self._compiled[name] = plan
        self.plan_cache.add(name, plan, memory)
        return plan

    def _upcoming(self) -> list[Graph]:
        """The graphs whose kernels are proved beside a plan's: that of draws, unless it runs on another device, the CPU."""
        from camshaft.generate.sampling.graph import sampling_graph

        return [sampling_graph(SamplingForm(), 1, self.config.vocab_size)] if self.device is None else []

    def _cached_plan(self, name: str) -> CachedPlan | None:
        if name not in self._cached:
            self._cached[name] = self.plan_cache.get(name, self._memory)
        return self._cached[name]

    def _plan(self, name: str) -> ExecutionPlan | CachedPlan:
        """The compiled plan to run, else a cached one, else one compiled now."""
        return self._compiled.get(name) or self._cached.get(name) or self.make(name)

    def make(self, name: str) -> ExecutionPlan | CachedPlan:
        """Load a plan, or compile it, unless it is there. In any thread, also without the model's lock: others run meanwhile.

        Raises ModelError if the model is closed."""
        with self._making:
            if self._is_closed:
                raise ModelError("the model is closed")
            return self._compiled.get(name) or self._cached_plan(name) or self._compiled_plan(name)

    @property
    def origins(self) -> dict[str, str]:
        """The origin of each plan by name: 'cached' or 'compiled', with the reason if it cannot be cached."""
        cached = {name: "cached" for name, plan in self._cached.items() if plan is not None}
        refused = {name: f"compiled; cannot be cached: {reason}" for name, reason in self.plan_cache.refused.items()}
        return cached | dict.fromkeys(self._compiled, "compiled") | refused

    def _close_plans(self) -> None:
        for plan in (*self._compiled.values(), *self._cached.values()):
            if plan is not None:
                plan.close()
        self._compiled.clear()
        self._cached.clear()
