"""Benchmark attention: causal SDPA against PyTorch and ONNX Runtime, one token over long caches, prompts; with shares of peak.

Run: python -m bench.ops.attention [--threads 1 2] [--peer-python PYTHON] [--only WORD] [--json FILE]. The peers' Python needs
torch, onnxruntime and onnx; without --peer-python camshaft runs alone. SDPA runs in interleaved rounds; each peer is a process
that blocks on a pipe in between (bench/ops/attention_peer.py). A case is a plan with many uses of attention, each with its own
cache: for one token so many that caches are read from memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from bench import rows
from bench.compare.process import LinePeer
from bench.machine import peak
from bench.ops.attention_cases import CASES, SDPA, Case
from camshaft.generate.memory.cache_specs import KINDS
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.generate.options import KV_CACHES
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph
from camshaft.plan.compile import compile
from camshaft.plan.execution_plan import ExecutionPlan

COLD_NBYTES = 200 << 20  # caches of one token in all: many times the last cache of most machines
PEERS = ("torch", "onnxruntime")


def uses_of(case: Case) -> int:
    """One of a prompt; of one token as many as need COLD_NBYTES."""
    return 2 if case.tokens > 1 else max(2, ceil(COLD_NBYTES / (case.key_nbytes * case.seen)))


def noise(memory: dict[str, Any]) -> None:
    """Ordinary numbers into a cache: a few kilobytes of them, repeated."""
    rng = np.random.default_rng(0)
    for name, array in memory.items():
        if name.endswith("table"):
            continue
        if array.dtype.kind in "iu":
            array.reshape(-1)[:] = np.resize(rng.integers(0, 127, 4096).astype(array.dtype), array.size)
        else:
            factor = 0.01 if "scales" in name else 1.0
            values = (factor * rng.standard_normal(4096)).astype(np.float32).astype(array.dtype)
            array.reshape(-1)[:] = np.resize(values.view(np.uint8), array.nbytes).view(array.dtype)


def attention_plan(case: Case, threads: int, uses: int) -> ExecutionPlan:
    """`uses` of a case, each over its own cache. Inputs q, positions and, where it writes, k, v [tokens, heads * size]."""
    heads, graph = replace(case.heads, n_layers=uses), Graph()
    cache = KVCache(heads, case.keys, KV_CACHES[case.form], 1, run_tokens=512)  # type: ignore[arg-type]
    cache.reserve(cache.open_slot(), case.keys)
    noise(cache.states)
    which = "block_table" if cache.ring is None else "ring_table"
    table = graph.state(which, cache.specs[which])
    places = [graph.input(name, (case.tokens,), "i32") for name in ("positions", "slots")] + [table]
    counts = {"q": heads.n_heads} | ({"k": heads.n_kv_heads, "v": heads.n_kv_heads} if case.writes else {})
    x = {name: graph.input(name, (case.tokens, n * heads.head_dim), "f32") for name, n in counts.items()}
    sizes = {"kv_heads": heads.n_kv_heads, "head_dim": heads.head_dim}
    for use in range(uses):
        names = [f"{kind}.{use}" for kind in KINDS if f"{kind}.{use}" in cache.specs]
        keys, values, *scales = (graph.state(name, cache.specs[name]) for name in names)
        if case.writes:
            F.kv_cache_update(keys, values, x["k"], x["v"], *places, **sizes)
        attrs = sizes | {"heads": heads.n_heads, "scale": heads.head_dim**-0.5, "length": case.keys}
        attrs |= {"window": heads.window} if heads.window else {}
        graph.output(f"y{use}", F.attention(x["q"], keys, values, *places, *scales, **attrs))
    memory = {name: array for name, array in cache.states.items() if name == which or not name.endswith("table")}
    plan = compile(graph, threads=threads, memory=memory)
    given = {name: np.random.default_rng(0).standard_normal(t.spec.bounds, np.float32) for name, t in x.items()}
    positions = np.arange(case.keys - case.tokens, case.keys, dtype=np.int32)
    plan.run(**given, positions=positions, slots=np.zeros_like(positions))
    return plan


def sdpa(threads: int) -> ExecutionPlan:
    """The plan of SDPA: what `plan.bound.run()` takes is its time. Inputs q, k, v f32 [1024, 8 * 64], output y0."""
    return attention_plan(SDPA, threads, 1)


def beside_peers(options: argparse.Namespace, top: peak.MachinePeak) -> list[dict[str, Any]]:
    """Measure SDPA of camshaft and the peers in interleaved rounds: a row for each."""
    names, program = PEERS if options.peer_python else (), Path(__file__).with_name("attention_peer.py")
    peers = [LinePeer(options.peer_python, program, name, str(top.threads)) for name in names]
    with sdpa(top.threads) as plan:
        ours: list[float] = []
        theirs: dict[str, list[float]] = {peer.version: [] for peer in peers}
        for _ in range(options.repeat):
            for peer in peers:
                theirs[peer.version].append(float(peer.ask(str(options.calls))["s"]))
            ours.append(rows.seconds_per_call(plan.bound.run, 1, 0.1).median)
    for peer in peers:
        peer.close()
    spreads = {name: rows.Spread.of(found) for name, found in theirs.items()}
    best = min((spread.median for spread in spreads.values()), default=None)
    made = [row(SDPA, spread, top) | {"backend": name} for name, spread in spreads.items()]
    mine = row(SDPA, rows.Spread.of(ours), top)
    return [*made, mine | ({} if best is None else {"ratio": round(best / rows.Spread.of(ours).median, 3)})]


def row(case: Case, spent: rows.Spread, top: peak.MachinePeak) -> dict[str, Any]:
    """A row with its share of peak: reading keys and values once, and arithmetic in f32."""
    nbytes = case.key_nbytes * case.seen
    return {
        "bench": "attention",
        "op": "attention",
        "use": case.label,
        "form": case.form,
        "tokens": case.tokens,
        "keys": case.keys,
        "backend": "simd",
        "threads": top.threads,
        "ns": spent.map(lambda s: s * 1e9).rounded(),
        "GB/s": float(f"{nbytes / spent.median / 1e9:.4g}"),
        "GFLOP/s": float(f"{case.flops / spent.median / 1e9:.4g}"),
        "peak_share": round(top.least_s(nbytes, {"f32": case.flops}) / spent.median, 3),
    }


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every case, as it is done."""
    for threads in options.threads:
        top = peak.measure(threads)
        for case in (case for case in CASES if options.only in f"{case.label} {case.form}"):
            if case.writes:
                yield from beside_peers(options, top)
                continue
            uses = uses_of(case)
            with attention_plan(case, threads, uses) as plan:
                spent = rows.seconds_per_call(plan.bound.run, options.repeat)
            yield row(case, spent.map(lambda s, uses=uses: s / uses), top)


def report(made: Sequence[dict[str, Any]]) -> str:
    """The rows as a table."""
    header = (
        "threads",
        "what",
        "cache",
        "by",
        "microseconds: median (min to max)",
        "GB/s",
        "GFLOP/s",
        "of peak",
        "times the best peer",
    )
    lines = []
    for r in made:
        spent = {name: f"{ns / 1000:.4g}" for name, ns in r["ns"].items()}
        time = f"{spent['median']} ({spent['min']} to {spent['max']})"
        known = (r["GB/s"], r["GFLOP/s"], f"{r['peak_share']:.0%}", r.get("ratio", ""))
        lines.append((r["threads"], r["use"], r["form"], r["backend"], time, *known))
    return rows.table(header, lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--calls", type=int, default=5, help="calls of a peer a turn")
    parser.add_argument("--only", default="", help="only cases whose label contains this")
    parser.add_argument("--peer-python", help="a Python that has torch, onnxruntime and onnx")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    made = list(run(options))
    print(report(made))
    rows.write(options.json, made)


if __name__ == "__main__":
    main()
