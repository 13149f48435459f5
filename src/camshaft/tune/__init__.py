"""Benchmark kernels on this machine and search their tunable parameters. Names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from camshaft.tune.benchmark import Candidate, benchmark_kernel, benchmark_round_robin
    from camshaft.tune.graphs import Use, tune_uses, uses_of
    from camshaft.tune.nodes import Tuned, tune_node
    from camshaft.tune.rounds import BenchmarkConfig, Timing
    from camshaft.tune.search import beam_search

_HOME = {
    "BenchmarkConfig": "rounds",
    "Candidate": "benchmark",
    "Timing": "rounds",
    "Tuned": "nodes",
    "Use": "graphs",
    "beam_search": "search",
    "benchmark_kernel": "benchmark",
    "benchmark_round_robin": "benchmark",
    "tune_node": "nodes",
    "tune_uses": "graphs",
    "uses_of": "graphs",
}
__all__ = [
    "BenchmarkConfig",
    "Candidate",
    "Timing",
    "Tuned",
    "Use",
    "beam_search",
    "benchmark_kernel",
    "benchmark_round_robin",
    "tune_node",
    "tune_uses",
    "uses_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"camshaft.tune has no {name!r}")
    value = getattr(import_module(f"camshaft.tune.{_HOME[name]}"), name)
    globals()[name] = value
    return value
