"""Graph of Llama models: SmolLM2, Llama 2 and 3, Mistral, TinyLlama.

Pre-norm blocks of grouped-query attention with rotary embedding (interleaved pairs, as GGUF permutes q and k) and a SwiGLU
feed-forward (Touvron et al., 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.transformer import LayerCache, TokenBatch, attend, logit_rows, rotate

PAIRING = "interleaved"


AttentionBlock = Callable[[Tensor, str, ModelConfig, Checkpoint, TokenBatch, LayerCache], Tensor]


def build(config: ModelConfig, file: Checkpoint, batch: TokenBatch, caches: Sequence[LayerCache]) -> Tensor:
    """Return the logits f32 [R, vocab] of the batch's rows."""
    return decoder(config, file, batch, caches, attention)


def decoder(
    config: ModelConfig, file: Checkpoint, batch: TokenBatch, caches: Sequence[LayerCache], block: AttentionBlock
) -> Tensor:
    """Embedding, layers of attention `block` and feed-forward with residuals, final norm, output projection.

    In the last layer, everything after the attention is computed only for the rows with logits."""
    embeddings = file.tensor("token_embd.weight", config.vocab_size, config.dim)
    x: Tensor = F.embedding(batch.ids, embeddings)
    for layer, cache in enumerate(caches):
        prefix, is_last = f"blk.{layer}", layer == len(caches) - 1
        attended = block(x, prefix, config, file, replace(batch, is_last=is_last), cache)
        x = logit_rows(x, batch, f"{prefix}.rows") if is_last else x
        x = F.add(x, attended, name=f"{prefix}.attn_residual")
        x = F.add(x, feed_forward(x, prefix, config, file), name=f"{prefix}.ffn_residual")
    x = F.rms_norm(x, file.vector("output_norm.weight", config.dim), eps=config.norm_eps)
    return file.linear(x, "output" if "output.weight" in file else "token_embd", config.vocab_size)


def attention(
    x: Tensor, prefix: str, config: ModelConfig, file: Checkpoint, batch: TokenBatch, cache: LayerCache
) -> Tensor:
    """Norm, q, k, v, rotation, attention over the cache, output projection."""
    width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    h = norm(x, f"{prefix}.attn_norm", config, file)
    q = file.linear(h, f"{prefix}.attn_q", width)
    k = file.linear(h, f"{prefix}.attn_k", kv_width)
    v = file.linear(h, f"{prefix}.attn_v", kv_width)
    q = rotate(q, config.n_heads, config, batch, PAIRING, f"{prefix}.rope_q")
    k = rotate(k, config.n_kv_heads, config, batch, PAIRING, f"{prefix}.rope_k")
    return file.linear(attend(q, k, v, prefix, config, batch, cache), f"{prefix}.attn_output", config.dim)


def feed_forward(x: Tensor, prefix: str, config: ModelConfig, file: Checkpoint) -> Tensor:
    """down(silu(gate(h)) * up(h)), where h is the normed x."""
    h = norm(x, f"{prefix}.ffn_norm", config, file)
    gate = file.linear(h, f"{prefix}.ffn_gate", config.ffn_dim)
    up = file.linear(h, f"{prefix}.ffn_up", config.ffn_dim)
    return file.linear(F.silu_multiply(gate, up, name=f"{prefix}.ffn_act"), f"{prefix}.ffn_down", config.dim)


def norm(x: Tensor, name: str, config: ModelConfig, file: Checkpoint) -> Tensor:
    """rms_norm with the file's weight `name`.weight."""
    result: Tensor = F.rms_norm(x, file.vector(f"{name}.weight", config.dim), eps=config.norm_eps, name=name)
    return result
