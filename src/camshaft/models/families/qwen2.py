"""Qwen2 and Qwen2.5: Llama's block with biases on q, k and v and NeoX rotary pairing (Yang et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.families.llama import decoder, norm
from camshaft.models.transformer import LayerCache, TokenBatch, attend, rotate

PAIRING = "neox"


def build(config: ModelConfig, file: Checkpoint, batch: TokenBatch, caches: Sequence[LayerCache]) -> Tensor:
    """Return the logits f32 [R, vocab] of the batch's rows."""
    return decoder(config, file, batch, caches, attention)


def attention(
    x: Tensor, prefix: str, config: ModelConfig, file: Checkpoint, batch: TokenBatch, cache: LayerCache
) -> Tensor:
    """Norm, q, k, v with biases, rotation, attention over the cache, output projection."""
    width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    h = norm(x, f"{prefix}.attn_norm", config, file)
    q = file.linear(h, f"{prefix}.attn_q", width, bias=True)
    k = file.linear(h, f"{prefix}.attn_k", kv_width, bias=True)
    v = file.linear(h, f"{prefix}.attn_v", kv_width, bias=True)
    q = rotate(q, config.n_heads, config, batch, PAIRING, f"{prefix}.rope_q")
    k = rotate(k, config.n_kv_heads, config, batch, PAIRING, f"{prefix}.rope_k")
    return file.linear(attend(q, k, v, prefix, config, batch, cache), f"{prefix}.attn_output", config.dim)
