"""A norm, a product, an activation and a sum, each on a device of its own, for tests of plans across devices."""

from __future__ import annotations

import numpy as np
from placed_graphs import norm_block
from random_graphs import DIM, TOKENS

import camshaft as cs

RNG = np.random.default_rng(11)
W = RNG.normal(size=DIM).astype(np.float32)
M = RNG.normal(size=(DIM, DIM)).astype(np.float32)
X = RNG.normal(size=(TOKENS.bound, DIM)).astype(np.float32)
Y = RNG.normal(size=(TOKENS.bound, DIM)).astype(np.float32)


def block(places: tuple[str | None, ...] = (None, None, None, None)) -> cs.Graph:
    return norm_block(places, TOKENS, W, M)


def run_block(places: tuple[str | None, ...], n: int = 7) -> np.ndarray:
    with cs.compile(block(places), backend="scalar", threads=1) as plan:
        plan.run(x=Y[:n])
        return plan.run(x=X[:n])["y"].copy()
