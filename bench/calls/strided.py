"""Eager calls of arrays that are not contiguous beside NumPy's, in interleaved rounds.

    python -m bench.calls.strided [--shapes 100x80 400x250 1000x1000] [--rounds 41] [--threads 2] [--json FILE]

Reported are medians of microseconds. The first call compiles and does not count.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from bench.ops.sorts import Call, measured

SHAPES = ("100x80", "400x250", "1000x1000")


def calls() -> dict[str, dict[str, Call]]:
    """Library -> call on an array [rows, columns], for each row."""
    import numpy as np

    from camshaft import table

    def of(call: Any) -> dict[str, Call]:
        return {"camshaft": lambda x: call(table(), x), "NumPy": lambda x: call(np, x)}

    def half(x: Any) -> Any:
        return x[:, : x.shape[1] // 2]

    rows: dict[str, Any] = {
        "add of transposed": lambda t, x: t.add(x.T, x.T),
        "add of halves of rows": lambda t, x: t.add(half(x), half(x)),
        "multiply of rows backwards": lambda t, x: t.multiply(x[::-1], x),
        "add of each second row": lambda t, x: t.add(x[::2], x[1::2]),
        "add of each second column": lambda t, x: t.add(x[:, ::2], x[:, 1::2]),
        "exp of transposed": lambda t, x: t.exp(x.T),
        "sum of rows of transposed": lambda t, x: t.sum(x.T, axis=-1),
        "sum of columns of transposed": lambda t, x: t.sum(x.T, axis=0),
        "sum of transposed": lambda t, x: t.sum(x.T, axis=None),
        "sum of rows of halves": lambda t, x: t.sum(half(x), axis=-1),
        "sum of columns of halves": lambda t, x: t.sum(half(x), axis=0),
        "max of rows of transposed": lambda t, x: t.max(x.T, axis=-1),
        "argmax of rows of transposed": lambda t, x: t.argmax(x.T, axis=-1),
        "matmul of transposed": lambda t, x: t.matmul(x.T, x[:, ::-1]),
    }
    return {name: of(call) for name, call in rows.items()}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="ROWSxCOLUMNS")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["CAMSHAFT_THREADS"] = str(options.threads)
    import numpy as np

    results = []
    for shape in options.shapes:
        x = np.random.default_rng(0).normal(size=tuple(map(int, shape.split("x")))).astype(np.float32)
        for name, row in calls().items():
            found = measured(row, x, options.rounds)
            results.append({"row": name, "shape": shape, "threads": options.threads, "microseconds": found})
            ratio = found["camshaft"] / found["NumPy"]
            print(
                f"{name} of {shape}: {found['camshaft']:.1f} us, NumPy {found['NumPy']:.1f}; {ratio:.2f} times",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
