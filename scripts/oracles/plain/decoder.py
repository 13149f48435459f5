"""Tiny random decoders that transformers lacks, computed in float64 from the tensors of their files by formulas of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from scripts.oracles.tiny.model import TinyModel

Array = np.ndarray[Any, Any]
Shapes = dict[str, tuple[int, ...]]
NORM_EPS = 1e-5
# What makes the logits of an architecture, and the shapes of its tensors.
PROGRAMS: dict[str, tuple[Callable[[PlainDecoder, list[int]], Array], Callable[[TinyModel], Shapes]]] = {}


@dataclass(frozen=True)
class PlainDecoder:
    """The tensors of a file by name, float32, and the sizes of its model."""

    model: TinyModel
    tensors: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name if name in self.tensors else f"{name}.weight"].astype(np.float64)

    def linear(self, x: Array, name: str) -> Array:
        return x @ self[name].T

    def layer_norm(self, x: Array, name: str) -> Array:
        """The layer norm of rows."""
        return standard(x, NORM_EPS) * self[name] + self[f"{name}.bias"]

    def logits(self, tokens: list[int]) -> Array:
        """The logits of every position, float64 [tokens, vocab]."""
        return PROGRAMS[self.model.arch][0](self, tokens)

    def heads(self, x: Array) -> Array:
        return x.reshape(len(x), -1, self.model.head_dim)


def standard(x: Array, eps: float) -> Array:
    y = x - x.mean(axis=-1, keepdims=True)
    return y / np.sqrt((y**2).mean(axis=-1, keepdims=True) + eps)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def rms(x: Array) -> Array:
    """Rows divided by the root of their mean square."""
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + NORM_EPS)


def rotated(x: Array, theta: float, *, neighbours: bool) -> Array:
    """Heads [tokens, heads, size], turned by their positions: pairs of neighbours, or of halves."""
    n, size = len(x), x.shape[-1]
    angles = np.arange(n)[:, None, None] * theta ** (-np.arange(0, size, 2) / size)
    pairs = (x[..., 0::2], x[..., 1::2]) if neighbours else (x[..., : size // 2], x[..., size // 2 :])
    turned = (pairs[0] + 1j * pairs[1]) * np.exp(1j * angles)
    if neighbours:
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def attended(q: Array, k: Array, v: Array, scale: float, window: int = 0, cap: float = 0.0) -> Array:
    """Causal attention of heads [tokens, heads, size], of the last `window` tokens, [tokens, heads * size]."""
    n = len(q)
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    scores = cap * np.tanh(scores / cap) if cap else scores
    sees = np.tri(n, dtype=bool) & ~(np.tri(n, k=-window, dtype=bool) if window else np.zeros((n, n), bool))
    scores = np.exp(np.where(sees, scores, -np.inf))
    return np.einsum("hqk,khd->qhd", scores / scores.sum(axis=-1, keepdims=True), v).reshape(n, -1)


def build_plain(model: TinyModel, seed: int) -> PlainDecoder:
    """The model with every parameter drawn at random, as 8-bit numbers, which pack well."""
    import ml_dtypes

    rng = np.random.default_rng(seed)
    drawn = {name: draw(rng, name, shape) for name, shape in PROGRAMS[model.arch][1](model).items()}
    return PlainDecoder(model, {k: v.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) for k, v in drawn.items()})


def draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    if name.endswith("ssm_a"):
        return -np.exp(rng.uniform(size=shape) * 3 - 2)
    if "_norm" in name and not name.endswith("bias"):
        return rng.uniform(size=shape) + 0.5
    if "lerp" in name:
        return rng.uniform(size=shape)
    if name.endswith(("time_mix_decay.weight", "time_mix_w0.weight")):
        return rng.normal(size=shape) - 1
    if name.endswith(".bias"):
        return rng.normal(size=shape) / 3
    if name.endswith("time_mix_ln.weight"):
        return rng.uniform(size=shape) + 0.5
    if len(shape) == 1 or name == "token_embd.weight":
        return rng.normal(size=shape)
    return rng.normal(size=shape) * (1.6 if name == "output.weight" else 1.0) / shape[-1] ** 0.5
