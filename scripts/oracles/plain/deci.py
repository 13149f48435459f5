"""Llama-Nemotron: layers with attention, with a projection in its place or with neither, and with a feed-forward or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.oracles.plain.decoder import PROGRAMS, Array, PlainDecoder, Shapes, attended, rms, rotated, sigmoid

if TYPE_CHECKING:
    from scripts.oracles.tiny.model import TinyModel


def logits(of: PlainDecoder, tokens: list[int]) -> Array:
    """The logits of every position, float64 [tokens, vocab]."""
    x, theta = of["token_embd"][tokens], of.model.theta
    for layer, (heads, kv_heads, width) in enumerate(_sizes(of.model)):
        p = f"blk.{layer}"
        h = rms(x) * of[f"{p}.attn_norm"] if heads else x
        if heads and kv_heads:
            q, k, v = (of.heads(of.linear(h, f"{p}.attn_{part}")) for part in "qkv")
            q, k = (rotated(part, theta, neighbours=True) for part in (q, k))
            h = attended(q, k, v, of.model.head_dim**-0.5)
        x = x + of.linear(h, f"{p}.attn_output") if heads else x
        if width:
            h = rms(x) * of[f"{p}.ffn_norm"]
            gate = of.linear(h, f"{p}.ffn_gate")
            x = x + of.linear(gate * sigmoid(gate) * of.linear(h, f"{p}.ffn_up"), f"{p}.ffn_down")
    return of.linear(rms(x) * of["output_norm"], "output")


def _sizes(model: TinyModel) -> zip[tuple[int, int, int]]:
    """Of each layer the heads of queries and of keys, and the width of the feed-forward."""
    return zip(model.keys["attention.head_count"], model.layer_kv_heads, model.keys["feed_forward_length"], strict=True)


def shapes(model: TinyModel) -> Shapes:
    n, size = model.hidden, model.head_dim
    found: Shapes = {
        "token_embd.weight": (model.n_vocab, n),
        "output.weight": (model.n_vocab, n),
        "output_norm.weight": (n,),
    }
    for layer, (heads, kv_heads, width) in enumerate(_sizes(model)):
        own: Shapes = {"attn_norm.weight": (n,)} if heads else {}
        if heads:
            own |= {"attn_output.weight": (n, heads * size if kv_heads else n)}
        if heads and kv_heads:
            own |= {"attn_q.weight": (heads * size, n)}
            own |= {f"attn_{part}.weight": (kv_heads * size, n) for part in "kv"}
        if width:
            own |= {"ffn_norm.weight": (n,), "ffn_gate.weight": (width, n)}
            own |= {"ffn_up.weight": (width, n), "ffn_down.weight": (n, width)}
        found |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    return found


PROGRAMS["deci"] = logits, shapes
