"""Benchmark candidates with the plan executor, in interleaved rounds, so that drift affects all of them equally."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import ceil

from camshaft.backends.registry import device
from camshaft.graph.graph import Graph, Tensor
from camshaft.ops.op import KernelVariant, NodeSpec, Op, Values
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.lower_and_bind import bind_lowered, extents_of_graph
from camshaft.plan.lowering.constant_thunks import take_constant_thunks
from camshaft.plan.lowering.lower import lower
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.memory.buffer_memory import given_memory
from camshaft.plan.memory.weights import Weights
from camshaft.process import thread_count
from camshaft.selection.choice import Choice
from camshaft.tune.inputs import Array, Bytes, input_sets, inputs_for
from camshaft.tune.rounds import BenchmarkConfig, Timing, measure
from camshaft.validation.cases import VariantCase, case_of

MAX_USES = 256


@dataclass(frozen=True)
class Candidate:
    """A variant of an op on a backend or device, for a node."""

    op: Op = field(repr=False)
    node: NodeSpec = field(repr=False)
    variant: KernelVariant = field(repr=False)
    backend: str

    @property
    def label(self) -> str:
        """Text such as 'tiled columns=3 rows=8 (simd)'."""
        return f"{self.variant.label} ({self.backend})"

    @property
    def case(self) -> VariantCase:
        """The case that validates the candidate."""
        return case_of(self.op, self.variant, self.backend, self.node)

    def with_values(self, values: Values) -> Candidate:
        """The same variant with other values of its tunables. Raises BackendError for an illegal value."""
        return Candidate(self.op, self.node, self.variant.with_values(values), self.backend)


def benchmark_kernel(
    kernel: Candidate, args: Sequence[Array] | None = None, config: BenchmarkConfig | None = None
) -> Timing:
    """Time one kernel on the given inputs (default: random data of the node's specs)."""
    return benchmark_round_robin([kernel], args, config)[0]


def benchmark_round_robin(
    kernels: Sequence[Candidate], args: Sequence[Array] | None = None, config: BenchmarkConfig | None = None
) -> list[Timing]:
    """Time several kernels on the same inputs, one sample of each per round. Raises BackendError if one does not compile."""
    config = config or BenchmarkConfig()
    if not kernels:
        return []
    args = inputs_for(kernels[0].op, kernels[0].node) if args is None else args
    threads = thread_count(config.threads)
    memory = input_sets(kernels[0].op, kernels[0].node, args, config.cold)
    with ExitStack() as stack:
        return measure([_Bench(stack, kernel, memory, threads, config) for kernel in kernels], config)


class _Bench:
    """A candidate that is ready to be sampled."""

    def __init__(
        self,
        stack: ExitStack,
        kernel: Candidate,
        memory: Sequence[Sequence[Bytes]],
        threads: int,
        config: BenchmarkConfig,
    ) -> None:
        self.uses = len(memory)
        self._run = self._planned(stack, kernel, memory, threads, config)
        self._run()  # starts the worker threads and touches the memory pages
        if not config.cold:
            self.uses = min(MAX_USES, ceil(config.sample_ns / max(self.sample(), 1.0)))
            self._run = self._planned(stack, kernel, memory, threads, config)

    def _planned(
        self,
        stack: ExitStack,
        kernel: Candidate,
        memory: Sequence[Sequence[Bytes]],
        threads: int,
        config: BenchmarkConfig,
    ) -> Callable[[], None]:
        """Return what runs a plan of `uses` uses, until the stack closes it."""
        return stack.enter_context(plan_of(kernel, memory, self.uses, threads)).bound.run

    def sample(self) -> float:
        """Run the plan and return nanoseconds per use."""
        started = time.perf_counter_ns()
        self._run()
        return (time.perf_counter_ns() - started) / self.uses


def plan_of(candidate: Candidate, memory: Sequence[Sequence[Bytes]], uses: int, threads: int) -> ExecutionPlan:
    """A plan that computes the node `uses` times in sequence, cycling through the sets of inputs in `memory` (bytes, 64-byte
    aligned). Extents are at their bounds. Thunks that read only the node's `packed` inputs run when the plan is made."""
    graph, node = Graph(), candidate.node
    states: dict[str, Bytes] = {}
    tensors: dict[int, Tensor] = {}
    fixed: set[Tensor] = set()
    for use in range(uses):
        inputs = []
        for i, (spec, raw) in enumerate(zip(node.inputs, memory[use % len(memory)], strict=True)):
            if id(raw) not in tensors:
                name = f"input{len(tensors)}"
                tensors[id(raw)], states[name] = graph.state(name, spec), raw
            inputs.append(tensors[id(raw)])
            if i in node.packed:
                fixed.add(tensors[id(raw)])
        graph.apply(candidate.op, inputs, node.attrs, f"use{use}")
    choice = Choice(candidate.op, candidate.variant, candidate.backend, device(candidate.backend), "measured", ())
    choices, started = [choice] * uses, time.perf_counter()
    homes = given_memory(graph, states)
    lowered = lower(graph, choices)
    once = take_constant_thunks(lowered, fixed)
    firsts = {origin.first for origin in lowered.origins}  # in a model a use would wait for its inputs
    schedule, places = make_schedule(lowered.thunks, extents_of_graph(graph))
    waits = tuple(wait or i in firsts for i, wait in enumerate(schedule.waits))
    waiting = replace(schedule, waits=waits), places
    return bind_lowered(graph, lowered, choices, waiting, threads, Weights(), homes, None, started, once)
