"""Attention of queries to keys and values: their projections, norms and rotation, by the options of a family's row and file."""

from __future__ import annotations

import numpy as np

from camshaft.errors import ModelError
from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.layer import Layer
from camshaft.models.blocks.transformer import Attention, alibi_slopes, head_norm, rotate
from camshaft.models.config import ModelConfig
from camshaft.models.configs.experts import WITHOUT_NORMS


def attention(h: Tensor, layer: Layer, cache: Attention) -> Tensor:
    """q, k and v of h, their norms, rotation, attention over the cache, output projection."""
    family, config, file = layer.family, layer.config, layer.file
    q, k, v = _projections(h, layer)
    gate = None
    if family.gated_attention == "joined":
        q, gate = _query_and_gate(q, layer)
    elif family.gated_attention:
        gate = layer.linear(h, "attn_gate", config.n_heads * config.head_dim)
    q = _rotated(q, "q", config.n_heads, layer)
    if k is not None:
        k = _rotated(k, "k", config.n_kv_heads, layer)
    q = _scaled_by_position(q, layer)
    extras = {"sinks": layer.vector("attn_sinks.weight", config.n_heads)} if family.sinks else {}
    if family.has_alibi(config.n_layers):
        extras["slopes"] = file.made("alibi_slopes", lambda: alibi_slopes(config.n_heads))
    y = cache.attend(q, k, v, layer, extras)
    if gate is not None:
        y = F.sigmoid_multiply(y, layer.rows(gate, "gate_rows"))
    return layer.linear(y, "attn_output", config.dim, bias=family.biases in ("attention", "all"))


def _query_and_gate(joined: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """The queries, and the gates of their results; a head has both side by side."""
    graph, config, tokens = layer.file.graph, layer.config, joined.shape[0]
    heads = graph.reshape(joined, (tokens, config.n_heads, 2 * config.head_dim))
    q, gate = F.split(heads, axis=2, sizes=(config.head_dim, config.head_dim))
    width = config.n_heads * config.head_dim
    return graph.reshape(q, (tokens, width)), graph.reshape(gate, (tokens, width))


def _projections(h: Tensor, layer: Layer) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """q, k and v; no k and v in a layer that reads those of another."""
    family, config = layer.family, layer.config
    width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    may_be_fused = family.gated_attention != "joined"  # whose files have a tensor of this name for recurrent layers
    fused = family.fused in ("qkv", "all") or (may_be_fused and layer.has("attn_qkv.weight"))
    has_bias = layer.has(f"attn_{'qkv' if fused else 'q'}.bias")
    bias = family.biases in ("qkv", "attention", "all") or (family.biases == "file" and has_bias)
    if fused:
        joined = _clamped(layer.linear(h, "attn_qkv", width + 2 * kv_width, bias=bias), config)
        q, k, v = F.split(joined, axis=1, sizes=(width, kv_width, kv_width))
        return q, k, v
    q_width = 2 * width if family.gated_attention == "joined" else width
    q = _clamped(layer.linear(h, "attn_q", q_width, bias=bias), config)
    if layer.options.shares >= 0:
        return q, None, None
    k = _clamped(layer.linear(h, "attn_k", kv_width, bias=bias), config)
    if not family.norms_values:
        return q, k, _clamped(layer.linear(h, "attn_v", kv_width, bias=bias), config)
    v = layer.linear(h, "attn_v", kv_width) if layer.has("attn_v.weight") else k
    return q, k, head_norm(v, layer.file.ones(config.head_dim), config.n_kv_heads, config.norm_eps)


def _clamped(x: Tensor, config: ModelConfig) -> Tensor:
    """x, no further from 0 than the file allows."""
    return F.clip(x, -config.qkv_clamp, config.qkv_clamp) if config.qkv_clamp else x


def _scaled_by_position(q: Tensor, layer: Layer) -> Tensor:
    """q times 1 + temperature_scale ln(1 + floor(position / temperature_context)), if the file has such a scale. In families
    with a temperature positions count from 1, and layers that rotate have no scale."""
    family, config = layer.family, layer.config
    if not config.temperature_scale or (family.temperature and layer.options.rope):
        return q
    positions = F.cast(layer.batch.positions, to="f32")
    positions = F.add(positions, 1.0) if family.temperature else positions
    periods = F.floor(F.divide(positions, float(config.temperature_context)))
    scale = F.add(F.multiply(F.log1p(periods), config.temperature_scale), 1.0)
    return F.multiply(q, scale.reshape((q.shape[0], 1)))


def _rotated(x: Tensor, part: str, heads: int, layer: Layer) -> Tensor:
    """Queries or keys [T, heads * head_dim], normed and rotated, in the family's order."""
    config, family, rope = layer.config, layer.family, layer.options.rope

    def rotated(x: Tensor) -> Tensor:
        name = layer.name(f"rope_{part}")
        return rotate(x, rope, heads, config.head_dim, layer.batch, family.pairing, name)

    if family.norms_rotated:
        return _query_key_norm(rotated(x), part, heads, layer)
    if family.qk_norm == "bare":
        is_normed = rope and (config.experts is None or config.experts.n != WITHOUT_NORMS)
        x = head_norm(x, layer.file.ones(config.head_dim), heads, config.norm_eps) if is_normed else x
    else:
        x = _query_key_norm(x, part, heads, layer)
    return rotated(x)


def _query_key_norm(x: Tensor, part: str, heads: int, layer: Layer) -> Tensor:
    """rms_norm of each head of [T, heads * head_dim], or of whole rows, in families and files with such norms."""
    family, config, file = layer.family, layer.config, layer.file
    name = layer.name(f"attn_{part}_norm")
    has_norm = f"{name}.weight" in file
    if not family.qk_norm and has_norm:
        raise ModelError(f"the file has norms of q and k ({name}.weight), which are not run in {config.architecture}")
    if not family.qk_norm or (family.qk_norm == "file" and not has_norm):
        return x
    if family.qk_norm == "row":
        normed: Tensor = F.rms_norm(x, file.vector(f"{name}.weight", heads * config.head_dim), eps=config.norm_eps)
        return normed
    if family.qk_norm == "heads":
        w = file.converted(f"{name}.weight", (heads, config.head_dim), np.ravel)
        return F.multiply(head_norm(x, file.ones(config.head_dim), heads, config.norm_eps), w)
    return head_norm(x, file.vector(f"{name}.weight", config.head_dim), heads, config.norm_eps)
