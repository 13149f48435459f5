"""Benchmark the gated delta rule and Mamba 2 over 4096 tokens against transformers' pure-torch functions.

Run: python -m bench.ops.recurrent [--threads 1 2] [--rounds 5] [--processor-time] --peer-python PYTHON [--json FILE]. The peer's
Python needs torch and transformers. Rounds are interleaved; the peer is a process that blocks on a pipe in between
(bench/ops/recurrent_peer.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from bench import rows
from bench.compare.process import LinePeer
from camshaft.graph.graph import Graph
from camshaft.plan.compile import compile

TOKENS = 4096
# op: its inputs in order, its attributes
CASES: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "gated_delta_rule": (
        dict.fromkeys("qkv", (1, TOKENS, 16, 128)) | dict.fromkeys(("g", "beta"), (1, TOKENS, 16)),
        {"l2_norm": True},
    ),
    "mamba2_ssd": (
        {"x": (1, TOKENS, 16, 64), "dt": (1, TOKENS, 16), "a": (16,)}
        | dict.fromkeys("bc", (1, TOKENS, 1, 128))
        | {"d": (16,)},
        {},
    ),
}


def call_of(name: str, threads: int) -> Callable[[], Any]:
    """A run of a plan with the op alone. Decays g and a are negative, rates beta and dt positive."""
    shapes, attrs = CASES[name]
    rng = np.random.default_rng(0)
    given = {key: rng.normal(size=shape) for key, shape in shapes.items()}
    given = {key: -abs(x) if key in ("g", "a") else x for key, x in given.items()}
    arrays = {
        key: (1 / (1 + np.exp(-x)) if key in ("beta", "dt") else x).astype(np.float32) for key, x in given.items()
    }
    graph = Graph()
    made = graph.node(name, *(graph.input(key, a.shape, "f32") for key, a in arrays.items()), **attrs)
    for i, tensor in enumerate(made):
        graph.output(f"y{i}", tensor)
    plan = compile(graph, threads=threads)
    return lambda: plan.run(**arrays)


def seconds(call: Callable[[], Any]) -> float:
    """The time of one call."""
    started = rows.clock()
    call()
    return rows.clock() - started


def compare(name: str, threads: int, rounds: int, python: Path) -> dict[str, Any]:
    """A row of interleaved rounds, which it prints."""
    ours, theirs = [], []
    with closing(LinePeer(python, "-m", "bench.ops.recurrent_peer", name, str(threads))) as peer:
        call = call_of(name, threads)
        call()
        for _ in range(rounds):
            ours.append(seconds(call))
            theirs.append(float(peer.ask("1")["s"]))
    spent = {"camshaft": rows.Spread.of(ours), "transformers": rows.Spread.of(theirs)}
    what = {"bench": "recurrent", "op": name, "use": f"{TOKENS} tokens", "threads": threads, "peer": peer.version}
    row = rows.compared(what, spent)
    ms, times = (f"{1e3 * spent[library].median:.1f} ms" for library in spent), row["times"]["transformers"]
    print(f"{name}, {threads} threads: {' and '.join(ms)} of {peer.version}: {times} times", flush=True)
    return row


def main() -> None:
    """Runs each case on each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-python", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    rows.add_processor_time(parser)
    args = rows.with_clock(parser, parser.parse_args())
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    made = [compare(name, threads, args.rounds, args.peer_python) for threads in args.threads for name in CASES]
    rows.write(args.json, made)


if __name__ == "__main__":
    main()
