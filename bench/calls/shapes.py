"""The cost of eager calls whose shapes were never seen, against NumPy, interleaved.

    python -m bench.calls.shapes [--shapes 200] [--rounds 5] [--most 512] [--threads 1] [--json FILE]

Each round draws new random shapes, from 1 to `most` rows and columns, and calls every op once on each: NumPy, then camshaft. A
result is the total over the shapes of a round; `again` calls the same shapes once more, which camshaft then knows. The first
round, which may compile, is given apart, with the kernels that it compiled or loaded. Reported are minima over the other rounds,
and the median call of a new shape, which a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

Call = Callable[..., object]


def softmax(x: Any) -> Any:
    """NumPy's softmax of rows."""
    import numpy as np

    powers = np.exp(x - x.max(-1, keepdims=True))
    powers /= powers.sum(-1, keepdims=True)
    return powers


def rms_norm(x: Any, row: Any) -> Any:
    """NumPy's rms_norm of rows."""
    import numpy as np

    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * row


def calls() -> dict[str, tuple[Call, Call]]:
    """NumPy's and camshaft's call of each case, on a matrix, one of its rows and one of its columns."""
    import numpy as np

    from camshaft import table

    t = table()
    return {
        "softmax": (lambda x, row, column: softmax(x), lambda x, row, column: t.softmax(x)),
        "rms_norm": (lambda x, row, column: rms_norm(x, row), lambda x, row, column: t.rms_norm(x, row, eps=1e-5)),
        "sum over columns": (lambda x, row, column: x.sum(1), lambda x, row, column: t.sum(x, axis=1)),
        "sum over rows": (lambda x, row, column: x.sum(0), lambda x, row, column: t.sum(x, axis=0)),
        "add of a row": (lambda x, row, column: np.add(x, row), lambda x, row, column: t.add(x, row)),
        "product with a column": (
            lambda x, row, column: np.multiply(x, column),
            lambda x, row, column: t.multiply(x, column),
        ),
        "transpose": (lambda x, row, column: np.ascontiguousarray(x.T), lambda x, row, column: t.transpose(x)),
        "mean of views": (lambda x, row, column: x[::2].mean(1), lambda x, row, column: t.mean(x[::2], axis=1)),
        "matmul": (lambda x, row, column: np.matmul(x, x.T), lambda x, row, column: t.matmul(x, x.T)),
        "concat": (
            lambda x, row, column: np.concatenate((x, column), 1),
            lambda x, row, column: t.concat(x, column, axis=1),
        ),
    }


def one_round(
    pair: tuple[Call, Call], n_shapes: int, most: int, rng: Any
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Microseconds for each shape by side: at first, and again."""
    import numpy as np

    inputs = []
    for _ in range(n_shapes):
        rows, columns = (int(rng.integers(1, most + 1)) for _ in range(2))
        x = rng.random((rows, columns), np.float32)
        inputs.append((x, x[0].copy(), x[:, :1].copy()))
    turns = []
    for _ in range(2):
        spent: dict[str, list[float]] = {"numpy": [], "camshaft": []}
        for given in inputs:
            for side, call in zip(spent, pair, strict=True):
                started = time.perf_counter_ns()
                call(*given)
                spent[side].append((time.perf_counter_ns() - started) / 1000)
        turns.append(spent)
    return turns[0], turns[1]


def measure(name: str, pair: tuple[Call, Call], n_shapes: int, rounds: int, most: int) -> dict[str, Any]:
    """A row: the first round, then the least of the others."""
    import numpy as np

    from camshaft.backends.cpu.device import counts

    rng = np.random.default_rng(11)
    x = np.ones((3, 5), np.float32)
    for call in pair:
        call(x, x[0].copy(), x[:, :1].copy())
    before = counts.compiled + counts.loaded
    first, _ = one_round(pair, n_shapes, most, rng)
    kernels = counts.compiled + counts.loaded - before
    later = [one_round(pair, n_shapes, most, rng) for _ in range(rounds)]
    least = [{side: min(sum(turn[i][side]) for turn in later) for side in first} for i in range(2)]
    middle = {side: median([us for turn in later for us in turn[0][side]]) for side in first}
    return {
        "bench": "shapes",
        "case": name,
        "shapes": n_shapes,
        "kernels": kernels,
        "first_round_us": {side: round(sum(us)) for side, us in first.items()},
        "new_us": {side: round(us) for side, us in least[0].items()},
        "again_us": {side: round(us) for side, us in least[1].items()},
        "median_new_us": {side: round(us, 1) for side, us in middle.items()},
    }


def line(row: dict[str, Any]) -> tuple[object, ...]:
    """A row for the table."""
    pairs = [row[key] for key in ("first_round_us", "new_us", "again_us", "median_new_us")]
    return row["case"], row["kernels"], *(us for pair in pairs for us in (pair["camshaft"], pair["numpy"]))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=int, default=512, help="rows and columns at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    for name in ("CAMSHAFT_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(options.threads)
    from bench import rows  # NumPy, which reads the settings above when it is imported

    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    made = [measure(name, pair, options.shapes, options.rounds, options.most) for name, pair in calls().items()]
    header = (
        "case",
        "kernels",
        "first round us",
        "numpy",
        "new shapes us",
        "numpy",
        "again us",
        "numpy",
        "median new us",
        "numpy",
    )
    print(rows.table(header, [line(row) for row in made]))
    rows.write(options.json, made)


if __name__ == "__main__":
    main()
