"""Benchmark each op of a language model at the model's shapes: time, GB/s, GFLOP/s and share of peak.

Run: python -m bench.kernels [MODEL] [--threads 1 2] [--tokens 1 512] [--only WORD] [--json FILE]. A case is a plan with at least
one use of the op per layer, each on its own weights or cache; the time is that of one use. For one token there are so many uses
that weights and caches are read from memory, as in the model. Operands in a processor cache may exceed 100 % of the memory peak.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from bench import peak, rows
from camshaft.dtypes import f16
from camshaft.formats.gguf.file import GGUFFile, open_gguf
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.node import Node
from camshaft.graph.passes.rewrite import prepare
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig, read_config
from camshaft.models.families import family_name
from camshaft.models.files.pull import resolve_model
from camshaft.ops.op import NodeSpec, Op
from camshaft.ops.rope.table import rope_table
from camshaft.plan.compile import compile
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.selection.host_info import capabilities
from camshaft.text.tokenizer import Tokenizer

CONTEXT = 1024
COLD, ASSUMED_CACHE_NBYTES = 3, 32 << 20
HEAD = "output"
SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


@dataclass(frozen=True)
class Model:
    """Where weights and shapes come from."""

    file: GGUFFile
    config: ModelConfig


Builder = Callable[[Model, Graph, int, int], dict[str, Any]]
"""Adds uses of an op to a graph, given the numbers of tokens and of uses; returns the contents of the inputs and states."""


@dataclass(frozen=True)
class Case:
    """`op` is what is timed in the graph that `build` makes; `label` says which use of it; `streams` that it reads weights or
    the cache, which come from memory when there is one token."""

    op: str
    label: str
    build: Builder
    streams: bool = False


def matmul(name: str, columns: Callable[[ModelConfig], int], outputs: Callable[[ModelConfig], int]) -> Builder:
    """The linear layer of that name, on another layer's weights or a copy in each use; `{}` is the layer."""

    def build(model: Model, graph: Graph, tokens: int, uses: int) -> dict[str, Any]:
        x = graph.input("x", (tokens, columns(model.config)), "f32")
        for use in range(uses):
            layer = name.format(use % model.config.n_layers)
            weight = {f"{layer}.weight": replace(model.file.tensors[f"{layer}.weight"])}
            graph.output(f"y{use}", Checkpoint(weight, graph).linear(x, layer, outputs(model.config)))
        return {"x": noise(x)}

    return build


def activations(op: str, widths: Callable[[ModelConfig], Sequence[tuple[int, ...]]], **attrs: Any) -> Builder:
    """An op on f32 tensors of tokens, or of no tokens where the width says so by a leading 0; each use on its own."""

    def build(model: Model, graph: Graph, tokens: int, uses: int) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for use in range(uses):
            shapes = [shape[1:] if shape[0] == 0 else (tokens, *shape) for shape in widths(model.config)]
            inputs = [graph.input(f"x{use}.{i}", shape, "f32") for i, shape in enumerate(shapes)]
            outputs = F.function(op)(*inputs, **attrs)
            for i, y in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
                if y.spec.is_plain:
                    graph.output(f"y{use}.{i}", y)
            given |= {x.name: noise(x) for x in inputs}
        return given

    return build


def cached(op: str) -> Builder:
    """kv_cache_update or attention, each use in its own cache: one token at the middle of the context, or a prompt."""

    def build(model: Model, graph: Graph, tokens: int, uses: int) -> dict[str, Any]:
        c = replace(model.config, n_layers=uses)
        cache = KVCache(c, CONTEXT, f16, 1)
        first = CONTEXT // 2 - 1 if tokens == 1 else 0
        cache.reserve(cache.open_slot(), first + tokens)
        table = graph.state("block_table", cache.specs["block_table"])
        positions, slots = (graph.input(name, (tokens,), "i32") for name in ("positions", "slots"))
        widths = (c.n_heads, c.n_kv_heads, c.n_kv_heads)
        q, k, v = (graph.input(n, (tokens, h * c.head_dim), "f32") for n, h in zip("qkv", widths, strict=True))
        for layer in range(c.n_layers):
            states = [graph.state(f"{name}.{layer}", cache.specs[f"{name}.{layer}"]) for name in ("keys", "values")]
            heads: dict[str, Any] = {"kv_heads": c.n_kv_heads, "head_dim": c.head_dim}
            if op == "kv_cache_update":
                F.function(op)(*states, k, v, positions, slots, table, **heads)
            else:
                heads |= {"heads": c.n_heads, "scale": c.head_dim**-0.5, "length": first + tokens}
                graph.output(f"y{layer}", F.function(op)(q, *states, positions, slots, table, **heads))
        given = {x.name: noise(x) for x in ((k, v) if op == "kv_cache_update" else (q,))}
        return given | {"positions": np.arange(first, first + tokens, dtype=np.int32), "memory": cache.states}

    return build


def rope(model: Model, graph: Graph, tokens: int, uses: int) -> dict[str, Any]:
    """Queries, rotated."""
    c = model.config
    table = graph.constant("table", rope_table(CONTEXT, c.rope_dim, 10000.0))
    positions = graph.input("positions", (tokens,), "i32")
    given: dict[str, Any] = {"positions": np.arange(tokens, dtype=np.int32)}
    for layer in range(uses):
        x = graph.input(f"x{layer}", (tokens, c.n_heads * c.head_dim), "f32")
        made = F.function("rope")(x, positions, table, heads=c.n_heads, head_dim=c.head_dim, pairing="interleaved")
        graph.output(f"y{layer}", made)
        given[x.name] = noise(x)
    return given


def embedding(model: Model, graph: Graph, tokens: int, uses: int) -> dict[str, Any]:
    """Rows of the table of embeddings."""
    ids = graph.input("ids", (tokens,), "i32")
    table = Checkpoint(model.file.tensors, graph).tensor("token_embd.weight", model.config.vocab_size, model.config.dim)
    graph.output("y", F.function("embedding")(ids, table))
    return {"ids": np.random.default_rng(0).integers(0, model.config.vocab_size, tokens).astype(np.int32)}


def choice(op: str) -> Builder:
    """argmax or sample over one row of logits, whatever the number of tokens."""

    def build(model: Model, graph: Graph, tokens: int, uses: int) -> dict[str, Any]:
        x = graph.input("x", (1, model.config.vocab_size), "f32")
        kinds = {"temperature": "f32", "top_k": "i32", "top_p": "f32", "min_p": "f32"} if op == "sample" else {}
        settings = [graph.input(name, (1,), dtype) for name, dtype in kinds.items()]
        settings += [graph.input("seed", (1, 3), "u32")] if op == "sample" else []
        graph.output("y", F.function(op)(x, *settings))
        return {"x": 3 * noise(x)} | {
            name: np.array([SAMPLING[name]], d.replace("i", "int").replace("f", "float")) for name, d in kinds.items()
        }

    return build


CASES = (
    Case("embedding", "token_embd", embedding),
    Case("rms_norm", "norm", activations("rms_norm", lambda c: [(c.dim,), (0, c.dim)], eps=1e-5)),
    Case("residual_norm", "norm", activations("residual_norm", lambda c: [(c.dim,), (c.dim,), (0, c.dim)], eps=1e-5)),
    Case(
        "rms_norm_q8", "norm", activations("rms_norm_q8", lambda c: [(c.dim,), (0, c.dim)], eps=1e-5, sums=((32, 0),))
    ),
    Case(
        "residual_norm_q8",
        "norm",
        activations("residual_norm_q8", lambda c: [(c.dim,), (c.dim,), (0, c.dim)], eps=1e-5, sums=((32, 0),)),
    ),
    Case("quantize_activations", "dim", activations("quantize_activations", lambda c: [(c.dim,)], group=32)),
    Case("quantize_activations", "ffn", activations("quantize_activations", lambda c: [(c.ffn_dim,)], group=32)),
    Case(
        "quantized_matmul", "attn_q", matmul("blk.{}.attn_q", lambda c: c.dim, lambda c: c.n_heads * c.head_dim), True
    ),
    Case(
        "quantized_matmul",
        "attn_k",
        matmul("blk.{}.attn_k", lambda c: c.dim, lambda c: c.n_kv_heads * c.head_dim),
        True,
    ),
    Case("quantized_matmul", "ffn_gate", matmul("blk.{}.ffn_gate", lambda c: c.dim, lambda c: c.ffn_dim), True),
    Case("quantized_matmul", "ffn_down", matmul("blk.{}.ffn_down", lambda c: c.ffn_dim, lambda c: c.dim), True),
    Case("rope", "q", rope),
    Case("kv_cache_update", "", cached("kv_cache_update")),
    Case("attention", f"of {CONTEXT // 2} keys", cached("attention"), True),
    Case("silu_multiply", "ffn", activations("silu_multiply", lambda c: [(c.ffn_dim,), (c.ffn_dim,)])),
    Case(
        "silu_multiply_q8",
        "ffn",
        activations("silu_multiply_q8", lambda c: [(c.ffn_dim,), (c.ffn_dim,)], sums=((32, 0),)),
    ),
    Case("add", "dim", activations("add", lambda c: [(c.dim,), (c.dim,)])),
    Case("argmax", "logits", choice("argmax")),
    Case("sample", "logits", choice("sample")),
)


def noise(x: Tensor) -> np.ndarray[Any, Any]:
    """Normal values of the tensor's shape."""
    return np.random.default_rng(0).standard_normal([int(d) for d in x.shape if isinstance(d, int)], np.float32)


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
