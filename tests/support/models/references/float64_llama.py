"""The truth for language models: a plain float64 forward pass of llama, qwen2 and qwen3 over dequantized weights.

Nothing here is shared with the package: no kernel, no op, no model file. `weights` maps GGUF tensor names to arrays
[n, k]; `metadata` is the file's. What a file has (biases, q and k norms, an output matrix of its own) is applied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Weights = Mapping[str, ArrayLike]

# Which elements of a head rotate together: 2i with 2i + 1, or i with i + d/2.
PAIRING = {"llama": "neighbours", "qwen2": "halves", "qwen3": "halves"}


@dataclass(frozen=True)
class Rope:
    """Rotary positions. `kind`: none, linear, ntk (a larger base), yarn, off (no rotation at all).

    `divisors` [dim/2] divide the frequencies (Llama 3's rope_freqs.weight).
    """

    dim: int
    theta: float
    pairing: str
    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    divisors: Floats | None = None

    def frequencies(self) -> Floats:
        """Radians per position of each pair: float64 [dim/2]."""
        theta = self.theta
        if self.kind == "ntk":
            theta *= self.factor ** (self.dim / (self.dim - 2))
        frequencies = theta ** (-np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)
        if self.divisors is not None:
            frequencies /= self.divisors
        if self.kind == "off":
            return np.zeros_like(frequencies)
        if self.kind == "linear":
            return frequencies / self.factor
        if self.kind == "yarn":
            keep = self._yarn_keep()
            return frequencies * keep + frequencies / self.factor * (1 - keep)
        return frequencies

    def _yarn_keep(self) -> Floats:
        """1 for pairs that turn often within the original context, 0 for those that turn less than once."""

        def pair_turning(times: float) -> float:
            return self.dim * math.log(self.original_context / (times * 2 * math.pi)) / (2 * math.log(self.theta))

        low = max(math.floor(pair_turning(self.beta_fast)), 0)
        high = min(math.ceil(pair_turning(self.beta_slow)), self.dim - 1)
        return 1 - np.clip((np.arange(self.dim // 2) - low) / max(high - low, 0.001), 0, 1)

    @property
    def magnitude(self) -> float:
        """What sine and cosine are multiplied by."""
        return 1 + 0.1 * math.log(self.factor) if self.kind == "yarn" else 1.0

    def apply(self, x: Floats, positions: NDArray[np.int64]) -> Floats:
        """`x` [n, heads, d] with the first `dim` elements of each head rotated by its row's position."""
        angles = positions[:, None, None] * self.frequencies()
        cos, sin = np.cos(angles) * self.magnitude, np.sin(angles) * self.magnitude
        out, half = x.copy(), self.dim // 2
        first, second = (slice(0, self.dim, 2), slice(1, self.dim, 2))
        if self.pairing == "halves":
            first, second = slice(0, half), slice(half, self.dim)
        a, b = x[..., first], x[..., second]
        out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
        return out


@dataclass(frozen=True)
class Sizes:
    """What the metadata says of a model's shape."""

    arch: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    epsilon: float


def sizes(metadata: Mapping[str, Any]) -> Sizes:
    """The sizes in a GGUF file's metadata."""
    arch = metadata["general.architecture"]
    heads = metadata[f"{arch}.attention.head_count"]
    return Sizes(
        arch=arch,
        n_layers=metadata[f"{arch}.block_count"],
        n_heads=heads,
        n_kv_heads=metadata.get(f"{arch}.attention.head_count_kv", heads),
        head_dim=metadata.get(f"{arch}.attention.key_length", metadata[f"{arch}.embedding_length"] // heads),
        epsilon=float(metadata[f"{arch}.attention.layer_norm_rms_epsilon"]),
    )


def rope_of(metadata: Mapping[str, Any], weights: Weights) -> Rope:
    """The rotary positions that a file asks for."""
    arch, head_dim = metadata["general.architecture"], sizes(metadata).head_dim
    prefix = f"{arch}.rope."
    factors = weights.get("rope_freqs.weight")
    return Rope(
        dim=metadata.get(prefix + "dimension_count", head_dim),
        theta=float(metadata.get(prefix + "freq_base", 10000.0)),
        pairing=PAIRING[arch],
        kind=metadata.get(prefix + "scaling.type", "none"),
        factor=float(metadata.get(prefix + "scaling.factor", 1.0)),
        original_context=metadata.get(prefix + "scaling.original_context_length", 0),
        divisors=None if factors is None else np.asarray(factors, np.float64),
    )


class _Layer:
    """The tensors of one layer by short name, in float64; `linear` is x @ w.T + b where there is a b."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self._weights, self._prefix = weights, prefix

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._weights

    def __getitem__(self, name: str) -> Floats:
        return np.asarray(self._weights[self._prefix + name], np.float64)

    def linear(self, x: Floats, name: str) -> Floats:
        y = x @ self[name + ".weight"].T
        return y + self[name + ".bias"] if name + ".bias" in self else y


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def attention(q: Floats, k: Floats, v: Floats) -> Floats:
    """Causal softmax(q k^T / sqrt(d)) v: q [n, heads, d], k and v [n, kv_heads, d] -> [n, heads, d]."""
    group = q.shape[1] // k.shape[1]
    # [heads, n, d], each head contiguous: strided batches miss the BLAS and take ten times as long.
    q, k, v = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
    scores = q @ np.ascontiguousarray(k.swapaxes(1, 2)) / math.sqrt(q.shape[-1])
    scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.ascontiguousarray((weights @ v).swapaxes(0, 1))


def _attention_block(layer: _Layer, x: Floats, size: Sizes, rope: Rope) -> Floats:
    n, d, positions = len(x), size.head_dim, np.arange(len(x))
    q = layer.linear(x, "attn_q").reshape(n, size.n_heads, d)
    k = layer.linear(x, "attn_k").reshape(n, size.n_kv_heads, d)
    v = layer.linear(x, "attn_v").reshape(n, size.n_kv_heads, d)
    if "attn_q_norm.weight" in layer:
        q = rms_norm(q, layer["attn_q_norm.weight"], size.epsilon)
        k = rms_norm(k, layer["attn_k_norm.weight"], size.epsilon)
    mixed = attention(rope.apply(q, positions), rope.apply(k, positions), v)
    return layer.linear(mixed.reshape(n, -1), "attn_output")


def _feed_forward_block(layer: _Layer, x: Floats) -> Floats:
    gate = layer.linear(x, "ffn_gate")
    return layer.linear(gate / (1 + np.exp(-gate)) * layer.linear(x, "ffn_up"), "ffn_down")


def logits(weights: Weights, metadata: Mapping[str, Any], tokens: Sequence[int], *, rope: Rope | None = None) -> Floats:
    """The logits after each of `tokens`: float64 [n, vocab]. `rope` replaces what the file asks for."""
    size = sizes(metadata)
    rope = rope or rope_of(metadata, weights)
    top = _Layer(weights, "")
    embedding = top["token_embd.weight"]
    x = embedding[list(tokens)]
    for i in range(size.n_layers):
        layer = _Layer(weights, f"blk.{i}.")
        x = x + _attention_block(layer, rms_norm(x, layer["attn_norm.weight"], size.epsilon), size, rope)
        x = x + _feed_forward_block(layer, rms_norm(x, layer["ffn_norm.weight"], size.epsilon))
    x = rms_norm(x, top["output_norm.weight"], size.epsilon)
    return top.linear(x, "output") if "output.weight" in top else x @ embedding.T


def log_softmax(x: Floats) -> Floats:
    """Log-probabilities over the last axis."""
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def kl_divergence(truth: ArrayLike, other: ArrayLike) -> Floats:
    """KL(truth || other) per position of two arrays of logits [n, vocab]: float64 [n], in nats."""
    # row by row: a row of a large vocabulary stays in the CPU's cache
    return np.asarray([_kl_of_row(p, q) for p, q in zip(np.asarray(truth), np.asarray(other), strict=True)])


def _kl_of_row(truth: ArrayLike, other: ArrayLike) -> Floats:
    p, q = (log_softmax(np.asarray(x, np.float64)) for x in (truth, other))
    return np.asarray((np.exp(p) * (p - q)).sum(axis=-1))


def top_divergence(log_probabilities: ArrayLike, ids: NDArray[np.integer], other: ArrayLike) -> Floats:
    """KL(top || other) per position: the likeliest tokens one by one and all the rest as one outcome, float64 [n].

    `log_probabilities` and `ids` [n, k] are one model's likeliest tokens, `other` [n, vocab] another's logits.
    """
    p = np.asarray(log_probabilities, np.float64)
    q = np.take_along_axis(log_softmax(np.asarray(other, np.float64)), ids.astype(np.int64), axis=-1)
    rest_p, rest_q = (np.maximum(1 - np.exp(x).sum(axis=-1), 1e-12) for x in (p, q))
    return np.asarray((np.exp(p) * (p - q)).sum(axis=-1) + rest_p * np.log(rest_p / rest_q))
