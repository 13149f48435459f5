"""Tiny random decoders that transformers lacks, computed in float64 from the tensors of their files: RWKV-6 and RWKV-7.

The formulas are those of the models' own programs, a token at a time, with a matrix of values by keys for each head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from scripts.oracles.tiny_models import TinyModel

Array = np.ndarray[Any, Any]
NORM_EPS, HEAD_EPS = 1e-5, 64e-5


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
        mix = {"rwkv6": rwkv6, "rwkv7": rwkv7}[self.model.arch]
        x, first = self.layer_norm(self["token_embd"][tokens], "token_embd_norm"), None
        for layer in range(self.model.n_layers):
            prefix = f"blk.{layer}"
            h = self.layer_norm(x, f"{prefix}.attn_norm")
            y, first = mix(self, prefix, h, before(h), first)
            x = x + y
            h = self.layer_norm(x, f"{prefix}.attn_norm_2")
            x = x + self.channel_mix(prefix, h, before(h) - h)
            every = self.model.keys.get("rescale_every_n_layers", 0)
            x = x / 2 if every and (layer + 1) % every == 0 else x
        return self.linear(self.layer_norm(x, "output_norm"), "output")

    def channel_mix(self, prefix: str, h: Array, change: Array) -> Array:
        k = np.maximum(
            self.linear(h + change * self[f"{prefix}.channel_mix_lerp_k"].ravel(), f"{prefix}.channel_mix_key"), 0
        )
        y = self.linear(k**2, f"{prefix}.channel_mix_value")
        if self.model.arch == "rwkv7":
            return y
        r = h + change * self[f"{prefix}.channel_mix_lerp_r"].ravel()
        return sigmoid(self.linear(r, f"{prefix}.channel_mix_receptance")) * y

    def heads(self, x: Array) -> Array:
        return x.reshape(len(x), -1, self.model.head_dim)

    def normed_heads(self, x: Array, prefix: str) -> Array:
        """The layer norm of each head of [tokens, heads, size], with weights of all."""
        y = standard(x, HEAD_EPS).reshape(len(x), -1)
        return y * self[f"{prefix}.time_mix_ln"] + self[f"{prefix}.time_mix_ln.bias"]


def standard(x: Array, eps: float) -> Array:
    y = x - x.mean(axis=-1, keepdims=True)
    return y / np.sqrt((y**2).mean(axis=-1, keepdims=True) + eps)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def before(h: Array) -> Array:
    """The rows of the tokens before; zeros before the first."""
    return np.concatenate([np.zeros_like(h[:1]), h[:-1]])


def rwkv6(of: PlainDecoder, prefix: str, h: Array, last: Array, first: Array | None) -> tuple[Array, Array | None]:
    """Time mixing of Finch."""
    change = last - h
    x = np.tanh(of.linear(h + change * of[f"{prefix}.time_mix_lerp_x"].ravel(), f"{prefix}.time_mix_w1"))
    x = x.reshape(len(h), 5, -1)
    lerps = of[f"{prefix}.time_mix_lerp_fused"].reshape(5, -1)
    xw, xk, xv, xr, xg = (h + change * (lerps[i] + x[:, i] @ of[f"{prefix}.time_mix_w2"][i].T) for i in range(5))
    r, k, v = (of.heads(of.linear(x, f"{prefix}.time_mix_{name}"))
               for x, name in ((xr, "receptance"), (xk, "key"), (xv, "value")))  # fmt: skip
    gate = of.linear(xg, f"{prefix}.time_mix_gate")
    decay = of.linear(np.tanh(of.linear(xw, f"{prefix}.time_mix_decay_w1")), f"{prefix}.time_mix_decay_w2")
    decay = of.heads(np.exp(-np.exp(decay + of[f"{prefix}.time_mix_decay"])))
    bonus, state, out = of[f"{prefix}.time_mix_first"], np.zeros((r.shape[1], r.shape[2], r.shape[2])), []
    for t in range(len(h)):
        added = np.einsum("hv,hk->hvk", v[t], k[t])
        out.append(np.einsum("hvk,hk->hv", state + bonus[:, None] * added, r[t]))
        state = state * decay[t][:, None] + added
    y = of.normed_heads(np.array(out), prefix) * gate * sigmoid(gate)
    return of.linear(y, f"{prefix}.time_mix_output"), first


def rwkv7(of: PlainDecoder, prefix: str, h: Array, last: Array, first: Array | None) -> tuple[Array, Array | None]:
    """Time mixing of Goose."""
    lerps = of[f"{prefix}.time_mix_lerp_fused"].reshape(6, -1)
    xr, xw, xk, xv, xa, xg = (h + (last - h) * lerp for lerp in lerps)
    r, k, v = (
        of.linear(x, f"{prefix}.time_mix_{name}") for x, name in ((xr, "receptance"), (xk, "key"), (xv, "value"))
    )

    def low_rank(x: Array, part: str, act: Any = lambda x: x) -> Array:
        return of.linear(act(of.linear(x, f"{prefix}.time_mix_{part}1")), f"{prefix}.time_mix_{part}2")

    decay = np.exp(-0.606531 * sigmoid(of[f"{prefix}.time_mix_w0"] + low_rank(xw, "w", np.tanh)))
    if first is not None:
        v = v + (first - v) * sigmoid(of[f"{prefix}.time_mix_v0"] + low_rank(xv, "v"))
    rate = sigmoid(of[f"{prefix}.time_mix_a0"] + low_rank(xa, "a"))
    gate = low_rank(xg, "g", sigmoid)
    unit = of.heads(k * of[f"{prefix}.time_mix_k_k"])
    unit = unit / np.maximum(np.linalg.norm(unit, axis=-1, keepdims=True), 1e-12)
    k = k * (1 + (rate - 1) * of[f"{prefix}.time_mix_k_a"])
    rs, ks, vs, ws, rates = (of.heads(x) for x in (r, k, v, decay, rate))
    state, out = np.zeros((rs.shape[1], rs.shape[2], rs.shape[2])), []
    for t in range(len(h)):
        forgotten = np.einsum("hvk,hk->hv", state, -unit[t])
        state = state * ws[t][:, None] + np.einsum("hv,hk->hvk", forgotten, unit[t] * rates[t])
        state = state + np.einsum("hv,hk->hvk", vs[t], ks[t])
        out.append(np.einsum("hvk,hk->hv", state, rs[t]))
    own = (of.heads(r * k * of[f"{prefix}.time_mix_r_k"])).sum(axis=-1, keepdims=True) * vs
    y = of.normed_heads(np.array(out), prefix) + own.reshape(len(h), -1)
    return of.linear(y * gate, f"{prefix}.time_mix_output"), v if first is None else first


def build(model: TinyModel, seed: int) -> PlainDecoder:
    """The model with every parameter drawn at random, as 8-bit numbers, which pack well."""
    import ml_dtypes

    rng = np.random.default_rng(seed)
    drawn = {name: draw(rng, name, shape) for name, shape in _shapes(model)}
    return PlainDecoder(model, {k: v.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) for k, v in drawn.items()})


def draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    if "lerp" in name:
        return rng.uniform(size=shape)
    if name.endswith(("time_mix_decay.weight", "time_mix_w0.weight")):
        return rng.normal(size=shape) - 1
    if name.endswith(".bias"):
        return rng.normal(size=shape) / 3
    if name.endswith(("norm.weight", "norm_2.weight", "time_mix_ln.weight")):
        return rng.uniform(size=shape) + 0.5
    if len(shape) == 1 or name == "token_embd.weight":
        return rng.normal(size=shape)
    return rng.normal(size=shape) * (1.6 if name == "output.weight" else 1.0) / shape[-1] ** 0.5


def _shapes(model: TinyModel) -> list[tuple[str, tuple[int, ...]]]:
    n, rank, heads = model.hidden, 8, model.hidden // model.head_dim
    shapes = {"token_embd.weight": (model.n_vocab, n), "output.weight": (model.n_vocab, n)}
    shapes |= dict.fromkeys(
        ("token_embd_norm.weight", "token_embd_norm.bias", "output_norm.weight", "output_norm.bias"), (n,)
    )
    for layer in range(model.n_layers):
        own: dict[str, tuple[int, ...]] = {
            f"{name}.{part}": (n,)
            for name in ("attn_norm", "attn_norm_2", "time_mix_ln")
            for part in ("weight", "bias")
        }
        square = ["time_mix_receptance", "time_mix_key", "time_mix_value", "time_mix_output"]
        own |= {"channel_mix_key.weight": (model.ffn, n), "channel_mix_value.weight": (n, model.ffn)}
        own |= {"channel_mix_lerp_k.weight": (1, 1, n)}
        if model.arch == "rwkv6":
            square += ["time_mix_gate", "channel_mix_receptance"]
            own |= {"channel_mix_lerp_r.weight": (1, 1, n), "time_mix_lerp_x.weight": (1, 1, n)}
            own |= {"time_mix_lerp_fused.weight": (5, 1, 1, n), "time_mix_first.weight": (heads, model.head_dim)}
            own |= {"time_mix_w1.weight": (5 * rank, n), "time_mix_w2.weight": (5, n, rank)}
            own |= {"time_mix_decay.weight": (n,), "time_mix_decay_w1.weight": (rank, n)}
            own |= {"time_mix_decay_w2.weight": (n, rank)}
        else:
            own |= {"time_mix_lerp_fused.weight": (6, 1, 1, n)}
            own |= {f"time_mix_{name}.weight": (n,) for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k")}
            own |= {f"time_mix_{name}1.weight": (rank, n) for name in "wavg"}
            own |= {f"time_mix_{name}2.weight": (n, rank) for name in "wavg"}
        own |= {f"{name}.weight": (n, n) for name in square}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    return list(shapes.items())
