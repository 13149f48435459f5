"""Array peers compute the right results: camshaft's against NumPy's and plain formulas; orders have what they need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.compare.peers.numpy_arrays import NumPy, operands
from bench.compare.peers.ours.arrays import Camshaft
from bench.compare.peers.ours.products import Products
from bench.compare.suites.array_rows import CHAINS, core_name, passes, product
from bench.compare.suites.suite import Task

TASKS = (*passes(5, 96), product("f32", 7, 33, 18))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_camshaft_and_numpy_compute_the_same(task: Task) -> None:
    order: dict[str, Any] = dict(task.order)
    mine, theirs = Camshaft(2), NumPy()
    ours, wanted = mine.call(order)(), theirs.call(order)()
    assert np.shape(ours) == tuple(order["gives"])
    assert np.abs(np.asarray(ours) - np.asarray(wanted)).max() < 2e-5
    assert mine.check(ours) == pytest.approx(theirs.check(wanted), rel=1e-4)


def test_bf16_products_come_from_rounded_operands() -> None:
    order: dict[str, Any] = dict(product("bf16", 4, 64, 8).order)
    given, ours = operands(order), Camshaft(1).call(order)()
    assert np.asarray(ours).dtype.name == "bfloat16"
    assert np.abs(np.asarray(ours, np.float32) - given["a"] @ given["b"]).max() < 0.2


def test_attention_is_causal_softmax_of_scaled_scores() -> None:
    shape = [1, 2, 37, 64]
    order: dict[str, Any] = {"what": "sdpa", "given": dict.fromkeys("qkv", shape), "gives": shape}
    q, k, v = (x[0].astype(np.float64) for x in operands(order).values())
    scores = np.where(np.tri(37, dtype=bool), q @ k.swapaxes(1, 2) / 8, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = (weights / weights.sum(-1, keepdims=True)) @ v
    ours = np.asarray(Camshaft(2).call(order)()).reshape(37, 2, 64).swapaxes(0, 1)
    assert np.abs(ours - wanted).max() < 1e-4


def test_quantized_products_are_near_those_of_the_numbers() -> None:
    order = {"format": "Q8_0", "m": 64, "k": 256, "n": 3, "copies": 2}
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 256), np.float32), rng.standard_normal((64, 256), np.float32)
    ours = np.asarray(Products(2).call(order)())
    assert np.abs(ours - x @ w.T).max() < 1.0
    assert np.abs(ours - x @ w.T).mean() < 0.2


def test_chains_have_3_to_6_steps() -> None:
    assert [len(steps) for steps in CHAINS.values()] == [3, 4, 5, 6]
    assert core_name() in (None, "SapphireRapids", "Cooperlake", "SkylakeX", "Haswell")
