"""Qwen2 and Qwen2.5: Llama's block with biases on q, k and v and NeoX rotary pairing (Yang et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.llama import feed_forward, norm
from camshaft.models.transformer import LayerCache, TokenBatch, attend, rotate, wanted_rows

PAIRING = "neox"


def build(config: ModelConfig, file: Checkpoint, batch: TokenBatch, caches: Sequence[LayerCache]) -> Tensor:
    """Logits f32 [R, vocab] of the wanted rows."""
    embeddings = file.tensor("token_embd.weight", config.vocab_size, config.dim)
    x: Tensor = F.embedding(batch.ids, embeddings)
    for layer, cache in enumerate(caches):
        prefix = f"blk.{layer}"
        x = F.add(x, attention(x, prefix, config, file, batch, cache), name=f"{prefix}.attn_residual")
        x = F.add(x, feed_forward(x, prefix, config, file), name=f"{prefix}.ffn_residual")
    x = F.rms_norm(wanted_rows(x, batch), file.vector("output_norm.weight", config.dim), eps=config.norm_eps)
    return file.linear(x, "output" if "output.weight" in file else "token_embd", config.vocab_size)


def attention(
    x: Tensor, prefix: str, config: ModelConfig, file: Checkpoint, batch: TokenBatch, cache: LayerCache
) -> Tensor:
    """Norm, q, k, v with biases, rotation, attention over the cache, output projection."""
    width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    h = norm(x, f"{prefix}.attn_norm", config, file)
    q = file.linear(h, f"{prefix}.attn_q", width, bias=True)
    k = file.linear(h, f"{prefix}.attn_k", kv_width, bias=True)
    v = file.linear(h, f"{prefix}.attn_v", kv_width, bias=True)
    q = rotate(q, config.n_heads, config, batch, PAIRING)
    k = rotate(k, config.n_kv_heads, config, batch, PAIRING)
    return file.linear(attend(q, k, v, config, batch, cache), f"{prefix}.attn_output", config.dim)
