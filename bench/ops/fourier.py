"""rfft of one row of f32, as a plan and as an array call, beside SciPy's (pocketfft) on one thread; interleaved, medians.

python -m bench.ops.fourier [--processor-time] [--rounds 15] [--json FILE] [LENGTH ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.fft

import camshaft as cs
from bench import rows

# Powers of two, and primes.
LENGTHS = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1009, 10007, 65537, 1000003)
OURS = ("plan", "array call")


def calls_of(n: int) -> dict[str, Callable[[], object]]:
    """The calls by their names. AssertionError if they disagree."""
    x = np.random.default_rng(0).normal(size=n).astype(np.float32)
    graph = cs.Graph()
    graph.output("y", cs.rfft(graph.input("x", (n,), "f32")))
    plan, ours = cs.compile(graph, threads=1), cs.table().rfft
    wanted = scipy.fft.rfft(x.astype(np.float64))
    for found in (plan.run(x=x)["y"], ours(x)):
        assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()
    return {
        OURS[0]: lambda: plan.run(x=x),
        OURS[1]: lambda: ours(x),
        "SciPy": lambda: scipy.fft.rfft(x),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("lengths", type=int, nargs="*", default=LENGTHS)
    rows.add_processor_time(parser)
    given = rows.with_clock(parser, parser.parse_args())
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    made, lines = [], []
    for n in given.lengths:
        spent = rows.in_rounds(calls_of(n), given.rounds)
        what = {
            "bench": "fourier",
            "op": "rfft",
            "use": str(n),
            "dtype": "f32",
            "threads": 1,
            "peer": scipy.__version__,
        }
        faster = min(OURS, key=lambda name: spent[name].median)
        made.append(rows.compared({**what, "by": faster}, spent, faster))
        ratios = (made[-1][kind]["SciPy"] for kind in ("times", "times_least"))
        lines.append((n, *(f"{1e6 * s.median:.1f}" for s in spent.values()), *ratios))
    header = ("n", *(f"{name}, us" for name in spent), "SciPy / the faster", "by the least")
    print(rows.table(header, lines))
    rows.write(given.json, made)


if __name__ == "__main__":
    main()
