"""Benchmark candidates with the plan executor, in interleaved rounds, so that drift affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from math import ceil

from camshaft.settings import thread_count
from camshaft.tune.candidates import Candidate, input_sets, plan_of
from camshaft.tune.inputs import Array, Bytes, inputs_for
from camshaft.tune.rounds import BenchmarkConfig, Timing, measure

MAX_USES = 256


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
        self._run = stack.enter_context(plan_of(kernel, memory, self.uses, threads)).bound.run
        self._run()  # starts the worker threads and touches the memory pages
        if not config.cold:
            self.uses = min(MAX_USES, ceil(config.sample_ns / max(self.sample(), 1.0)))
            self._run = stack.enter_context(plan_of(kernel, memory, self.uses, threads)).bound.run

    def sample(self) -> float:
        """Run the plan and return nanoseconds per use."""
        started = time.perf_counter_ns()
        self._run()
        return (time.perf_counter_ns() - started) / self.uses
