"""A small model of two layers, for the tests of observe/."""

from __future__ import annotations

import numpy as np

import camshaft as cs
from camshaft.observe.machine_peak import MachinePeak

DIM = 64
TOKENS = cs.Extent("tokens", 9)
RNG = np.random.default_rng(5)
M = RNG.normal(size=(DIM, DIM)).astype(np.float32)
W = RNG.normal(size=DIM).astype(np.float32)
X = RNG.normal(size=(TOKENS.bound, DIM)).astype(np.float32)
PEAK = MachinePeak(2, 1e10, 4e11, 5e10, 1e11)


def graph(layers: int = 2) -> cs.Graph:
    """Per layer silu(x + rms_norm(x) M), named blk.N.*; then a norm."""
    made = cs.Graph()
    x = made.input("x", (TOKENS, DIM), "f32")
    for layer in range(layers):
        with made.scope(f"blk.{layer}"):
            x = cs.silu(cs.add(x, cs.matmul(cs.rms_norm(x, W, eps=1e-5), M)))
    made.output("y", cs.rms_norm(x, W, eps=1e-5, name="output_norm"))
    return made


def plan(layers: int = 2, threads: int = 2, backend: str = "simd") -> cs.ExecutionPlan:
    """The plan of `graph`."""
    return cs.compile(graph(layers), backend=backend, threads=threads)
