"""TinyModel: one tiny random model to make, and the numbers that several of them share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scripts.oracles.tiny.vocabulary import N_VOCAB

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


def sizes(hidden: int, ffn: int, *, heads: int, kv_heads: int, head_dim: int) -> dict[str, int]:
    """Returns the sizes of a TinyModel as its arguments."""
    return {"hidden": hidden, "ffn": ffn, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


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
    "ExaoneMoe": "exaone-moe",
    "GlmMoeDsa": "glm-dsa",
    "DeepseekV32": "deepseek32",
}

LAYER_NORMS = ("starcoder2", "stablelm", "gpt2", "gptneox", "falcon", "command-r", "cohere2", "rwkv6", "rwkv7")
LAYER_NORMS += ("bloom", "phi2", "phimoe", "orion", "nemotron", "olmo", "dbrx")
# Those whose norms' weights are what is added to 1.
ADDED = ("gemma", "nemotron")
# Families whose config is of text and images, with one of text alone.
TEXT_CONFIGS = ("Gemma3", "Gemma3n", "Gemma4", "Llama4", "Qwen3_5", "Qwen3_5Moe")

LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
HALF_ROPE = {"rope_type": "default", "partial_rotary_factor": 0.5}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0}
OLD = {"original_max_position_embeddings": ORIGINAL_CONTEXT}

# experts: four, of which two are chosen
MOE = {"num_experts": 4, "num_experts_per_tok": 2}
MOE_KEYS = {"expert_count": 4, "expert_used_count": 2}
# state space models of 64 columns, states of 8
MAMBA_KEYS = {"ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 8, "ssm.time_step_rank": 4}
MAMBA2_KEYS = {**MAMBA_KEYS, "ssm.group_count": 2}
LOCAL = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
LOCAL_KEYS = {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": [True, False]}
_FACTORS = {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [1.0 + 0.5 * i for i in range(8)]}
LONGROPE = {"rope_type": "longrope", **_FACTORS, "factor": 512 / 16, "original_max_position_embeddings": 16}
