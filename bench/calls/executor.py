"""Nanoseconds per thunk of the executor: 16-element float32 adds on 1 and 2 threads, with and without waits.

Run: python -m bench.calls.executor [--thunks 300] [--repeats 9] [--json FILE]. Prints one JSON row per case.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from bench.compare.peers.ours.executor import add_plan
from camshaft.backends.cpu.compile import host_target
from camshaft.plan.runtime.execute import BoundSchedule
from camshaft.plan.runtime.native.library import native_executor
from camshaft.plan.runtime.workers import available_cores


def ns_per_run(plan: BoundSchedule, least_s: float = 0.02) -> float:
    """Nanoseconds of one run, the mean over at least `least_s`."""
    runs, start = 0, time.perf_counter_ns()
    while (elapsed := time.perf_counter_ns() - start) < least_s * 1e9:
        for _ in range(10):
            plan.run()
        runs += 10
    return elapsed / runs


def row(n_thunks: int, threads: int, dependent: bool, repeats: int) -> dict[str, Any]:
    """One case, measured: median, min and max of the repeats, in ns per thunk, and what an empty run costs."""
    with add_plan(n_thunks, threads, dependent=dependent) as plan:
        times = [ns_per_run(plan) / n_thunks for _ in range(repeats)]
    return {
        "bench": "executor",
        "op": "add",
        "shape": [16],
        "thunks": n_thunks,
        "threads": threads,
        "waits": dependent,
        "ns_per_thunk": round(statistics.median(times), 2),
        "ns_per_thunk_min": round(min(times), 2),
        "ns_per_thunk_max": round(max(times), 2),
        "repeats": repeats,
        "cores": available_cores(),
        "cpu": host_target().cpu,
        "system": platform.system(),
        "sleep": native_executor().row.name,
    }


def main() -> None:
    """Measures every case and prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--thunks", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.thunks < 1 or options.repeats < 1:
        parser.error("wanted at least one thunk and one repeat")
    rows = []
    for threads in (1, 2):
        for dependent in (False, True):
            rows.append(row(options.thunks, threads, dependent, options.repeats))
            print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
