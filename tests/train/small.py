"""A small model of two layers for tests of steps and trainers, which share its kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

import camshaft as cs

Array = np.ndarray[Any, Any]
WIDTH = 70  # its square is more than one program of an update takes


def parameters(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    layers = [{"w": rng.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32)} for _ in range(2)]
    return {"layers": layers}


def loss(p: dict[str, Any], x: Any, y: Any) -> Any:
    hidden = cs.tanh(x @ p["layers"][0]["w"])
    return cs.mse_loss(hidden @ p["layers"][1]["w"], y)


def examples(count: int = 40, seed: int = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, WIDTH)).astype(np.float32)
    return x, np.roll(x, 1, axis=1)


def flat(tree: dict[str, Any]) -> list[Array]:
    return [layer["w"] for layer in tree["layers"]]


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two trees of parameters have the same bits."""
    return all(x.tobytes() == y.tobytes() for x, y in zip(flat(a), flat(b), strict=True))
