"""The cost of a call of the dispatch table, against NumPy and, if installed, ONNX Runtime and torch, interleaved.

    python -m bench.calls.dispatch [--threads 1 2] [--rounds 60] [--json FILE]

Each case runs all peers in short interleaved rounds. The result is the minimum over rounds; `ratio` is NumPy's minimum over
camshaft's (above 1: camshaft is faster). Medians and maxima are stored too, but on a busy machine only minima are reliable.
Each number of threads runs in its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Call = Callable[[], object]
# (elements of an add, ratio wanted on 1 thread, on 2), then (side of a square matmul, ratio wanted)
ADDS = ((16, 1 / 0.35, 1 / 0.35), (1024, 1.0, 1.0), (16384, 1.0, 1.0), (262_144, 1.0, 1.0), (1_048_576, 1.0, 1.5))
SQUARES = (64, 128, 256, 512, 1024, 2048)
ROUND_NS = 300_000
# The second thread of NumPy's BLAS asks for work for about 100 ms after a product and takes a third of two cores meanwhile.
SPIN_S = 0.15


@dataclass(frozen=True)
class Case:
    """Sides by name; each computes the same. `wanted`: the least ratio of NumPy's time to camshaft's, None where none is set.
    `rest_s`: pause before each measurement."""

    name: str
    peers: dict[str, Call]
    wanted: float | None = None
    rest_s: float = 0.0


def add_case(n: int, wanted: float) -> Case:
    """An add of n float32 with an output."""
    import numpy as np

    from camshaft import table

    dispatch_table = table()
    a, b, out = (np.ones(n, np.float32) for _ in range(3))
    peers: dict[str, Call] = {
        "numpy": lambda: np.add(a, b, out=out),
        "camshaft": lambda: dispatch_table.add(a, b, out=out),
    }
    if find_spec("torch"):
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        x, y, z = (torch.from_numpy(v) for v in (a, b, out))
        peers["torch"] = lambda: torch.add(x, y, out=z)
    if find_spec("onnxruntime") and find_spec("onnx"):
        peers["onnxruntime"] = _onnx_add(a, b)
    return Case(f"add {n}", peers, wanted)


def _onnx_add(a: Any, b: Any) -> Call:
    import onnx
    import onnxruntime

    names = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, a.shape) for name in "aby"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["a", "b"], ["y"])], "add", names[:2], names[2:])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return lambda: session.run(None, {"a": a, "b": b})


def others(n: int) -> list[Case]:
    """What else a call may be: a new result, a float, a strided operand, an op that NumPy spells in three."""
    import numpy as np

    from camshaft import table

    dispatch_table = table()
    a, b, out = (np.ones(n, np.float32) for _ in range(3))
    wide = np.ones(2 * n, np.float32)[::2]
    return [
        Case(f"add {n}, new", {"numpy": lambda: np.add(a, b), "camshaft": lambda: dispatch_table.add(a, b)}),
        Case(
            f"add {n}, float",
            {"numpy": lambda: np.add(a, 2.0, out=out), "camshaft": lambda: dispatch_table.add(a, 2.0, out=out)},
        ),
        Case(
            f"add {n}, strided",
            {"numpy": lambda: np.add(a, wide, out=out), "camshaft": lambda: dispatch_table.add(a, wide, out=out)},
        ),
        Case(
            f"add {n}, table()",
            {"numpy": lambda: np.add(a, b, out=out), "camshaft": lambda: table().add(a, b, out=out)},
        ),
    ]


def matmul_case(n: int) -> Case:
    """A product of two n x n float32 matrices with an output."""
    import numpy as np

    from camshaft import table

    dispatch_table = table()
    rng = np.random.default_rng(0)
    a, b, out, ours = (rng.random((n, n), np.float32) for _ in range(4))
    name = dispatch_table.choice("matmul", a, b).variant.name
    dispatch_table.matmul(a, b, out=ours)
    if not np.allclose(ours, np.matmul(a, b, out=out), rtol=1e-4):
        raise RuntimeError(f"matmul {n}: {name} differs from NumPy")
    peers: dict[str, Call] = {
        "numpy": lambda: np.matmul(a, b, out=out),
        "camshaft": lambda: dispatch_table.matmul(a, b, out=ours),
    }
    return Case(f"matmul {n} ({name})", peers, 1.0, 0.0 if os.environ["OMP_NUM_THREADS"] == "1" else SPIN_S)


def times(call: Call, n: int) -> float:
    """Nanoseconds of one of n calls, the loop's own time included."""
    started = time.perf_counter_ns()
    for _ in range(n):
        call()
    return (time.perf_counter_ns() - started) / n


def empty_ns() -> float:
    """What the loop and an empty lambda take: taken off of every figure."""
    return min(times(lambda: None, 2000) for _ in range(50))


def measure(case: Case, rounds: int, off: float) -> dict[str, Any]:
    """Run all peers in interleaved rounds of about ROUND_NS each."""
    from bench import rows

    least = {name: times(call, 1) for name, call in case.peers.items()}
    n = max(1, int(ROUND_NS / max(min(times(call, 3) for call in case.peers.values()), 1)))
    seen: dict[str, list[float]] = {name: [] for name in least}
    for _ in range(max(3, rounds if n > 1 and not case.rest_s else rounds // 4)):
        for name, call in case.peers.items():
            time.sleep(case.rest_s)
            call()
            seen[name].append(max(times(call, n) - off, 0.1))
    spreads = {name: rows.Spread.of(values) for name, values in seen.items()}
    row = {
        "bench": "dispatch",
        "case": case.name,
        "threads": int(os.environ["CAMSHAFT_THREADS"]),
        "ns": {name: spread.rounded() for name, spread in spreads.items()},
        "ratio": round(spreads["numpy"].min / spreads["camshaft"].min, 3),
        "ratio_of_medians": round(spreads["numpy"].median / spreads["camshaft"].median, 3),
    }
    return row if case.wanted is None else {**row, "wanted": round(case.wanted, 2)}


def run_here(rounds: int) -> None:
    """Run every case with the number of threads in the environment; a JSON row each."""
    two = os.environ["CAMSHAFT_THREADS"] != "1"
    off = empty_ns()
    for n, alone, together in ADDS:
        print(json.dumps(measure(add_case(n, together if two else alone), rounds, off)), flush=True)
    for case in others(16):
        print(json.dumps(measure(case, rounds, off)), flush=True)
    for n in SQUARES:
        print(json.dumps(measure(matmul_case(n), rounds, off)), flush=True)


def run_threads(threads: int, rounds: int) -> list[dict[str, Any]]:
    """The rows of a process in which every peer has that many threads."""
    names = "CAMSHAFT_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
    environment = os.environ | dict.fromkeys(names, str(threads))
    command = [sys.executable, __file__, "--here", "--rounds", str(rounds)]
    made = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in made.stdout.splitlines()]


def line(row: dict[str, Any]) -> tuple[object, ...]:
    """A row for the table."""
    ours, theirs = row["ns"]["camshaft"], row["ns"]["numpy"]
    more = ", ".join(f"{name} {ns['min']:.4g}" for name, ns in row["ns"].items() if name not in ("numpy", "camshaft"))
    spread = f"{ours['min']:.4g} {ours['median']:.4g} {ours['max']:.4g}"
    other = f"{theirs['min']:.4g} {theirs['median']:.4g} {theirs['max']:.4g}"
    return (
        row["threads"],
        row["case"],
        spread,
        other,
        row["ratio"],
        row["ratio_of_medians"],
        row.get("wanted", ""),
        more,
    )


def main() -> None:
    """Measures and prints."""
    from bench import rows

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        run_here(options.rounds)
        return
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    made = [row for threads in options.threads for row in run_threads(threads, options.rounds)]
    header = (
        "threads",
        "case",
        "camshaft ns: min med max",
        "numpy ns: min med max",
        "ratio",
        "of medians",
        "wanted",
        "",
    )
    print(rows.table(header, [line(r) for r in made]))
    rows.write(options.json, made)


if __name__ == "__main__":
    main()
