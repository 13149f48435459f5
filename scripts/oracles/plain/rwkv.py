"""RWKV-6 and RWKV-7 a token at a time, with a matrix of values by keys for each head, as their own programs compute them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.oracles.plain.decoder import PROGRAMS, Array, PlainDecoder, Shapes, sigmoid, standard

if TYPE_CHECKING:
    from scripts.oracles.tiny.model import TinyModel

HEAD_EPS = 64e-5


def logits(of: PlainDecoder, tokens: list[int]) -> Array:
    """The logits of every position, float64 [tokens, vocab]."""
    mix = {"rwkv6": rwkv6, "rwkv7": rwkv7}[of.model.arch]
    x, first = of.layer_norm(of["token_embd"][tokens], "token_embd_norm"), None
    for layer in range(of.model.n_layers):
        prefix = f"blk.{layer}"
        h = of.layer_norm(x, f"{prefix}.attn_norm")
        y, first = mix(of, prefix, h, before(h), first)
        x = x + y
        h = of.layer_norm(x, f"{prefix}.attn_norm_2")
        x = x + channel_mix(of, prefix, h, before(h) - h)
        every = of.model.keys.get("rescale_every_n_layers", 0)
        x = x / 2 if every and (layer + 1) % every == 0 else x
    return of.linear(of.layer_norm(x, "output_norm"), "output")


def channel_mix(of: PlainDecoder, prefix: str, h: Array, change: Array) -> Array:
    k = np.maximum(of.linear(h + change * of[f"{prefix}.channel_mix_lerp_k"].ravel(), f"{prefix}.channel_mix_key"), 0)
    y = of.linear(k**2, f"{prefix}.channel_mix_value")
    if of.model.arch == "rwkv7":
        return y
    r = h + change * of[f"{prefix}.channel_mix_lerp_r"].ravel()
    return sigmoid(of.linear(r, f"{prefix}.channel_mix_receptance")) * y


def normed_heads(of: PlainDecoder, x: Array, prefix: str) -> Array:
    """The layer norm of each head of [tokens, heads, size], with weights of all."""
    y = standard(x, HEAD_EPS).reshape(len(x), -1)
    return y * of[f"{prefix}.time_mix_ln"] + of[f"{prefix}.time_mix_ln.bias"]


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
    y = normed_heads(of, np.array(out), prefix) * gate * sigmoid(gate)
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
    y = normed_heads(of, np.array(out), prefix) + own.reshape(len(h), -1)
    return of.linear(y * gate, f"{prefix}.time_mix_output"), v if first is None else first


def shapes(model: TinyModel) -> Shapes:
    n, rank, heads = model.hidden, 8, model.hidden // model.head_dim
    found: Shapes = {"token_embd.weight": (model.n_vocab, n), "output.weight": (model.n_vocab, n)}
    found |= dict.fromkeys(
        ("token_embd_norm.weight", "token_embd_norm.bias", "output_norm.weight", "output_norm.bias"), (n,)
    )
    for layer in range(model.n_layers):
        own: Shapes = {
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
        found |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    return found


PROGRAMS |= dict.fromkeys(("rwkv6", "rwkv7"), (logits, shapes))
