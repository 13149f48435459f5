"""Matrix products on one thread as shares of the peak and beside torch: the peak, torch and camshaft in turn in one process.

Run: python -m bench.products.peak_share [--sizes 1024 2048 4096] [--dtype bf16] [--repeat 40] [--json FILE]. Needs torch. Other
guests of a virtual machine slow matrix units down by a factor of three within seconds: only rounds whose peak is at least
QUIET of the best one count, and ratios are medians of those within a round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench import rows
from bench.compare.peers.ours.arrays import Camshaft
from bench.compare.peers.torch_arrays import Torch
from bench.compare.suites.array_rows import product
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph
from camshaft.observe.peak_kernels import Unit, measure_unit, units_here
from camshaft.plan.compile import compile as compile_graph

QUIET, PEAK, TORCH, OURS = 0.9, "peak", "torch", "camshaft"


def calls_of(size: int, dtype: str) -> dict[str, Callable[[], object]]:
    """The product by torch, by camshaft, and for bf16 by camshaft with a result of f32."""
    order = dict(product(dtype, size, size, size).order)
    calls = {TORCH: Torch(1).call(order), OURS: Camshaft(1).call(order)}
    if dtype != "f32":
        calls[f"{OURS}, f32 result"] = planned(size, dtype)
    return calls


def planned(size: int, dtype: str) -> Callable[[], object]:
    """The product with a result of f32, as a plan whose inputs are filled."""
    graph, rng = Graph(), np.random.default_rng(0)
    a, b = (graph.input(name, (size, size), dtype) for name in "ab")
    graph.output("y", F.function("matmul")(a, b))
    plan = compile_graph(graph, threads=1)
    given: dict[str, Any] = {name: rng.standard_normal((size, size), np.float32).astype("bfloat16") for name in "ab"}
    plan.run(**given)
    return lambda: plan.run(keep=True, view=True)


def unit_of(dtype: str) -> Unit:
    """The fastest unit for the dtype."""
    return max((unit for unit in units_here() if dtype in unit.kinds), key=lambda unit: measure_unit(unit, 1))


def measured(size: int, dtype: str, repeat: int) -> dict[str, Any]:
    """A row: rates in GFLOP/s in quiet rounds, and the medians of the rounds' shares of the peak and ratios to torch."""
    calls, work, unit = calls_of(size, dtype), 2.0 * size**3 / 1e9, unit_of(dtype)
    rates: dict[str, list[float]] = {name: [] for name in (PEAK, *calls)}
    for call in calls.values():
        call()
    for _ in range(repeat):
        rates[PEAK].append(measure_unit(unit, 1) / 1e9)
        for name, call in calls.items():
            call()
            started = time.thread_time()
            call()
            rates[name].append(work / (time.thread_time() - started))
    return row_of(size, dtype, rates)


def row_of(size: int, dtype: str, rates: Mapping[str, list[float]]) -> dict[str, Any]:
    """A row of the rates of each round."""
    quiet = [i for i, rate in enumerate(rates[PEAK]) if rate >= QUIET * max(rates[PEAK])]

    def over(name: str, other: str) -> float:
        return round(float(np.median([rates[name][i] / rates[other][i] for i in quiet])), 3)

    ours = [name for name in rates if name.startswith(OURS)]
    return {
        "bench": "peak_share",
        "size": size,
        "dtype": dtype,
        "rounds": len(rates[PEAK]),
        "quiet_rounds": len(quiet),
        "gflops": {name: rows.Spread.of([r[i] for i in quiet]).rounded() for name, r in rates.items()},
        "share_of_peak": {name: over(name, PEAK) for name in (TORCH, *ours)},
        "times_torch": {name: over(name, TORCH) for name in ours},
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[1024, 2048, 4096])
    parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    found = [measured(size, options.dtype, options.repeat) for size in options.sizes]
    header = ("size", "quiet rounds", "peak GFLOP/s", *(f"{name} of the peak" for name in found[0]["share_of_peak"]))
    header += tuple(f"{name}, times torch" for name in found[0]["times_torch"])
    lines = [
        (
            r["size"],
            r["quiet_rounds"],
            r["gflops"][PEAK]["median"],
            *r["share_of_peak"].values(),
            *r["times_torch"].values(),
        )
        for r in found
    ]
    print(rows.table(header, [tuple(map(str, line)) for line in lines]))
    rows.write(options.json, found)


if __name__ == "__main__":
    main()
