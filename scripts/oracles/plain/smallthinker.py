"""SmallThinker: experts with relu, chosen by what a layer begins with; every fourth layer sees all and does not rotate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scripts.oracles.plain.decoder import PROGRAMS, Array, PlainDecoder, Shapes, attended, rms, rotated, sigmoid

if TYPE_CHECKING:
    from scripts.oracles.tiny.model import TinyModel


def logits(of: PlainDecoder, tokens: list[int]) -> Array:
    """The logits of every position, float64 [tokens, vocab]."""
    x, model = of["token_embd"][tokens], of.model
    for layer in range(model.n_layers):
        p, is_local = f"blk.{layer}", layer % 4 != 0
        scores = of.linear(x, f"{p}.ffn_gate_inp")
        h = rms(x) * of[f"{p}.attn_norm"]
        q, k, v = (of.heads(of.linear(h, f"{p}.attn_{part}")) for part in "qkv")
        if is_local:
            q, k = (rotated(part, model.theta, neighbours=False) for part in (q, k))
        window = model.keys["attention.sliding_window"] if is_local else 0
        x = x + of.linear(attended(q, k, v, model.head_dim**-0.5, window), f"{p}.attn_output")
        x = x + experts(of, p, rms(x) * of[f"{p}.ffn_norm"], sigmoid(scores))
    return of.linear(rms(x) * of["output_norm"], "output")


def experts(of: PlainDecoder, p: str, h: Array, scores: Array) -> Array:
    """The sum of the experts with the best scores, weighed by their share of these."""
    gate, up, down = (of[f"{p}.ffn_{part}_exps"] for part in ("gate", "up", "down"))
    y = np.zeros_like(h)
    for t, row in enumerate(scores):
        chosen = np.argsort(-row)[: of.model.keys["expert_used_count"]]
        for e in chosen:
            y[t] += row[e] / row[chosen].sum() * (down[e] @ (np.maximum(gate[e] @ h[t], 0) * (up[e] @ h[t])))
    return y


def shapes(model: TinyModel) -> Shapes:
    n, q, kv = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    n_experts, width = model.keys["expert_count"], model.keys["expert_feed_forward_length"]
    found: Shapes = {
        "token_embd.weight": (model.n_vocab, n),
        "output.weight": (model.n_vocab, n),
        "output_norm.weight": (n,),
    }
    own: Shapes = {"attn_norm.weight": (n,), "ffn_norm.weight": (n,), "attn_q.weight": (q, n)}
    own |= {"attn_k.weight": (kv, n), "attn_v.weight": (kv, n), "attn_output.weight": (n, q)}
    own |= {"ffn_gate_inp.weight": (n_experts, n), "ffn_down_exps.weight": (n_experts, n, width)}
    own |= {f"ffn_{part}_exps.weight": (n_experts, width, n) for part in ("gate", "up")}
    return found | {f"blk.{layer}.{name}": shape for layer in range(model.n_layers) for name, shape in own.items()}


PROGRAMS["smallthinker"] = logits, shapes
