"""Benchmark conv2d on the shapes of ResNet-50, batch 1, f32, beside torch's conv2d in interleaved rounds; with GFLOP/s.

Run: python -m bench.ops.convolution [--threads 1 2] [--peer-python PYTHON] [--processor-time] [--json FILE]. The peer's Python
needs torch; without --peer-python camshaft runs alone. The peer is a process that blocks on a pipe in between
(bench/ops/convolution_peer.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from bench import rows
from bench.compare.process import LinePeer
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph
from camshaft.plan.compile import compile
from camshaft.plan.execution_plan import ExecutionPlan


@dataclass(frozen=True)
class Case:
    """A convolution of one image [channels, size, size] to `kernels` channels by windows of `window`."""

    channels: int
    size: int
    kernels: int
    window: int
    stride: int = 1

    @property
    def label(self) -> str:
        step = f" step {self.stride}" if self.stride > 1 else ""
        return f"{self.channels} x {self.size}^2 to {self.kernels} by {self.window}^2{step}"

    @property
    def arguments(self) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
        """Shapes of x and w, stride, padding."""
        x, w = (1, self.channels, self.size, self.size), (self.kernels, self.channels, self.window, self.window)
        return x, w, self.stride, self.window // 2

    @property
    def flops(self) -> float:
        """Operations: two for each product."""
        return 2.0 * prod(self.arguments[1]) * (-(-self.size // self.stride)) ** 2


CASES = (
    Case(3, 224, 64, 7, 2),
    Case(64, 56, 64, 1),
    Case(64, 56, 64, 3),
    Case(64, 56, 256, 1),
    Case(256, 56, 64, 1),
    Case(128, 56, 128, 3, 2),
    Case(128, 28, 128, 3),
    Case(128, 28, 512, 1),
    Case(512, 28, 1024, 1, 2),
    Case(256, 14, 256, 3),
    Case(512, 14, 512, 3, 2),
    Case(1024, 14, 256, 1),
    Case(512, 7, 512, 3),
    Case(512, 7, 2048, 1),
)


def plan_of(case: Case, threads: int) -> ExecutionPlan:
    """The plan of a case, with weights that are constants."""
    x_shape, w_shape, stride, padding = case.arguments
    graph, rng = Graph(), np.random.default_rng(0)
    w = graph.constant("w", rng.standard_normal(w_shape, np.float32))
    graph.output("y", F.conv2d(graph.input("x", x_shape, "f32"), w, stride=stride, padding=padding))
    plan = compile(graph, threads=threads)
    plan.run(x=rng.standard_normal(x_shape, np.float32))
    return plan


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every case, as it is done."""
    for threads in options.threads:
        command = options.peer_python, Path(__file__).with_name("convolution_peer.py"), str(threads)
        peer = LinePeer(*command) if options.peer_python else None
        for case in CASES:
            ours, theirs = [], []
            with plan_of(case, threads) as plan:
                for _ in range(options.repeat):
                    if peer is not None:
                        theirs.append(float(peer.ask(json.dumps([*case.arguments, options.calls]))["s"]))
                    ours.append(rows.in_rounds({"": plan.bound.run}, 1)[""].median)
            spent = {"camshaft": rows.Spread.of(ours)} | ({"torch": rows.Spread.of(theirs)} if peer else {})
            yield _row(case, threads, spent, peer.version if peer else None)
        if peer is not None:
            peer.close()


def _row(case: Case, threads: int, spent: dict[str, rows.Spread], peer: str | None) -> dict[str, Any]:
    """A case as a JSON row."""
    what = {"bench": "convolution", "op": "conv2d", "use": case.label, "threads": threads, "peer": peer}
    rates = {name: float(f"{case.flops / s.median / 1e9:.4g}") for name, s in spent.items()}
    return rows.compared(what, spent) | {"GFLOP/s": rates}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--calls", type=int, default=5, help="calls of the peer a turn")
    parser.add_argument("--peer-python", help="a Python that has torch")
    parser.add_argument("--json", type=Path)
    rows.add_processor_time(parser)
    options = rows.with_clock(parser, parser.parse_args())
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    made = list(run(options))
    header = ("threads", "what", "us", "GFLOP/s", "torch, GFLOP/s", "times torch", "by the least")
    lines = [
        (
            r["threads"], r["use"], f"{r['ns']['camshaft']['median'] / 1000:.4g}", r["GFLOP/s"]["camshaft"],
            *(r[kind].get("torch", "") for kind in ("GFLOP/s", "times", "times_least")),
        )
        for r in made
    ]  # fmt: skip
    print(rows.table(header, lines))
    rows.write(options.json, made)


if __name__ == "__main__":
    main()
