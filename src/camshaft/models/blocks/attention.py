"""Attention of queries to keys and values: their projections, norms and rotation, by the options of a family's row and file."""

from __future__ import annotations

import numpy as np

from camshaft.errors import ModelError
from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.transformer import Attention, TokenBatch, alibi_slopes, head_norm, logit_rows, rotate
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.experts_config import WITHOUT_NORMS
from camshaft.models.families import FAMILIES, Family


def attention(
    h: Tensor, layer: int, family: Family, config: ModelConfig, file: Checkpoint, batch: TokenBatch, cache: Attention
) -> Tensor:
    """q, k and v of h, their norms, rotation, attention over the cache, output projection."""
    prefix = f"blk.{layer}"
    q, k, v = _projections(h, layer, family, config, file)
    gate = None
    if family.gated_attention == "joined":
        q, gate = _query_and_gate(q, config, batch)
    elif family.gated_attention:
        gate = file.linear(h, f"{prefix}.attn_gate", config.n_heads * config.head_dim)
    q = _turned(q, "q", config.n_heads, layer, config, file, batch)
    if k is not None:
        k = _turned(k, "k", config.n_kv_heads, layer, config, file, batch)
    q = _by_position(q, layer, family, config, batch)
    extras = {"sinks": file.vector(f"{prefix}.attn_sinks.weight", config.n_heads)} if family.sinks else {}
    if family.has_alibi(config.n_layers):
        extras["slopes"] = file.made("alibi_slopes", lambda: alibi_slopes(config.n_heads))
    y = cache.attend(q, k, v, layer, config, batch, extras)
    if gate is not None:
        y = F.sigmoid_multiply(y, logit_rows(gate, batch, f"{prefix}.gate_rows") if batch.is_last else gate)
    return file.linear(y, f"{prefix}.attn_output", config.dim, bias=family.biases in ("attention", "all"))


def _query_and_gate(joined: Tensor, config: ModelConfig, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """The queries, and the gates of what they find; a head has both side by side."""
    graph, tokens = batch.ids.graph, joined.shape[0]
    assert graph is not None
    heads = graph.reshape(joined, (tokens, config.n_heads, 2 * config.head_dim))
    q, gate = F.split(heads, axis=2, sizes=(config.head_dim, config.head_dim))
    width = config.n_heads * config.head_dim
    return graph.reshape(q, (tokens, width)), graph.reshape(gate, (tokens, width))


def _projections(
    h: Tensor, layer: int, family: Family, config: ModelConfig, file: Checkpoint
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """q, k and v; no k and v in a layer that reads those of another."""
    prefix = f"blk.{layer}"
    width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    may_be_fused = family.gated_attention != "joined"  # whose files have a tensor of this name for recurrent layers
    fused = family.fused in ("qkv", "all") or (may_be_fused and f"{prefix}.attn_qkv.weight" in file)
    has_bias = f"{prefix}.attn_{'qkv' if fused else 'q'}.bias" in file
    bias = family.biases in ("qkv", "attention", "all") or (family.biases == "file" and has_bias)
    if fused:
        joined = _clamped(file.linear(h, f"{prefix}.attn_qkv", width + 2 * kv_width, bias=bias), config)
        q, k, v = F.split(joined, axis=1, sizes=(width, kv_width, kv_width))
        return q, k, v
    q_width = 2 * width if family.gated_attention == "joined" else width
    q = _clamped(file.linear(h, f"{prefix}.attn_q", q_width, bias=bias), config)
    if config.layers[layer].shares >= 0:
        return q, None, None
    k = _clamped(file.linear(h, f"{prefix}.attn_k", kv_width, bias=bias), config)
    if not family.norms_values:
        return q, k, _clamped(file.linear(h, f"{prefix}.attn_v", kv_width, bias=bias), config)
    v = file.linear(h, f"{prefix}.attn_v", kv_width) if f"{prefix}.attn_v.weight" in file else k
    return q, k, head_norm(v, file.ones(config.head_dim), config.n_kv_heads, config.norm_eps)


def _clamped(x: Tensor, config: ModelConfig) -> Tensor:
    """x, no further from 0 than the file allows."""
    return F.clip(x, -config.qkv_clamp, config.qkv_clamp) if config.qkv_clamp else x


def _by_position(q: Tensor, layer: int, family: Family, config: ModelConfig, batch: TokenBatch) -> Tensor:
    """q times 1 + temperature_scale ln(1 + floor(position / temperature_context)), where the file has such a scale; in families
    with a temperature positions count from 1, and layers that rotate have no scale."""
    if not config.temperature_scale or (family.temperature and config.layers[layer].rope):
        return q
    positions = F.cast(batch.positions, to="f32")
    positions = F.add(positions, 1.0) if family.temperature else positions
    periods = F.floor(F.divide(positions, float(config.temperature_context)))
    scale = F.add(F.multiply(F.log1p(periods), config.temperature_scale), 1.0)
    return F.multiply(q, scale.reshape((q.shape[0], 1)))


def _turned(
    x: Tensor, part: str, heads: int, layer: int, config: ModelConfig, file: Checkpoint, batch: TokenBatch
) -> Tensor:
    """Queries or keys [T, heads * head_dim], normed and rotated, in the family's order."""
    prefix, rope, family = f"blk.{layer}", config.layers[layer].rope, FAMILIES[config.architecture]
    norm_name, rope_name = f"{prefix}.attn_{part}_norm", f"{prefix}.rope_{part}"
    if family.norms_rotated:
        x = rotate(x, rope, heads, config.head_dim, batch, family.pairing, rope_name)
        return _query_key_norm(x, norm_name, heads, family, config, file)
    if family.qk_norm == "bare":
        is_normed = rope and (config.experts is None or config.experts.n != WITHOUT_NORMS)
        x = head_norm(x, file.ones(config.head_dim), heads, config.norm_eps) if is_normed else x
    else:
        x = _query_key_norm(x, norm_name, heads, family, config, file)
    return rotate(x, rope, heads, config.head_dim, batch, family.pairing, rope_name)


def _query_key_norm(x: Tensor, name: str, heads: int, family: Family, config: ModelConfig, file: Checkpoint) -> Tensor:
    """rms_norm of each head of [T, heads * head_dim], or of whole rows, in families and files with such norms."""
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
