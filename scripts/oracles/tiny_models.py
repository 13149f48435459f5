"""Tiny random models of each family, made and run by transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers

from scripts.oracles.plain import plamo2, rwkv  # noqa: F401 - their programs
from scripts.oracles.plain.decoder import PROGRAMS, PlainDecoder, build_plain
from scripts.oracles.tiny_vocabulary import N_VOCAB

N_TOKENS = 24
ORIGINAL_CONTEXT = 32
WINDOW = 7
NUMBERS_OF_8_BITS = "float8_e4m3fn"
# As few tokens keep the files small: their logits and embeddings are the greater part of them.
FEW = 96
SMALL: dict[str, Any] = {"values": NUMBERS_OF_8_BITS, "n_vocab": FEW}


@dataclass(frozen=True)
class TinyModel:
    """One model to make: a transformers class, sizes, and rope parameters in the words of transformers.

    `options` are more arguments of its config, `keys` more metadata of its GGUF file, under the architecture's prefix.
    `agreement`: how close llama.cpp's logits are (its gelu is a table of 16 bits); None where it computes another model.
    """

    name: str
    family: str  # the prefix of transformers' classes
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = False
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default"})
    theta: float = 10000.0
    n_layers: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    agreement: float | None = 1e-4
    layer_kv_heads: tuple[int, ...] = ()  # of each layer, where some have none
    n_tokens: int = N_TOKENS
    values: str = "bfloat16"  # the parameters are numbers of this dtype: those of 8 bits pack better
    row: str = ""  # its architecture in GGUF, where another model of the same family has the family's
    n_vocab: int = N_VOCAB  # the first ones of the vocabulary

    @property
    def arch(self) -> str:
        if self.row:
            return self.row
        if self.family == "NemotronH" and "expert_count" in self.keys:
            return "nemotron_h_moe"
        return ARCHITECTURES.get(self.family, self.family.lower())

    @property
    def has_layer_norm(self) -> bool:
        """Whether norms subtract the mean, and the key of their epsilon is another."""
        return self.arch in LAYER_NORMS


# transformers' family -> GGUF's architecture, where it is another name in lower case
ARCHITECTURES = {
    "Mistral": "llama",
    "Mixtral": "llama",
    "Gemma3": "gemma3",
    "Olmo3": "olmo2",
    "SeedOss": "seed_oss",
    "Qwen3Next": "qwen3next",
    "Qwen3_5": "qwen35",
    "Qwen3_5Moe": "qwen35moe",
    "GraniteMoeHybrid": "granitehybrid",
    "FalconMamba": "mamba",
    "GptOss": "gpt-oss",
    "Ministral3": "mistral3",
    "GPTNeoX": "gptneox",
    "Cohere": "command-r",
    "Glm4Moe": "glm4moe",
    "Ernie4_5": "ernie4_5",
    "Ernie4_5_Moe": "ernie4_5-moe",
    "HunYuanDenseV1": "hunyuan-dense",
    "Lfm2Moe": "lfm2moe",
    "DeepseekV2": "deepseek2",
    "NemotronH": "nemotron_h",
    "FalconH1": "falcon-h1",
    "Gemma4": "gemma4",
    "DeepseekV3": "deepseek2",
    "KimiLinear": "kimi-linear",
    "Gemma3n": "gemma3n",
    "MiniCPM3": "minicpm3",
    "Phi": "phi2",
    "Glm": "chatglm",
    "HunYuanMoEV1": "hunyuan-moe",
    "MiniMaxM2": "minimax-m2",
}

LAYER_NORMS = ("starcoder2", "stablelm", "gpt2", "gptneox", "falcon", "command-r", "cohere2", "rwkv6", "rwkv7")
LAYER_NORMS += ("phi2", "orion", "nemotron", "olmo", "dbrx")
# Those whose norms' weights are what is added to 1.
ADDED = ("gemma", "nemotron")
# Families whose config is of text and pictures, with one of text alone.
TEXT_CONFIGS = ("Gemma3", "Gemma3n", "Gemma4", "Qwen3_5", "Qwen3_5Moe")

LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0}
OLD = {"original_max_position_embeddings": ORIGINAL_CONTEXT}

# experts: four, of which two are chosen
MOE = {"num_experts": 4, "num_experts_per_tok": 2}
MOE_KEYS = {"expert_count": 4, "expert_used_count": 2}
LOCAL = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
LOCAL_KEYS = {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": [True, False]}
_FACTORS = {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [1.0 + 0.5 * i for i in range(8)]}
LONGROPE = {"rope_type": "longrope", **_FACTORS, "factor": 512 / 16, "original_max_position_embeddings": 16}

MODELS = (
    TinyModel("llama", "Llama", 64, 96, heads=4, kv_heads=2, head_dim=16),
    TinyModel("llama-tied", "Llama", 32, 64, heads=4, kv_heads=1, head_dim=16, tied=True),
    TinyModel(
        "llama-linear",
        "Llama",
        32,
        96,
        heads=2,
        kv_heads=2,
        head_dim=16,
        rope={"rope_type": "linear", "factor": 4.0},
        **SMALL,
    ),
    TinyModel(
        "llama3-rope",
        "Llama",
        32,
        64,
        heads=2,
        kv_heads=1,
        head_dim=32,
        rope={**LLAMA3_ROPE, **OLD},
        theta=500.0,
        **SMALL,
    ),
    TinyModel(
        "llama-yarn",
        "Llama",
        32,
        64,
        heads=2,
        kv_heads=1,
        head_dim=32,
        rope={**YARN_ROPE, **OLD},
        values=NUMBERS_OF_8_BITS,
    ),
    TinyModel("mistral", "Mistral", 32, 64, heads=6, kv_heads=2, head_dim=16, theta=1000.0, **SMALL),
    TinyModel("qwen2", "Qwen2", 64, 32, heads=4, kv_heads=2, head_dim=16),
    TinyModel(
        "qwen2-yarn", "Qwen2", 32, 96, heads=2, kv_heads=1, head_dim=16, tied=True, rope={**YARN_ROPE, **OLD}, **SMALL
    ),
    TinyModel("qwen3", "Qwen3", 32, 64, heads=4, kv_heads=2, head_dim=32, tied=True, theta=1e6),
    TinyModel(
        "gemma2",
        "Gemma2",
        32,
        64,
        agreement=0.05,
        heads=4,
        kv_heads=2,
        head_dim=16,
        tied=True,
        options={**LOCAL, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 20.0},
        keys={**LOCAL_KEYS, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 20.0},
    ),
    TinyModel(
        "gemma3",
        "Gemma3",
        32,
        64,
        agreement=0.05,
        heads=4,
        kv_heads=1,
        head_dim=16,
        tied=True,
        theta=1e6,
        rope={"rope_type": "linear", "factor": 4.0},
        n_layers=7,
        options={"sliding_window": WINDOW, "query_pre_attn_scalar": 16, "final_logit_softcapping": None},
        keys={"attention.sliding_window": WINDOW},
    ),
    TinyModel("olmo2", "Olmo2", 32, 64, heads=4, kv_heads=2, head_dim=8),
    TinyModel(
        "olmo3",
        "Olmo3",
        32,
        64,
        heads=2,
        kv_heads=1,
        head_dim=16,
        n_layers=4,
        rope={**YARN_ROPE, **OLD},
        options={"sliding_window": WINDOW},
        keys={"attention.sliding_window": WINDOW},
        values=NUMBERS_OF_8_BITS,
    ),
    TinyModel(
        "phi3",
        "Phi3",
        64,
        64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        rope=LONGROPE,
        options={"original_max_position_embeddings": 16, "sliding_window": WINDOW},
        keys={
            "attention.sliding_window": WINDOW,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(512 / 16) / math.log(16)),
        },
        agreement=None,
    ),
    TinyModel("smollm3", "SmolLM3", 32, 64, heads=4, kv_heads=2, head_dim=8, n_layers=4, tied=True, **SMALL),
    TinyModel(
        "seed-oss",
        "SeedOss",
        32,
        64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        options={"attention_bias": True, "attention_out_bias": False},
        values=NUMBERS_OF_8_BITS,
    ),
    TinyModel(
        "granite",
        "Granite",
        32,
        64,
        heads=4,
        kv_heads=2,
        head_dim=8,
        options={
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
            "logits_scaling": 0.5,
        },
        keys={"embedding_scale": 3.0, "residual_scale": 0.5, "attention.scale": 0.2, "logit_scale": 0.5},
        **SMALL,
    ),
    TinyModel(
        "exaone4",
        "Exaone4",
        32,
        64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        options=LOCAL,
        keys=LOCAL_KEYS,
        agreement=None,
        values=NUMBERS_OF_8_BITS,
    ),
    TinyModel(
        "mixtral",
        "Mixtral",
        32,
        32,
        heads=4,
        kv_heads=2,
        head_dim=8,
        options={"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
        keys=MOE_KEYS,
        **SMALL,
    ),
    TinyModel(
        "qwen3moe",
        "Qwen3Moe",
        64,
        64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        options={**MOE, "moe_intermediate_size": 32, "norm_topk_prob": True},
        keys={**MOE_KEYS, "expert_feed_forward_length": 32},
        values=NUMBERS_OF_8_BITS,
    ),
    TinyModel(
        "qwen2moe",
        "Qwen2Moe",
        64,
        64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        options={**MOE, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "norm_topk_prob": False},
        keys={**MOE_KEYS, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64},
        values=NUMBERS_OF_8_BITS,
    ),
    TinyModel(
        "olmoe",
        "Olmoe",
        32,
        32,
        heads=4,
        kv_heads=4,
        head_dim=8,
        options={**MOE, "norm_topk_prob": False},
        keys=MOE_KEYS,
        **SMALL,
    ),
    TinyModel(
        "granitemoe",
        "GraniteMoe",
        32,
        32,
        heads=4,
        kv_heads=2,
        head_dim=8,
        options={
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
            "logits_scaling": 0.5,
        },
        keys={**MOE_KEYS, "embedding_scale": 3.0, "residual_scale": 0.5, "attention.scale": 0.2, "logit_scale": 0.5},
        **SMALL,
    ),
    TinyModel(
        "gpt-oss",
        "GptOss",
        32,
        32,
        heads=4,
        kv_heads=2,
        head_dim=16,
        rope={**YARN_ROPE, **OLD, "truncate": False},
        theta=1000.0,
        options={"num_local_experts": 4, "num_experts_per_tok": 2, **LOCAL},
        keys={**MOE_KEYS, "attention.sliding_window": WINDOW, "expert_feed_forward_length": 32},
        agreement=None,
    ),
    TinyModel(
        "mistral3",
        "Ministral3",
        32,
        64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        rope={
            **YARN_ROPE,
            "original_max_position_embeddings": 8,
            "llama_4_scaling_beta": 0.5,
            "mscale": 1.0,
            "mscale_all_dim": 0.5,
        },
        keys={"attention.temperature_scale": 0.5, "rope.scaling.yarn_log_multiplier": 0.5},
        **SMALL,
    ),
    TinyModel(
        "starcoder2",
        "Starcoder2",
        32,
        64,
        heads=4,
        kv_heads=2,
        head_dim=8,
        tied=True,
        options={"use_bias": True, "sliding_window": None},
        agreement=0.05,
    ),
    TinyModel(
        "stablelm",
        "StableLm",
        32,
        64,
        heads=2,
        kv_heads=2,
        head_dim=16,
        rope={"rope_type": "default", "partial_rotary_factor": 0.5},
        options={"use_qkv_bias": True},
        keys={"rope.dimension_count": 8},
        **SMALL,
    ),
    TinyModel(
        "stablelm-parallel",
        "StableLm",
        32,
        64,
        heads=2,
        kv_heads=1,
        head_dim=16,
        rope={"rope_type": "default", "partial_rotary_factor": 0.5},
        options={"use_parallel_residual": True},
        keys={"rope.dimension_count": 8, "use_parallel_residual": True},
        **SMALL,
    ),
    TinyModel(
        "gpt2", "GPT2", 32, 64, heads=4, kv_heads=4, head_dim=8, tied=True, options={"n_inner": 64}, agreement=0.05
    ),
    TinyModel(
        "gptneox",
        "GPTNeoX",
        32,
        64,
        heads=2,
        kv_heads=2,
        head_dim=16,
        rope={"rope_type": "default", "partial_rotary_factor": 0.5},
        keys={"rope.dimension_count": 8, "use_parallel_residual": True},
        agreement=0.05,
    ),
    TinyModel(
        "falcon",
        "Falcon",
        32,
        64,
        heads=4,
        kv_heads=1,
        head_dim=8,
        tied=True,
        options={"ffn_hidden_size": 64, "multi_query": True, "parallel_attn": True},
        agreement=0.05,
    ),
    TinyModel(
        "falcon-two-norms",
        "Falcon",
        32,
        64,
        heads=4,
        kv_heads=2,
        head_dim=8,
        tied=True,
        options={"ffn_hidden_size": 64, "new_decoder_architecture": True, "num_kv_heads": 2},
        agreement=0.05,
    ),
    TinyModel(
        "command-r",
        "Cohere",
        32,
        64,
        heads=4,
        kv_heads=2,
        head_dim=8,
        tied=True,
        options={"logit_scale": 1.5},
        keys={"logit_scale": 1.5},
    ),
    TinyModel(
        "cohere2",
        "Cohere2",
        32,
        32,
        heads=4,
        kv_heads=2,
        head_dim=8,
        n_layers=4,
        tied=True,
        options={"logit_scale": 1.5, "sliding_window": WINDOW},
        keys={"logit_scale": 1.5, "attention.sliding_window": WINDOW},
    ),
)


def build(model: TinyModel, seed: int) -> Any:
    """The transformers model with every parameter drawn at random, to values that bfloat16 represents (they pack well)."""
    if model.arch in PROGRAMS:
        return build_plain(model, seed)
    kind = getattr(transformers, f"{model.family}{'Text' if model.family in TEXT_CONFIGS else ''}Config")
    rope = {**model.rope, "rope_theta": model.theta}
    if model.family in ("Gemma3", "Gemma3n", "Olmo3"):
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
