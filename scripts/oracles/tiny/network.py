"""The networks of tiny models, with all parameters drawn, and what they say: by transformers, or a program of `plain`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import transformers

from scripts.oracles.plain import deci, plamo2, rwkv, smallthinker  # noqa: F401 - their programs
from scripts.oracles.plain.decoder import PROGRAMS, PlainDecoder, build_plain
from scripts.oracles.tiny.model import ADDED, N_TOKENS, TEXT_CONFIGS, TinyModel
from scripts.oracles.tiny.vocabulary import N_VOCAB


def build(model: TinyModel, seed: int) -> Any:
    """The transformers model with every parameter drawn at random, to values that bfloat16 represents (they pack well)."""
    if model.arch in PROGRAMS:
        return build_plain(model, seed)
    kind = getattr(transformers, f"{model.family}{'Text' if model.family in TEXT_CONFIGS else ''}Config")
    rope = {**model.rope, "rope_theta": model.theta}
    if model.family in ("Gemma3", "Gemma3n", "Olmo3", "Mellum"):
        rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    if model.family == "Gemma4":
        rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}
    config = kind(
        **{
            "vocab_size": model.n_vocab,
            "hidden_size": model.hidden,
            "intermediate_size": model.ffn,
            "num_hidden_layers": model.n_layers,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.kv_heads,
            **({} if model.family in ("Falcon", "Dbrx") else {"head_dim": model.head_dim}),
            "max_position_embeddings": 512,
            **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"), 1e-5),
            "tie_word_embeddings": model.tied,
            "rope_parameters": rope,
            "attn_implementation": "eager",
            "experts_implementation": "eager",
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 2),
            **({"sliding_window": None} if model.family == "Mistral" else {}),
            **model.options,
        }
    )
    head = "LMHeadModel" if model.family == "GPT2" else "ForCausalLM"
    network = getattr(transformers, f"{model.family}{head}")(config).eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        biases = (
            (n, b) for n, b in network.named_buffers() if n.endswith(("correction_bias", "expert_bias", "layer_scalar"))
        )
        for name, parameter in (*network.named_parameters(), *biases):
            drawn = _draw(name, parameter.shape, model, generator)
            parameter.copy_(drawn.to(getattr(torch, model.values)).float())
    return network


def _draw(name: str, shape: torch.Size, model: TinyModel, generator: torch.Generator) -> torch.Tensor:
    name = name.replace("norm_attn_norm.", "")  # Dbrx's attention and its norms
    if "A_log" in name:
        return torch.rand(shape, generator=generator) * 3 - 2
    if name.endswith((".D", "dt_bias", "dt_proj.bias")):
        return torch.randn(shape, generator=generator)
    if "conv1d" in name and name.endswith("weight"):
        return torch.randn(shape, generator=generator) * 1.5 / math.sqrt(shape[-1])
    if name.endswith("proj.bias") and model.arch == "glm4moe":
        return torch.randn(shape, generator=generator) / 3
    if "modality_router" in name:
        return torch.randn(shape, generator=generator) * math.sqrt(shape[-1])  # what it sees is divided by its width
    if name.endswith("correct_output_scale"):
        return torch.rand(shape, generator=generator) + 0.5
    if name.endswith("bias") and model.has_layer_norm:
        return torch.randn(shape, generator=generator) / 3  # else the logits of all positions are much the same
    if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
        return torch.rand(shape, generator=generator) + 0.5
    if "norm" in name or ".ln_" in name:
        # of some families a norm's weight is what is added to 1
        added = (model.arch.startswith(("qwen35", "qwen3next")) and "linear_attn" not in name) or model.arch in ADDED
        return torch.rand(shape, generator=generator) + (-0.5 if added else 0.5)
    values = torch.randn(shape, generator=generator)
    if model.arch == "phimoe" and "router" in name:
        return values[:1] * 0.5 + values / 16  # scores are so close that several count
    if name.endswith(("correction_bias", "expert_bias")):
        return values / 4  # scores of experts differ by about as much
    if name.endswith(("bias", "sinks")):
        return values
    if "gate_up_proj" in name and model.family == "GptOss":
        return values * 3 / math.sqrt(shape[1])  # some are clamped
    if any(word in name for word in ("embed_tokens", "wte", "wpe", "embed_in", "word_embeddings")):
        return values * (0.4 if model.tied and model.family not in ("Starcoder2", "GPT2", "Falcon") else 1.0)
    gain = (
        1.6
        if any(word in name for word in ("q_proj", "k_proj", "lm_head", "embed_out", "c_attn", "query_key"))
        else 1.0
    )
    return values * gain / math.sqrt(shape[0 if model.family == "GPT2" else -1])


def sequence(seed: int, n_tokens: int = N_TOKENS, n_vocab: int = N_VOCAB) -> list[int]:
    """Token ids, drawn over the whole vocabulary."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, n_vocab, n_tokens)]


def logits(network: Any, tokens: list[int]) -> np.ndarray:
    """The logits of every position, float32 [n, vocab], computed in float64."""
    if isinstance(network, PlainDecoder):
        return network.logits(tokens).astype(np.float32)
    with torch.no_grad():
        return network.double()(torch.tensor([tokens])).logits[0].numpy().astype(np.float32)
