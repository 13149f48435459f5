"""Tiny random models of mixtures of experts that a softmax chooses, and of Ministral 3."""

from __future__ import annotations

from scripts.oracles.tiny.model import (
    LOCAL,
    MOE,
    MOE_KEYS,
    NUMBERS_OF_8_BITS,
    OLD,
    SMALL,
    WINDOW,
    YARN_ROPE,
    TinyModel,
    sizes,
)

FIRST_SEED = 18
MODELS = (
    TinyModel(
        "mixtral",
        "Mixtral",
        **sizes(32, 32, heads=4, kv_heads=2, head_dim=8),
        options={"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
        keys=MOE_KEYS,
        **SMALL,
    ),
    TinyModel(
        "qwen3moe",
        "Qwen3Moe",
        **sizes(64, 64, heads=4, kv_heads=2, head_dim=16),
        options={**MOE, "moe_intermediate_size": 32, "norm_topk_prob": True},
        keys={**MOE_KEYS, "expert_feed_forward_length": 32},
        values=NUMBERS_OF_8_BITS,
    ),
    TinyModel(
        "qwen2moe",
        "Qwen2Moe",
        **sizes(32, 48, heads=4, kv_heads=2, head_dim=8),
        options={**MOE, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 32, "norm_topk_prob": False},
        keys={**MOE_KEYS, "expert_feed_forward_length": 16, "expert_shared_feed_forward_length": 32},
        **SMALL,
    ),
    TinyModel(
        "olmoe",
        "Olmoe",
        **sizes(32, 32, heads=4, kv_heads=4, head_dim=8),
        options={**MOE, "norm_topk_prob": False},
        keys=MOE_KEYS,
        **SMALL,
    ),
    TinyModel(
        "granitemoe",
        "GraniteMoe",
        **sizes(32, 32, heads=4, kv_heads=2, head_dim=8),
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
        **sizes(32, 32, heads=4, kv_heads=2, head_dim=16),
        rope={**YARN_ROPE, **OLD, "truncate": False},
        theta=1000.0,
        options={"num_local_experts": 4, "num_experts_per_tok": 2, **LOCAL},
        keys={**MOE_KEYS, "attention.sliding_window": WINDOW, "expert_feed_forward_length": 32},
        agreement=None,
    ),
    TinyModel(
        "mistral3",
        "Ministral3",
        **sizes(32, 64, heads=4, kv_heads=2, head_dim=16),
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
)
