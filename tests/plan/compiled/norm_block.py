"""A graph of a norm, a product, an activation and a sum, and what it computes, for tests of compiled plans."""

from __future__ import annotations

import numpy as np

import camshaft as cs

DIM = 48
TOKENS = cs.Extent("tokens", 512)
RNG = np.random.default_rng(3)
W = RNG.normal(size=DIM).astype(np.float32)
M = RNG.normal(size=(DIM, DIM)).astype(np.float32)
X = RNG.normal(size=(TOKENS.bound, DIM)).astype(np.float32)


def block() -> cs.Graph:
    """x -> norm -> product -> silu -> + x, over up to 512 tokens; outputs y and, a view of it, heads."""
    graph = cs.Graph()
    x = graph.input("x", (TOKENS, DIM), "f32")
    h = cs.rms_norm(x, W, eps=1e-5)
    flat = graph.reshape(graph.reshape(h, (TOKENS, 4, DIM // 4)), (TOKENS, DIM))
    y = cs.add(cs.silu(cs.matmul(flat, M, transpose_b=True)), x)
    graph.output("y", y)
    graph.output("heads", graph.reshape(y, (TOKENS, 4, DIM // 4)))
    return graph


def wanted(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    h = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * W @ M.T.astype(np.float64)
    return h / (1 + np.exp(-h)) + x
