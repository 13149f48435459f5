"""Mixture-of-experts blocks in camshaft, several on their own inputs as one plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph, Tensor
from camshaft.ops.spec import TensorSpec
from camshaft.plan.compile import compile as compile_graph


class Blocks:
    """Orders of bench/products/moe.py. Routing and quantizing activations are included in the time, as for the peer."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.version, self.built_for = "camshaft", "this CPU"

    def call(self, order: dict[str, Any]) -> Callable[[], object]:
        """Return a function that runs the plan."""
        d, width, n, copies, n_experts = (order[name] for name in ("d", "f", "n", "copies", "experts"))
        graph = Graph()
        rng = np.random.default_rng(1)
        values = rng.standard_normal((n_experts, d), np.float32) / np.float32(np.sqrt(d))
        router = graph.constant("router", values)
        stacks = [stack(graph, order, f"w{i}", s) for i, s in enumerate(((width, d), (width, d), (d, width)))]
        x = np.random.default_rng(0).standard_normal((copies, n, d), np.float32)
        for i in range(copies):
            given = graph.input(f"x{i}", (n, d), "f32")
            logits = f.matmul(given, router, transpose_b=True)
            weights, experts = f.moe_softmax_topk(logits, top_k=order["slots"])
            graph.output(f"y{i}", f.moe_experts(given, *stacks, experts, weights))
        plan = compile_graph(graph, activations="q8", threads=self.threads)
        plan.run(**{f"x{i}": part for i, part in enumerate(x)})
        return lambda: plan.run(keep=True, view=True)[f"y{copies - 1}"]

    def check(self, given: Any) -> float:
        """The mean magnitude of the last result."""
        return float(np.abs(given).mean(dtype=np.float64))


def stack(graph: Graph, order: dict[str, Any], name: str, size: tuple[int, int]) -> Tensor:
    """A stack [n_experts, n, k] of the file's blocks over and over."""
    row, shape = BLOCK_FORMATS[order["format"]], (order["experts"], *size)
    n_blocks = order["experts"] * size[0] * size[1] // row.block_size
    blocks = np.resize(np.fromfile(order["blocks"], np.uint8), n_blocks * row.block_nbytes)
    source = FileTensor(name, shape, row, blocks.size, lambda: blocks, "memory")
    return graph.constant(name, source, TensorSpec(shape, row))
