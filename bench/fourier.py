"""rfft of one row of f32, as a plan and as an array call, beside SciPy's (pocketfft) on one thread; interleaved, medians.

python -m bench.fourier [--json FILE] [LENGTH ...]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import scipy.fft

import camshaft as cs
from bench.rows import table, write

# Powers of two, and primes.
LENGTHS = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1009, 10007, 65537, 1000003)
ROUNDS, WINDOW_S = 15, 0.02


def calls_of(n: int) -> dict[str, Callable[[], object]]:
    """The calls by their names. AssertionError if they disagree."""
    x = np.random.default_rng(0).normal(size=n).astype(np.float32)
    graph = cs.Graph()
    graph.output("y", cs.rfft(graph.input("x", (n,), "f32")))
    plan, ours = cs.compile(graph, threads=1), cs.table().rfft
    wanted = scipy.fft.rfft(x.astype(np.float64))
    for found in (plan.run(x=x)["y"], ours(x)):
        assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()
    return {"plan": lambda: plan.run(x=x), "array call": lambda: ours(x), "SciPy": lambda: scipy.fft.rfft(x)}


def medians(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds per call: medians of rounds, in each of which every call has a window."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            count, started = 0, time.perf_counter()
            while time.perf_counter() - started < WINDOW_S:
                call()
                count += 1
            found[name].append((time.perf_counter() - started) / count)
    return {name: median(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("lengths", type=int, nargs="*", default=LENGTHS)
    given = parser.parse_args()
    rows, lines = [], []
    for n in given.lengths:
        seconds = medians(calls_of(n))
        rows.append(
            {"op": "rfft", "n": n, "dtype": "f32", "threads": 1, "seconds": seconds, "scipy": scipy.__version__}
        )
        ratio = seconds["SciPy"] / min(seconds["plan"], seconds["array call"])
        lines.append((n, *(f"{1e6 * s:.1f}" for s in seconds.values()), f"{ratio:.2f}"))
        print(lines[-1], flush=True)
    print(table(("n", *(f"{name}, us" for name in seconds), "SciPy / the faster"), lines))
    write(given.json, rows)


if __name__ == "__main__":
    main()
