"""The decoder of every family: attention or recurrent layers and feed-forward blocks with residuals, by its row and its file.

Blocks of grouped-query attention with rotary embedding and a gated feed-forward (Touvron et al., 2023), dense or a mixture of
experts (Jiang et al., 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import Experts, ModelConfig
from camshaft.models.families import FAMILIES, Family
from camshaft.models.recurrent import recurrent
from camshaft.models.transformer import Attention, LayerState, TokenBatch, head_norm, logit_rows, rotate


def decoder(
    config: ModelConfig, file: Checkpoint, batch: TokenBatch, caches: Sequence[Attention | LayerState]
) -> Tensor:
    """Adds embedding, layers with residuals, final norm and output projection; returns the logits f32 [R, vocab].

    In the last layer, everything after the attention is computed only for the rows with logits. ModelError for a tensor that is
    missing or has another shape.
    """
    family = FAMILIES[config.architecture]
    embeddings = file.tensor("token_embd.weight", config.vocab_size, config.dim)
    x = _scaled(F.embedding(batch.ids, embeddings, to="f32"), config.embedding_scale)
    for layer, cache in enumerate(caches):
        prefix, is_last = f"blk.{layer}", layer == len(caches) - 1
        h = x if family.norms == "post" else _norm(x, f"{prefix}.attn_norm", config, file)
        here = replace(batch, is_last=is_last)
        if isinstance(cache, Mapping):
            y = recurrent(h, layer, config, file, here, cache)
        else:
            y = _attention(h, layer, family, config, file, here, cache)
        x = logit_rows(x, batch, f"{prefix}.rows") if is_last else x
        x = _add(x, y, f"{prefix}.post_attention_norm", f"{prefix}.attn_residual", config, file)
        if not family.feed_forward:
            continue
        h = x if family.norms == "post" else _norm(x, f"{prefix}.{family.ffn_norm}", config, file)
        y = _feed_forward(h, prefix, family, config, file)
        x = _add(x, y, f"{prefix}.post_ffw_norm", f"{prefix}.ffn_residual", config, file)
    x = F.rms_norm(x, file.vector(f"{family.output_norm}.weight", config.dim), eps=config.norm_eps)
    logits = file.linear(x, "output" if "output.weight" in file else "token_embd", config.vocab_size)
    logits = _scaled(logits, config.logit_scale)
    return F.softcap(logits, cap=config.logit_softcap) if config.logit_softcap else logits


def _add(x: Tensor, y: Tensor, norm: str, name: str, config: ModelConfig, file: Checkpoint) -> Tensor:
    """x + y, where y is normed first in families that norm after a block, and scaled where the file says so."""
    if FAMILIES[config.architecture].norms != "pre":
        y = _norm(y, norm, config, file)
    total: Tensor = F.add(x, _scaled(y, config.residual_scale), name=name)
    return total


def _attention(
    h: Tensor, layer: int, family: Family, config: ModelConfig, file: Checkpoint, batch: TokenBatch, cache: Attention
) -> Tensor:
    """q, k and v of h, their norms, rotation, attention over the cache, output projection."""
    prefix, rope = f"blk.{layer}", config.layers[layer].rope
    q, k, v = _projections(h, prefix, family, config, file)
    gate = None
    if family.gated_attention:
        q, gate = _query_and_gate(q, config, batch)
    if family.qk_norm:
        q = _query_key_norm(q, f"{prefix}.attn_q_norm", config.n_heads, family, config, file)
        k = _query_key_norm(k, f"{prefix}.attn_k_norm", config.n_kv_heads, family, config, file)
    q = rotate(q, rope, config.n_heads, config.head_dim, batch, family.pairing, f"{prefix}.rope_q")
    k = rotate(k, rope, config.n_kv_heads, config.head_dim, batch, family.pairing, f"{prefix}.rope_k")
    y = cache.attend(q, k, v, layer, config, batch)
    if gate is not None:
        y = F.sigmoid_multiply(y, logit_rows(gate, batch, f"{prefix}.gate_rows") if batch.is_last else gate)
    return file.linear(y, f"{prefix}.attn_output", config.dim)


def _query_and_gate(joined: Tensor, config: ModelConfig, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """The queries, and the gates of what they find; a head has both side by side."""
    graph, tokens = batch.ids.graph, joined.shape[0]
    assert graph is not None
    heads = graph.reshape(joined, (tokens, config.n_heads, 2 * config.head_dim))
    q, gate = F.split(heads, axis=2, sizes=(config.head_dim, config.head_dim))
    width = config.n_heads * config.head_dim
    return graph.reshape(q, (tokens, width)), graph.reshape(gate, (tokens, width))


def _projections(
    h: Tensor, prefix: str, family: Family, config: ModelConfig, file: Checkpoint
) -> tuple[Tensor, Tensor, Tensor]:
    width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    if family.fused:
        joined = file.linear(h, f"{prefix}.attn_qkv", width + 2 * kv_width)
        q, k, v = F.split(joined, axis=1, sizes=(width, kv_width, kv_width))
        return q, k, v
    q_width = 2 * width if family.gated_attention else width
    q = file.linear(h, f"{prefix}.attn_q", q_width, bias=family.qkv_bias)
    k = file.linear(h, f"{prefix}.attn_k", kv_width, bias=family.qkv_bias)
    v = file.linear(h, f"{prefix}.attn_v", kv_width, bias=family.qkv_bias)
    return q, k, v


def _query_key_norm(x: Tensor, name: str, heads: int, family: Family, config: ModelConfig, file: Checkpoint) -> Tensor:
    """rms_norm of each head of [T, heads * head_dim], or of whole rows."""
    if family.qk_norm == "head":
        return head_norm(x, file.vector(f"{name}.weight", config.head_dim), heads, config.norm_eps)
    normed: Tensor = F.rms_norm(x, file.vector(f"{name}.weight", heads * config.head_dim), eps=config.norm_eps)
    return normed


def _feed_forward(h: Tensor, prefix: str, family: Family, config: ModelConfig, file: Checkpoint) -> Tensor:
    """down(act(gate(h)) * up(h)), of one feed-forward or of the chosen experts."""
    if config.experts is not None:
        return _mixture(h, prefix, config.experts, family, config, file)
    if family.fused:
        joined = file.linear(h, f"{prefix}.ffn_up", 2 * config.ffn_dim)
        gate, up = F.split(joined, axis=1, sizes=(config.ffn_dim, config.ffn_dim))
    else:
        gate = file.linear(h, f"{prefix}.ffn_gate", config.ffn_dim)
        up = file.linear(h, f"{prefix}.ffn_up", config.ffn_dim)
    return file.linear(_activated(gate, up, f"{prefix}.ffn_act", family), f"{prefix}.ffn_down", config.dim)


def _activated(gate: Tensor, up: Tensor, name: str, family: Family) -> Tensor:
    """act(gate) * up."""
    made: Tensor = F.function(f"{family.activation}_multiply")(gate, up, name=name)
    return made


def _mixture(h: Tensor, prefix: str, experts: Experts, family: Family, config: ModelConfig, file: Checkpoint) -> Tensor:
    """The chosen experts' sum by weight, and the shared expert, times the sigmoid of its gate where the file has one."""
    scores = file.linear(h, f"{prefix}.ffn_gate_inp", experts.n)
    weights, chosen = F.moe_softmax_topk(scores, top_k=experts.n_used, normalize=family.normalizes_experts)
    inner = (experts.n, experts.dim, config.dim)
    gate, up = (file.tensor(f"{prefix}.ffn_{name}_exps.weight", *inner) for name in ("gate", "up"))
    down = file.tensor(f"{prefix}.ffn_down_exps.weight", experts.n, config.dim, experts.dim)
    y: Tensor = F.moe_experts(h, gate, up, down, chosen, weights, act=family.activation)
    return F.add(y, _shared(h, prefix, experts, family, config, file)) if experts.shared_dim else y


def _shared(h: Tensor, prefix: str, experts: Experts, family: Family, config: ModelConfig, file: Checkpoint) -> Tensor:
    gate = file.linear(h, f"{prefix}.ffn_gate_shexp", experts.shared_dim)
    up = file.linear(h, f"{prefix}.ffn_up_shexp", experts.shared_dim)
    y = file.linear(_activated(gate, up, f"{prefix}.ffn_act_shexp", family), f"{prefix}.ffn_down_shexp", config.dim)
    name = f"{prefix}.ffn_gate_inp_shexp.weight"
    if name not in file:
        return y
    gate = F.matmul(h, file.graph.reshape(file.vector(name, config.dim), (1, config.dim)), transpose_b=True)
    return F.multiply(y, F.sigmoid(gate))


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1 else F.multiply(x, scale)


def _norm(x: Tensor, name: str, config: ModelConfig, file: Checkpoint) -> Tensor:
    """rms_norm with the file's weight `name`.weight."""
    result: Tensor = F.rms_norm(x, file.vector(f"{name}.weight", config.dim), eps=config.norm_eps, name=name)
    return result
