"""Benchmarks of candidates by the plans' own executor, by turns, so that whatever drifts hits all alike. Below nodes.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import ceil

from camshaft.settings import thread_count
from camshaft.tune.candidates import Candidate, plan_of
from camshaft.tune.cold import evictor
from camshaft.tune.inputs import Array, inputs_for
from camshaft.tune.rounds import BenchmarkConfig, Timing, measure

MOST_USES = 256


def benchmark_kernel(
    kernel: Candidate, args: Sequence[Array] | None = None, config: BenchmarkConfig | None = None
) -> Timing:
    """How long a kernel takes on some inputs (noise of the node's specs by default)."""
    return benchmark_round_robin([kernel], args, config)[0]


def benchmark_round_robin(
    kernels: Sequence[Candidate], args: Sequence[Array] | None = None, config: BenchmarkConfig | None = None
) -> list[Timing]:
    """How long each takes on the same inputs, a sample of each in turn. BackendError for one that does not compile."""
    config = config or BenchmarkConfig()
    if not kernels:
        return []
    args = inputs_for(kernels[0].op, kernels[0].node) if args is None else args
    threads = thread_count(config.threads)
    with ExitStack() as stack:
        evict = stack.enter_context(evictor(threads)).run if config.cold else None
        benches = [_Bench(stack, kernel, args, threads, config, evict) for kernel in kernels]
        return measure(benches, config)


class _Bench:
    """One candidate, ready to be sampled."""

    def __init__(
        self,
        stack: ExitStack,
        kernel: Candidate,
        args: Sequence[Array],
        threads: int,
        config: BenchmarkConfig,
        evict: Callable[[], None] | None,
    ) -> None:
        self._evict = evict
        once = stack.enter_context(plan_of(kernel, args, 1, threads))
        self._run = once.bound.run
        self.uses = 1
        self._run()  # starts the pool's threads, and maps pages
        self.first_ns = self.sample()
        uses = 1 if evict else min(MOST_USES, ceil(config.sample_ns / max(self.first_ns, 1.0)))
        if uses > 1:
            once.close()
            self._run = stack.enter_context(plan_of(kernel, args, uses, threads)).bound.run
            self.uses = uses

    def sample(self) -> float:
        """Nanoseconds of one use."""
        if self._evict is not None:
            self._evict()
        started = time.perf_counter_ns()
        self._run()
        return (time.perf_counter_ns() - started) / self.uses
