"""Causal attention in camshaft, including the KV cache update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.compare.peers.numpy_arrays import Array, Call
from camshaft.dtypes import f32, i32
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.spec import TensorSpec
from camshaft.plan.compile import compile as compile_graph
from camshaft.plan.memory.allocate import aligned_bytes


def sdpa(threads: int, given: Mapping[str, Array]) -> Call:
    """softmax(q k^T / sqrt(d)) v of one sequence in f32. Operands are [1, heads, tokens, d]; the plan takes them as projections
    produce them, [tokens, heads * d], and updates and reads the KV cache. The result has the operands' layout."""
    _, heads, tokens, d = given["q"].shape
    rows = {name: np.ascontiguousarray(x[0].swapaxes(0, 1)).reshape(tokens, heads * d) for name, x in given.items()}
    graph, blocks = Graph(), -(-tokens // BLOCK_TOKENS)
    shapes = {"keys": (blocks, heads, d, BLOCK_TOKENS), "values": (blocks, heads, BLOCK_TOKENS, d)}
    specs = {name: TensorSpec(shape, f32) for name, shape in shapes.items()} | {"table": TensorSpec((1, blocks), i32)}
    arrays = {name: aligned_bytes(spec.nbytes, 64) for name, spec in specs.items()}
    memory: dict[str, Array] = {name: arrays[name].view(np.float32).reshape(shape) for name, shape in shapes.items()}
    memory["table"] = arrays["table"].view(np.int32).reshape(1, blocks)
    memory["table"][0] = np.arange(blocks)
    keys, values, table = (graph.state(name, spec) for name, spec in specs.items())
    q, k, v = (graph.input(name, (tokens, heads * d), "f32") for name in "qkv")
    positions, slots = (graph.input(name, (tokens,), "i32") for name in ("positions", "slots"))
    written: dict[str, Any] = {"kv_heads": heads, "head_dim": d}
    F.function("kv_cache_update")(keys, values, k, v, positions, slots, table, **written)
    read = written | {"heads": heads, "scale": d**-0.5, "length": tokens}
    graph.output("y", F.function("attention")(q, keys, values, positions, slots, table, **read))
    plan = compile_graph(graph, threads=threads, memory=memory)
    plan.run(**rows, positions=np.arange(tokens, dtype=np.int32), slots=np.zeros(tokens, np.int32))
    return lambda: plan.run(keep=True, view=True)["y"]
