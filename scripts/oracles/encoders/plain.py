"""Tiny random encoders that transformers lacks, computed in float64 from the tensors of their files.

jina-bert-v2 (ALiBi, gate and up as one tensor) and nomic-bert-moe (rotation, experts in every second layer).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

EPSILON, THETA, N_EXPERTS, N_USED = 1e-6, 1000.0, 4, 2
Array = np.ndarray[Any, Any]
_ERF = np.vectorize(math.erf)


@dataclass(frozen=True)
class PlainEncoder:
    """The tensors of a file by name, float32, and what they are."""

    arch: str
    heads: int
    tensors: dict[str, Array]

    def hidden(self, ids: list[int]) -> Array:
        """The last layer's results, float64 [tokens, dim]."""
        x = self["token_embd"][ids] + self["token_types"][0]
        x = self.normed(x, "token_embd_norm")
        for layer in range(2):
            x = self.normed(x + self.attention(x, f"blk.{layer}"), f"blk.{layer}.attn_output_norm")
            x = self.normed(x + self.feed_forward(x, f"blk.{layer}"), f"blk.{layer}.layer_output_norm")
        return x

    def __getitem__(self, name: str) -> Array:
        return self.tensors[f"{name}.weight"].astype(np.float64)

    def linear(self, x: Array, name: str) -> Array:
        """x w^T, and the bias where there is one."""
        bias = self.tensors.get(f"{name}.bias")
        return x @ self[name].T + (0 if bias is None else bias.astype(np.float64))

    def normed(self, x: Array, name: str) -> Array:
        """The layer norm of rows."""
        y = x - x.mean(axis=1, keepdims=True)
        y /= np.sqrt((y**2).mean(axis=1, keepdims=True) + EPSILON)
        return y * self[name] + self.tensors[f"{name}.bias"].astype(np.float64)

    def attention(self, x: Array, prefix: str) -> Array:
        """Every token's attention to all."""
        if self.arch == "jina-bert-v2":
            q, k, v = (self.linear(x, f"{prefix}.attn_{part}") for part in "qkv")
        else:
            q, k, v = np.split(self.linear(x, f"{prefix}.attn_qkv"), 3, axis=1)
        q, k, v = (part.reshape(len(x), self.heads, -1).swapaxes(0, 1) for part in (q, k, v))
        places = np.arange(len(x))
        bias: Any = 0.0
        if self.arch == "jina-bert-v2":
            slopes = 2.0 ** (-8 * np.arange(1, self.heads + 1) / self.heads)
            bias = -slopes[:, None, None] * np.abs(places[:, None] - places)
        else:
            q, k = _rotated(q), _rotated(k)
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[2]) + bias
        shares = np.exp(scores - scores.max(axis=2, keepdims=True))
        found = shares / shares.sum(axis=2, keepdims=True) @ v
        return self.linear(found.swapaxes(0, 1).reshape(x.shape), f"{prefix}.attn_output")

    def feed_forward(self, x: Array, prefix: str) -> Array:
        """A gated feed-forward, a plain one, or the two best of four experts."""
        if self.arch == "jina-bert-v2":
            gate, up = np.split(self.linear(x, f"{prefix}.ffn_up"), 2, axis=1)
            return self.linear(_gelu(gate) * up, f"{prefix}.ffn_down")
        if f"{prefix}.ffn_up.weight" in self.tensors:
            return self.linear(_gelu(self.linear(x, f"{prefix}.ffn_up")), f"{prefix}.ffn_down")
        scores = self.linear(x, f"{prefix}.ffn_gate_inp")
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        made = np.zeros_like(x)
        for t, row in enumerate(x):
            for e in np.argsort(-shares[t])[:N_USED]:
                inner = _gelu(self[f"{prefix}.ffn_up_exps"][e] @ row)
                made[t] += shares[t, e] * (self[f"{prefix}.ffn_down_exps"][e] @ inner)
        return made


def _gelu(x: Array) -> Array:
    made: Array = x / 2 * (1 + _ERF(x / math.sqrt(2)))
    return made


def _rotated(x: Array) -> Array:
    """Halves of each head [heads, tokens, size] turned by the token's place."""
    size = x.shape[2]
    angles = np.arange(x.shape[1])[:, None] * THETA ** -(np.arange(0, size, 2) / size)
    a, b = np.split(x, 2, axis=2)
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=2)


def draw(arch: str, n_tokens: int, dim: int, seed: int, head: int) -> PlainEncoder:
    """An encoder with every parameter drawn, to values that bfloat16 represents, and heads of `head` elements."""
    rng, shapes = np.random.default_rng(seed), _shapes(arch, n_tokens, dim)
    tensors = {}
    for name, shape in shapes.items():
        values = rng.normal(size=shape)
        if "norm" in name and name.endswith("weight"):
            values = np.abs(values) + 0.5
        elif name.endswith("bias") or "token_types" in name:
            values = values * 0.3
        elif "token_embd" not in name:
            values = values * 1.6 / math.sqrt(shape[-1])
        bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        tensors[name] = bits.view(np.float32)
    return PlainEncoder(arch, dim // head, tensors)


def _shapes(arch: str, n_tokens: int, dim: int) -> dict[str, tuple[int, ...]]:
    def linear(name: str, n: int, k: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (n, k), f"{name}.bias": (n,)}

    def norm(name: str) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}

    made = {"token_embd.weight": (n_tokens, dim), "token_types.weight": (2, dim), **norm("token_embd_norm")}
    for layer in range(2):
        prefix = f"blk.{layer}"
        made |= {**norm(f"{prefix}.attn_output_norm"), **norm(f"{prefix}.layer_output_norm")}
        made |= linear(f"{prefix}.attn_output", dim, dim)
        if arch == "jina-bert-v2":
            for part in "qkv":
                made |= linear(f"{prefix}.attn_{part}", dim, dim)
            made |= {f"{prefix}.ffn_up.weight": (4 * dim, dim), **linear(f"{prefix}.ffn_down", dim, 2 * dim)}
            continue
        made |= linear(f"{prefix}.attn_qkv", 3 * dim, dim)
        if layer % 2:
            made |= {f"{prefix}.ffn_gate_inp.weight": (N_EXPERTS, dim)}
            made |= {f"{prefix}.ffn_up_exps.weight": (N_EXPERTS, 2 * dim, dim)}
            made |= {f"{prefix}.ffn_down_exps.weight": (N_EXPERTS, dim, 2 * dim)}
        else:
            made |= {**linear(f"{prefix}.ffn_up", 2 * dim, dim), **linear(f"{prefix}.ffn_down", dim, 2 * dim)}
    return made
