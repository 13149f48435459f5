"""Softmax, norms and chains of elementwise ops at many sizes, against ONNX Runtime, torch and NumPy, in interleaved rounds.

Run: python -m bench.ops.elementwise [--shapes 1024x4096 64x256] [--only softmax] [--threads 1 2] [--peer-python PYTHON]
[--peers onnxruntime torch] [--json FILE]. `python -m bench.compare` makes its rows of 1024 x 4096 the same way
(array_rows.py). Each peer runs in its own process. Shares of peak count each array as read or written once.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.compare.compare import run_suite
from bench.compare.interleaved import Limits, starter
from bench.compare.model_files import quietly
from bench.compare.report import markdown_of
from bench.compare.results import Results
from bench.compare.suites.array_rows import COMPILED, NUMPY, ONNX, TORCH, array_peers, passes
from bench.compare.suites.suite import Suite

# 64 KiB to 64 MiB of each operand; the issue's own, and a small model's rows
SHAPES = ("64x256", "256x1024", "512x576", "1024x4096", "4096x1024", "4096x4096")


def shape_of(text: str) -> tuple[int, int]:
    """'1024x4096' as two numbers."""
    rows, _, columns = text.partition("x")
    return int(rows), int(columns)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, type=shape_of, metavar="ROWSxCOLUMNS")
    parser.add_argument("--only", default="", help="only rows whose names contain this")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peers", nargs="*", default=[ONNX, TORCH, COMPILED, NUMPY], metavar="PEER")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has torch and onnxruntime")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds of rest before each turn")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json)
    shapes = [shape_of(s) if isinstance(s, str) else s for s in options.shapes]
    for threads in options.threads:
        tasks = tuple(task for shape in shapes for task in passes(*shape) if options.only in task.name)
        if not tasks:
            parser.error(f"no row is named {options.only!r}")
        suite = Suite("elementwise", threads, array_peers(threads, *options.peers), tasks, pause_s=options.pause)
        run_suite(suite, Limits(options.repeat), results, starter(options.peer_python), quietly)
    print(markdown_of(results.document()), end="")


if __name__ == "__main__":
    main()
