"""The supported architectures, as options of one decoder: Llama, Qwen2, Qwen3.

Pre-norm blocks of grouped-query attention with rotary embedding and a SwiGLU feed-forward (Touvron et al., 2023). Qwen2 adds
biases on q, k and v (Yang et al., 2024), Qwen3 an rms_norm on every head of q and k (Yang et al., 2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig, architecture_name
from camshaft.models.transformer import LayerCache, TokenBatch, attend, head_norm, logit_rows, rotate


@dataclass(frozen=True)
class Architecture:
    """`pairing` of the rotary embedding ('interleaved': GGUF permutes q and k), biases on q, k, v, and norms on q and k heads."""

    pairing: str
    qkv_bias: bool = False
    head_norms: bool = False

    def build(self, config: ModelConfig, file: Checkpoint, batch: TokenBatch, caches: Sequence[LayerCache]) -> Tensor:
        """Adds embedding, layers with residuals, final norm and output projection; returns the logits f32 [R, vocab].

        In the last layer, everything after the attention is computed only for the rows with logits.
        """
        embeddings = file.tensor("token_embd.weight", config.vocab_size, config.dim)
        x: Tensor = F.embedding(batch.ids, embeddings, to="f32")
        for layer, cache in enumerate(caches):
            prefix, is_last = f"blk.{layer}", layer == len(caches) - 1
            attended = self._attention(x, prefix, config, file, replace(batch, is_last=is_last), cache)
            x = logit_rows(x, batch, f"{prefix}.rows") if is_last else x
            x = F.add(x, attended, name=f"{prefix}.attn_residual")
            x = F.add(x, _feed_forward(x, prefix, config, file), name=f"{prefix}.ffn_residual")
        x = F.rms_norm(x, file.vector("output_norm.weight", config.dim), eps=config.norm_eps)
        return file.linear(x, "output" if "output.weight" in file else "token_embd", config.vocab_size)

    def _attention(
        self, x: Tensor, prefix: str, config: ModelConfig, file: Checkpoint, batch: TokenBatch, cache: LayerCache
    ) -> Tensor:
        """Norm, q, k, v, rotation, attention over the cache, output projection."""
        width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        h = _norm(x, f"{prefix}.attn_norm", config, file)
        q = file.linear(h, f"{prefix}.attn_q", width, bias=self.qkv_bias)
        k = file.linear(h, f"{prefix}.attn_k", kv_width, bias=self.qkv_bias)
        v = file.linear(h, f"{prefix}.attn_v", kv_width, bias=self.qkv_bias)
        if self.head_norms:
            q = head_norm(q, file.vector(f"{prefix}.attn_q_norm.weight", config.head_dim), config.n_heads, config)
            k = head_norm(k, file.vector(f"{prefix}.attn_k_norm.weight", config.head_dim), config.n_kv_heads, config)
        q = rotate(q, config.n_heads, config, batch, self.pairing, f"{prefix}.rope_q")
        k = rotate(k, config.n_kv_heads, config, batch, self.pairing, f"{prefix}.rope_k")
        return file.linear(attend(q, k, v, prefix, config, batch, cache), f"{prefix}.attn_output", config.dim)


def _feed_forward(x: Tensor, prefix: str, config: ModelConfig, file: Checkpoint) -> Tensor:
    """down(silu(gate(h)) * up(h)), where h is the normed x."""
    h = _norm(x, f"{prefix}.ffn_norm", config, file)
    gate = file.linear(h, f"{prefix}.ffn_gate", config.ffn_dim)
    up = file.linear(h, f"{prefix}.ffn_up", config.ffn_dim)
    return file.linear(F.silu_multiply(gate, up, name=f"{prefix}.ffn_act"), f"{prefix}.ffn_down", config.dim)


def _norm(x: Tensor, name: str, config: ModelConfig, file: Checkpoint) -> Tensor:
    """rms_norm with the file's weight `name`.weight."""
    result: Tensor = F.rms_norm(x, file.vector(f"{name}.weight", config.dim), eps=config.norm_eps, name=name)
    return result


# By general.architecture in GGUF. "llama" is also SmolLM2, Llama 2 and 3, Mistral and TinyLlama.
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("interleaved"),
    "qwen2": Architecture("neox", qkv_bias=True),
    "qwen3": Architecture("neox", head_norms=True),
}


def architecture(metadata: Mapping[str, Any]) -> Architecture:
    """Returns the architecture of a file. Raises ModelError, naming it, if it is not supported."""
    return ARCHITECTURES[architecture_name(metadata)]
