"""Sorts, top_k and scans against NumPy and torch, in interleaved rounds.

    python -m bench.ops.sorts [--shapes 1048576 1024x256] [--only sort] [--rounds 15] [--threads 2] [--k 40] [--processor-time]
        [--json FILE]

In every round each library has a window of 20 ms, on the same array; reported are medians. `copy` stands beside cumsum,
whose traffic is the same. torch is measured where it is installed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import rows

Call = Callable[[Any], object]
SHAPES = ("1048576", "49152", "64x4096", "1024x256", "1024x128", "1024x64", "1024x32", "1024x4096")


def calls(k: int) -> dict[str, dict[str, Call]]:
    """Library -> call on a NumPy array, for each row."""
    import numpy as np

    from camshaft import table

    t = table()

    def partitioned(x: Any) -> object:
        return np.argpartition(x, -min(k, x.shape[-1]), -1)

    found: dict[str, dict[str, Call]] = {
        "sort": {"camshaft": t.sort, "NumPy": lambda x: np.sort(x, -1)},
        "argsort": {"camshaft": t.argsort, "NumPy": lambda x: np.argsort(x, -1)},
        "argsort, stable": {"camshaft": t.argsort, "NumPy": lambda x: np.argsort(x, -1, kind="stable")},
        "top_k": {"camshaft": lambda x: t.top_k(x, k=min(k, x.shape[-1])), "NumPy": partitioned},
        "cumsum": {"camshaft": t.cumsum, "NumPy": lambda x: np.cumsum(x, -1), "copy": t.copy},
        "cummax": {"camshaft": t.cummax, "NumPy": lambda x: np.maximum.accumulate(x, -1)},
    }
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(int(os.environ["CAMSHAFT_THREADS"]))
    of_torch: dict[str, Call] = {
        "sort": lambda x: torch.sort(torch.from_numpy(x)),
        "argsort": lambda x: torch.argsort(torch.from_numpy(x)),
        "argsort, stable": lambda x: torch.argsort(torch.from_numpy(x), stable=True),
        "top_k": lambda x: torch.topk(torch.from_numpy(x), min(k, x.shape[-1])),
        "cumsum": lambda x: torch.cumsum(torch.from_numpy(x), -1),
        "cummax": lambda x: torch.cummax(torch.from_numpy(x), -1),
    }
    return {name: {**row, "torch": of_torch[name]} for name, row in found.items()}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="ROWSxCOLUMNS")
    parser.add_argument("--only", default="", help="only rows whose names contain this")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--k", type=int, default=40)
    parser.add_argument("--json", type=Path)
    rows.add_processor_time(parser)
    options = rows.with_clock(parser, parser.parse_args())
    os.environ["CAMSHAFT_THREADS"] = str(options.threads)
    import numpy as np

    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    made = []
    for shape in options.shapes:
        x = np.random.default_rng(0).normal(size=tuple(map(int, shape.split("x")))).astype(np.float32)
        for name, row in calls(options.k).items():
            if options.only not in name:
                continue
            spent = rows.in_rounds({library: partial(call, x) for library, call in row.items()}, options.rounds)
            what = {"bench": "sorts", "op": name, "use": shape, "dtype": "f32", "threads": options.threads}
            made.append(rows.compared(what, spent))
            others = ", ".join(f"{other} {times}" for other, times in made[-1]["times"].items())
            print(
                f"{name} of {shape}: {1e6 * spent['camshaft'].median:.0f} us; times of others / it: {others}",
                flush=True,
            )
    rows.write(options.json, made)


if __name__ == "__main__":
    main()
