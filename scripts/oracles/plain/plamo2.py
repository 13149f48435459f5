"""PLaMo 2, whose file has the offsets of norms added to their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scripts.oracles.plain.decoder import PROGRAMS, Array, PlainDecoder, Shapes, rms, sigmoid

if TYPE_CHECKING:
    from scripts.oracles.tiny.model import TinyModel


def logits(of: PlainDecoder, tokens: list[int]) -> Array:
    """The logits of every position, float64 [tokens, vocab]."""
    x = of["token_embd"][tokens]
    for layer, kv_heads in enumerate(of.model.layer_kv_heads):
        prefix = f"blk.{layer}"
        h = rms(x) * of[f"{prefix}.attn_norm"]
        h = attention(of, prefix, h, kv_heads) if kv_heads else mamba(of, prefix, h)
        x = x + rms(h) * of[f"{prefix}.post_attention_norm"]
        gate, up = np.split(of.linear(rms(x) * of[f"{prefix}.ffn_norm"], f"{prefix}.ffn_up"), 2, axis=1)
        h = of.linear(gate * sigmoid(gate) * up, f"{prefix}.ffn_down")
        x = x + rms(h) * of[f"{prefix}.post_ffw_norm"]
    return of.linear(rms(x) * of["output_norm"], "output")


def attention(of: PlainDecoder, prefix: str, h: Array, kv_heads: int) -> Array:
    """Grouped-query attention with norms of each head, whose halves rotate together."""
    heads, size, n = of.model.heads, of.model.head_dim, len(h)
    parts = np.split(of.linear(h, f"{prefix}.attn_qkv"), (heads * size, (heads + kv_heads) * size), axis=1)
    q, k, v = (part.reshape(n, -1, size) for part in parts)
    angles = np.arange(n)[:, None, None] * of.model.theta ** (-np.arange(0, size, 2) / size)
    turns = np.exp(1j * angles)

    def rotated(x: Array) -> Array:
        turned = (x[..., : size // 2] + 1j * x[..., size // 2 :]) * turns
        return np.concatenate([turned.real, turned.imag], axis=-1)

    q, k = (rotated(rms(x) * of[f"{prefix}.attn_{name}_norm"]) for x, name in ((q, "q"), (k, "k")))
    k, v = (np.repeat(x, heads // kv_heads, axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / size**0.5
    scores = np.exp(np.where(np.tri(n, dtype=bool), scores, -np.inf))
    scores /= scores.sum(axis=-1, keepdims=True)
    return of.linear(np.einsum("hqk,khd->qhd", scores, v).reshape(n, -1), f"{prefix}.attn_output")


def mamba(of: PlainDecoder, prefix: str, h: Array) -> Array:
    """A scan of one decay per head, whose step, B and C come from the convolved channels."""
    a, d, bias = of[f"{prefix}.ssm_a"], of[f"{prefix}.ssm_d"], of[f"{prefix}.ssm_dt.bias"]
    z, x = np.split(of.linear(h, f"{prefix}.ssm_in").reshape(len(h), len(a), -1), 2, axis=2)
    flat, taps = x.reshape(len(h), -1), of[f"{prefix}.ssm_conv1d"]
    padded = np.concatenate([np.zeros((taps.shape[1] - 1, flat.shape[1])), flat])
    flat = sum(padded[j : j + len(h)] * taps[:, j] for j in range(taps.shape[1]))
    flat = flat * sigmoid(flat)
    size = len(of[f"{prefix}.ssm_b_norm"])
    b, c, dt = np.split(of.linear(flat, f"{prefix}.ssm_x"), (size, 2 * size), axis=1)
    b, c, dt = (rms(y) * of[f"{prefix}.ssm_{name}_norm"] for y, name in ((b, "b"), (c, "c"), (dt, "dt")))
    steps = np.logaddexp(0, of.linear(dt, f"{prefix}.ssm_dt") + bias)
    x, state, out = flat.reshape(x.shape), np.zeros((*x.shape[1:], size)), []
    for t in range(len(h)):
        state = state * np.exp(steps[t] * a)[:, None, None]
        state = state + np.einsum("h,hp,n->hpn", steps[t], x[t], b[t])
        out.append(state @ c[t] + d[:, None] * x[t])
    y = np.array(out) * z * sigmoid(z)
    return of.linear(y.reshape(len(h), -1), f"{prefix}.ssm_out")


def shapes(model: TinyModel) -> Shapes:
    n, keys, rank, inner = model.hidden, model.keys, 64, model.keys["ssm.inner_size"]
    state, ssm_heads = keys["ssm.state_size"], keys["ssm.time_step_rank"]
    found: Shapes = {
        "token_embd.weight": (model.n_vocab, n),
        "output.weight": (model.n_vocab, n),
        "output_norm.weight": (n,),
    }
    for layer, kv_heads in enumerate(model.layer_kv_heads):
        own = {"attn_norm.weight": (n,), "post_attention_norm": (n,), "ffn_norm.weight": (n,), "post_ffw_norm": (n,)}
        own |= {"ffn_up.weight": (2 * model.ffn, n), "ffn_down.weight": (n, model.ffn)}
        if kv_heads:
            own |= {"attn_qkv.weight": ((model.heads + 2 * kv_heads) * model.head_dim, n)}
            own |= {
                "attn_q_norm.weight": (model.heads, model.head_dim),
                "attn_k_norm.weight": (kv_heads, model.head_dim),
            }
            own |= {"attn_output.weight": (n, model.heads * model.head_dim)}
        else:
            own |= {"ssm_in.weight": (2 * inner, n), "ssm_conv1d.weight": (inner, keys["ssm.conv_kernel"])}
            own |= {"ssm_x.weight": (2 * state + rank, inner), "ssm_dt.weight": (ssm_heads, rank)}
            own |= dict.fromkeys(("ssm_dt.bias", "ssm_a", "ssm_d"), (ssm_heads,))
            own |= {
                "ssm_b_norm": (state,),
                "ssm_c_norm": (state,),
                "ssm_dt_norm": (rank,),
                "ssm_out.weight": (n, inner),
            }
        found |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    return found


PROGRAMS["plamo2"] = logits, shapes
