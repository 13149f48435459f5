"""Matrix products in f32 and bf16, square, tall and flat, against NumPy, ONNX Runtime and torch, in interleaved rounds.

Run: python -m bench.products.matmul [--shapes 1024x1024x1024 16x4096x4096] [--dtypes f32 bf16] [--threads 1 2] [--peer-python
PYTHON] [--peers NumPy torch onnxruntime] [--json FILE [--resume]]. A shape is m x k x n. `python -m bench.compare` makes its
rows the same way (array_rows.py). Each peer runs in its own process, with a pause before each measurement, since worker threads
spin for a while.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.compare.compare import run_suite
from bench.compare.interleaved import Limits, starter
from bench.compare.model_files import quietly
from bench.compare.report import markdown_of
from bench.compare.results import Results, load
from bench.compare.suites.array_rows import NUMPY, NUMPY_CORE, ONNX, OTHERS, SQUARES, TORCH, array_peers, product
from bench.compare.suites.suite import Suite

# Those of the comparison, and what writes, reads or sums most for what it computes.
SHAPES = (*SQUARES, *OTHERS, (4096, 16, 4096), (4096, 4096, 16), (4096, 4096, 1))
PEERS = {"f32": (NUMPY, NUMPY_CORE, TORCH, ONNX), "bf16": (TORCH,)}


def shape_of(text: str) -> tuple[int, int, int]:
    """'1x4096x4096' as three numbers."""
    m, k, n = (int(part) for part in text.split("x"))
    return m, k, n


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, type=shape_of, metavar="MxKxN")
    parser.add_argument("--dtypes", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peers", nargs="*", metavar="PEER", help="all of a dtype's by default")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has torch and onnxruntime")
    parser.add_argument("--pause", type=float, default=0.15, help="seconds of rest before each turn")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--resume", action="store_true", help="go on with the rows of --json: same machine, same commit"
    )
    options = parser.parse_args()
    if options.resume and options.json is None:
        parser.error("--resume continues the rows of --json FILE; wanted --json too")
    results = load(options.json) if options.resume and options.json.exists() else Results(options.json)
    for threads in options.threads:
        for dtype in options.dtypes:
            peers = [p for p in PEERS[dtype] if options.peers is None or p in options.peers]
            tasks = tuple(product(dtype, *shape) for shape in options.shapes)
            suite = Suite("matmul", threads, array_peers(threads, *peers), tasks, pause_s=options.pause)
            run_suite(suite, Limits(options.repeat), results, starter(options.peer_python), quietly)
    print(markdown_of(results.document()), end="")


if __name__ == "__main__":
    main()
