"""Qwen3: Llama's block with an rms_norm on every head of q and k before the NeoX rotation (Yang et al., 2025)."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.families.llama import decoder, norm
from camshaft.models.transformer import LayerCache, TokenBatch, attend, head_norm, rotate

PAIRING = "neox"


def build(config: ModelConfig, file: Checkpoint, batch: TokenBatch, caches: Sequence[LayerCache]) -> Tensor:
    """Return the logits f32 [R, vocab] of the batch's rows."""
    return decoder(config, file, batch, caches, attention)


def attention(
    x: Tensor, prefix: str, config: ModelConfig, file: Checkpoint, batch: TokenBatch, cache: LayerCache
) -> Tensor:
    """Norm, q, k, v, head norms, rotation, attention over the cache, output projection."""
    width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    h = norm(x, f"{prefix}.attn_norm", config, file)
    q = file.linear(h, f"{prefix}.attn_q", width)
    k = file.linear(h, f"{prefix}.attn_k", kv_width)
    v = file.linear(h, f"{prefix}.attn_v", kv_width)
    q = head_norm(q, file.vector(f"{prefix}.attn_q_norm.weight", config.head_dim), config.n_heads, config)
    k = head_norm(k, file.vector(f"{prefix}.attn_k_norm.weight", config.head_dim), config.n_kv_heads, config)
    q = rotate(q, config.n_heads, config, batch, PAIRING, f"{prefix}.rope_q")
    k = rotate(k, config.n_kv_heads, config, batch, PAIRING, f"{prefix}.rope_k")
    return file.linear(attend(q, k, v, prefix, config, batch, cache), f"{prefix}.attn_output", config.dim)
