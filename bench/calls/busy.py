"""Short runs of a small plan beside busy processes: mean and p95 per number of threads and of spinning processes.

    python -m bench.calls.busy [--threads 1 2 3 8] [--busy 0 1 2 4 8] [--runs 300] [--rounds 5] [--json bench/results/busy.json]

The plan has 12 layers of norm, product, activation and add of one row, as a token of a tiny model; about 0.3 ms on one thread.
All thread counts are measured in one process, in turn, because other load changes. Wanted: no thread count takes more than 2
times the best mean and 5 times the p95 of that row.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import camshaft as cs
from bench.rows import facts_line, machine, table, write

MEAN_RATIO, P95_RATIO = 2.0, 5.0
LAYERS, DIM = 12, 512
# Ends with the process that started it.
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


@contextmanager
def spinning(n: int) -> Iterator[None]:
    """Runs n processes that spin during the block."""
    burners = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(n)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def make_plan(threads: int) -> Any:
    """The small plan with this many threads, or as many as there are cores."""
    rng = np.random.default_rng(0)
    graph = cs.Graph()
    x = graph.input("x", (1, DIM), "f32")
    for _ in range(LAYERS):
        weight, norm = rng.standard_normal((DIM, DIM), np.float32), np.ones(DIM, np.float32)
        x = cs.add(x, cs.silu(cs.matmul(cs.rms_norm(x, norm, eps=1e-5), weight)))
    graph.output("y", x)
    return cs.compile(graph, threads=threads)


def measure(plans: dict[int, Any], runs: int, rounds: int) -> dict[int, list[float]]:
    """Returns the milliseconds of each run, by thread count."""
    x = np.ones((1, DIM), np.float32)
    times: dict[int, list[float]] = {threads: [] for threads in plans}
    for _ in range(rounds):
        for threads, plan in plans.items():
            for _ in range(runs):
                start = time.perf_counter()
                plan.run(x=x)
                times[threads].append((time.perf_counter() - start) * 1e3)
    return times


def rows_of(busy: int, times: dict[int, list[float]]) -> list[dict[str, Any]]:
    """A row per thread count, with its ratios to the one with the best mean."""
    rows = []
    for threads, each in times.items():
        mean, (p50, p95) = sum(each) / len(each), np.percentile(each, (50, 95)).tolist()
        rows.append(
            {"busy": busy, "threads": threads, "runs": len(each), "mean_ms": mean, "p50_ms": p50, "p95_ms": p95}
        )
    best = min(rows, key=lambda row: row["mean_ms"])
    for row in rows:
        row |= {"mean_ratio": row["mean_ms"] / best["mean_ms"], "p95_ratio": row["p95_ms"] / best["p95_ms"]}
        row["reached"] = row["mean_ratio"] <= MEAN_RATIO and row["p95_ratio"] <= P95_RATIO
    return rows


def main() -> None:
    """Prints a table of all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 3, 8])
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    plans = {threads: make_plan(threads) for threads in options.threads}
    rows: list[dict[str, Any]] = []
    for busy in options.busy:
        with spinning(busy):
            rows += rows_of(busy, measure(plans, options.runs, options.rounds))
    print(facts_line(machine()), "\n")
    lines = [[f"{cell:.2f}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
    print(table(list(rows[0]), lines))
    write(options.json, rows)


if __name__ == "__main__":
    main()
