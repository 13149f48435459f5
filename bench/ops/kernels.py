"""Benchmark each op of a language model at the model's shapes: time, GB/s, GFLOP/s and share of peak.

Run: python -m bench.ops.kernels [MODEL] [--threads 1 2] [--tokens 1 512] [--only WORD] [--json FILE]. A case is a plan with at
least one use of the op per layer, each on its own weights or cache; the time is that of one use. For one token there are so
many uses that weights and caches are read from memory, as in the model. Operands in a processor cache may exceed 100 % of the
memory peak.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

from bench import rows
from bench.machine import peak
from bench.ops.kernel_cases import CASES, CONTEXT, Case, Model, matmul
from camshaft.formats.gguf.file import open_gguf
from camshaft.graph.graph import Graph
from camshaft.graph.node import Node
from camshaft.graph.passes.rewrite import prepare
from camshaft.models.config import read_config
from camshaft.models.families import family_name
from camshaft.models.files.pull import resolve_model
from camshaft.ops.op import NodeSpec, Op
from camshaft.plan.compile import compile
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.selection.host_info import capabilities
from camshaft.text.tokenizer import Tokenizer

COLD, ASSUMED_CACHE_NBYTES = 3, 32 << 20
HEAD = "output"


def names_of(case: Case) -> tuple[str, ...]:
    """What the op may be: a product by weights of a plain dtype, as in F16 files, is a matmul."""
    return ("quantized_matmul", "matmul") if case.op == "quantized_matmul" else (case.op,)


def uses_of(case: Case, graph: Graph) -> list[Node]:
    """The nodes that are timed."""
    return [node for node in prepare(graph, "q8").nodes if node.op.name in names_of(case)]


def n_uses(model: Model, case: Case, tokens: int) -> int:
    """A use per layer; for one token as many as need COLD times the last cache in weights or cached keys and values."""
    if not case.streams or tokens > 1:
        return model.config.n_layers if case.label != HEAD else 1
    graph = Graph()
    case.build(model, graph, tokens, 1)
    (node,) = uses_of(case, graph)
    last_cache = max(size or 0 for size in capabilities().cache_nbytes.values()) or ASSUMED_CACHE_NBYTES
    return max(model.config.n_layers if case.label != HEAD else 1, ceil(COLD * last_cache / node.op.nbytes(node.spec)))


def measured(
    model: Model, case: Case, tokens: int, threads: int, repeats: int
) -> tuple[rows.Spread, ExecutionPlan, Op, NodeSpec]:
    """Seconds of one use of the op; the plan, closed; the op and one node's spec."""
    graph = Graph()
    given = case.build(model, graph, tokens, n_uses(model, case, tokens))
    nodes = uses_of(case, graph)
    with compile(graph, activations="q8", threads=threads, memory=given.pop("memory", None)) as plan:
        plan.run(**given)
        places = [i for i, thunk in enumerate(plan.bound.schedule.thunks) if thunk.op in names_of(case)]
        first, last = places[0], places[-1] + 1
        spent = rows.seconds_per_call(lambda: plan.bound.run(first, last), repeats)
        return spent.map(lambda s: s / len(nodes)), plan, nodes[0].op, nodes[0].spec


def row(model: Model, case: Case, tokens: int, top: peak.MachinePeak, repeats: int) -> dict[str, Any]:
    """One case as a JSON row."""
    spent, plan, op, spec = measured(model, case, tokens, top.threads, repeats)
    flops, nbytes = op.flops(spec), op.nbytes(spec)
    ints = flops if op.name == "quantized_matmul" else 0.0
    chosen = next(t for t in plan.bound.schedule.thunks if t.op == op.name)
    return {
        "bench": "kernels",
        "op": op.name,
        "use": case.label,
        "variant": chosen.variant,
        "shape": [str(s) for s in spec.inputs],
        "tokens": tokens,
        "backend": "simd",
        "threads": top.threads,
        "ns": spent.map(lambda s: s * 1e9).rounded(),
        "GB/s": float(f"{nbytes / spent.median / 1e9:.4g}"),
        "GFLOP/s": float(f"{flops / spent.median / 1e9:.4g}"),
        "peak_share": round(top.least_s(nbytes, {"int8": ints, "f32": flops - ints}) / spent.median, 3),
    }


def run(options: argparse.Namespace, model: Model) -> Iterator[dict[str, Any]]:
    """Every case, as it is done."""
    name = "output" if "output.weight" in model.file.tensors else "token_embd"
    head = Case("quantized_matmul", HEAD, matmul(name, lambda c: c.dim, lambda c: c.vocab_size), True)
    for threads in options.threads:
        top = peak.measure(threads)
        for tokens in options.tokens:
            for case in (*CASES, head):
                single = case.op in ("argmax", "sample") or case is head
                if options.only in f"{case.op} {case.label}" and not (single and tokens > 1):
                    yield row(model, case, tokens, top, options.repeat)


def line(r: dict[str, Any]) -> tuple[object, ...]:
    """A row for the table."""
    us = r["ns"]["median"] / 1000
    name = f"{r['op']} {r['use']}".strip()
    return r["threads"], r["tokens"], name, r["variant"], f"{us:.4g}", r["GB/s"], r["GFLOP/s"], f"{r['peak_share']:.0%}"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="a name or the path of a .gguf")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 512], help=f"at most {CONTEXT}")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="only ops and uses whose names contain this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.repeat < 1 or not all(1 <= tokens <= CONTEXT for tokens in options.tokens):
        parser.error(f"wanted at least 1 repeat and 1 to {CONTEXT} tokens")
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    with open_gguf(resolve_model(options.model)) as file:
        n_vocab = Tokenizer.from_gguf(file.metadata).n_vocab
        model = Model(file, read_config(file.metadata, family_name(file.metadata), n_vocab))
        made = list(run(options, model))
    header = ("threads", "tokens", "op", "variant", "microseconds", "GB/s", "GFLOP/s", "of peak")
    print(rows.table(header, [line(r) for r in made]))
    rows.write(options.json, made)


if __name__ == "__main__":
    main()
