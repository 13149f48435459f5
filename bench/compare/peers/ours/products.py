"""Quantized products in camshaft, several in sequence as one plan."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from camshaft.formats.bits import Bytes
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.tensor import FileTensor
from camshaft.graph.graph import Graph
from camshaft.models.checkpoint import Checkpoint
from camshaft.plan.compile import compile as compile_graph

PARTS = 64


class Products:
    """Orders: {"format", "m", "k", "n", "copies"[, "activations"]}: `copies` products in sequence, each with its own weights.
    Quantizing the input, once, is included in the time, as for other peers. Weights are random numbers quantized by camshaft, or
    with "blocks" the blocks of that file, repeated (bench/products/quantized.py)."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.version, self.built_for = "camshaft", "this CPU"

    def call(self, order: dict[str, Any]) -> Callable[[], object]:
        """Return a function that runs the plan."""
        m, k, n = (order[name] for name in ("m", "k", "n"))
        rng = np.random.default_rng(0)
        x = rng.standard_normal((n, k), np.float32)
        row, blocks = BLOCK_FORMATS[order["format"]], weights_of(order, rng)
        graph = Graph()
        given = graph.input("x", (n, k), "f32")
        names = [f"w{copy}" for copy in range(order["copies"])]
        made = {f"{t}.weight": FileTensor(t, (m, k), row, blocks.size, lambda: blocks, "memory") for t in names}
        for name in names:
            graph.output(f"y{name}", Checkpoint(made, graph).linear(given, name, m))
        plan = compile_graph(graph, activations=order.get("activations", "q8"), threads=self.threads)
        plan.run(x=x)
        return lambda: plan.run(keep=True, view=True)[f"y{names[-1]}"]

    def check(self, given: Any) -> float:
        """The mean magnitude of the last result."""
        return float(np.abs(given).mean(dtype=np.float64))


def weights_of(order: dict[str, Any], rng: np.random.Generator) -> Bytes:
    """The m x k blocks of an order."""
    name, m, k = order["format"], order["m"], order["k"]
    if "blocks" not in order:
        return quantized(name, rng.standard_normal((m, k), np.float32))
    row = BLOCK_FORMATS[name]
    return np.resize(np.fromfile(order["blocks"], np.uint8), m * k // row.block_size * row.block_nbytes)


def quantized(name: str, weights: np.ndarray[Any, Any]) -> Bytes:
    """Quantize random numbers to a matrix's blocks, with several threads."""
    row = BLOCK_FORMATS[name]
    parts = np.array_split(weights.reshape(-1, row.block_size), PARTS)
    with ThreadPoolExecutor() as pool:
        return np.concatenate(list(pool.map(row.quantize, parts))).reshape(-1)
