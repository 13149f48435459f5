"""Cases of bench.ops.kernels: the ops of a language model, at the model's shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from camshaft.dtypes import f16
from camshaft.formats.gguf.file import GGUFFile
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.ops.rope.table import rope_table

CONTEXT = 1024
SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


@dataclass(frozen=True)
class Model:
    """Where weights and shapes come from."""

    file: GGUFFile
    config: ModelConfig


def noise(x: Tensor) -> np.ndarray[Any, Any]:
    """Normal values of the tensor's shape."""
    return np.random.default_rng(0).standard_normal([int(d) for d in x.shape if isinstance(d, int)], np.float32)


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
