"""Tiny random models with latent attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scripts.oracles.tiny.model import OLD, SMALL, YARN_ROPE, TinyModel, sizes

FIRST_SEED = 300
# The rank and a head's plain keys fill blocks of quantized formats.
RANK, PLAIN, ROPE, VALUE = 32, 32, 8, 10
_SIZES = {"kv_lora_rank": RANK, "qk_nope_head_dim": PLAIN, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE}
_KEYS = {
    "attention.kv_lora_rank": RANK,
    "attention.key_length": RANK + ROPE,
    "attention.value_length": RANK,
    "attention.key_length_mla": PLAIN + ROPE,
    "attention.value_length_mla": VALUE,
    "rope.dimension_count": ROPE,
}
# Eight experts of 16, of which three are chosen, from two of four groups.
_EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}
_EXPERT_KEYS = {
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_feed_forward_length": 16,
    "expert_shared_count": 2,
    "leading_dense_block_count": 1,
}
_GROUP_KEYS = {"expert_group_count": 4, "expert_group_used_count": 2}
MODELS = (
    TinyModel(
        "deepseek2-lite",
        "DeepseekV2",
        **sizes(32, 48, heads=4, kv_heads=4, head_dim=ROPE),
        n_layers=3,
        rope={**YARN_ROPE, **OLD, "mscale": 0.707, "mscale_all_dim": 0.707},
        options={
            **_SIZES,
            **_EXPERTS,
            "q_lora_rank": None,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 4.0,
        },
        keys={
            **_KEYS,
            **_EXPERT_KEYS,
            **_GROUP_KEYS,
            "expert_gating_func": 1,
            "expert_weights_scale": 4.0,
            "rope.scaling.yarn_log_multiplier": 0.0707,
        },
        agreement=None,
        **SMALL,
    ),
    TinyModel(
        "deepseek2-v3",
        "DeepseekV3",
        **sizes(32, 48, heads=4, kv_heads=4, head_dim=ROPE),
        n_layers=3,
        rope={**YARN_ROPE, **OLD, "mscale": 1.0, "mscale_all_dim": 1.0},
        options={
            **_SIZES,
            **_EXPERTS,
            "q_lora_rank": 24,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "num_mtp_layers": 0,
        },
        keys={
            **_KEYS,
            **_EXPERT_KEYS,
            **_GROUP_KEYS,
            "attention.q_lora_rank": 24,
            "expert_gating_func": 2,
            "expert_weights_scale": 2.5,
            "expert_weights_norm": True,
            "rope.scaling.yarn_log_multiplier": 0.1,
        },
        agreement=2e-4,
        **SMALL,
    ),
    *(
        TinyModel(
            row,
            family,
            **sizes(16, 24, heads=2, kv_heads=2, head_dim=ROPE),
            n_layers=3,
            options={
                **_SIZES,
                "kv_lora_rank": 16,
                "qk_nope_head_dim": 8,
                "q_lora_rank": 8,
                "n_routed_experts": 6,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 8,
                "n_shared_experts": 1,
                "mlp_layer_types": ["dense", "sparse", "sparse"],
                "n_group": 1,
                "topk_group": 1,
                "routed_scaling_factor": 2.5,
                "index_topk": 64,
                "index_head_dim": 64,
                "index_n_heads": 2,
                **more,
            },
            keys={
                **_KEYS,
                "attention.kv_lora_rank": 16,
                "attention.key_length": 16 + ROPE,
                "attention.value_length": 16,
                "attention.key_length_mla": 8 + ROPE,
                "attention.q_lora_rank": 8,
                "expert_count": 6,
                "expert_used_count": 2,
                "expert_feed_forward_length": 8,
                "expert_shared_count": 1,
                "leading_dense_block_count": 1,
                "expert_gating_func": 2,
                "expert_weights_scale": 2.5,
                "expert_weights_norm": True,
                "attention.indexer.head_count": 2,
                "attention.indexer.key_length": 64,
                "attention.indexer.top_k": 64,
                **keys,
            },
            agreement=2e-4,
            values=SMALL["values"],
            n_vocab=64,
        )
        for row, family, more, keys in (
            ("deepseek32", "DeepseekV32", {}, {}),
            (
                "glm-dsa",
                "GlmMoeDsa",
                {"indexer_types": ["full", "shared", "full"]},
                {"attention.indexer.types": [True, False, True]},
            ),
        )
    ),
)


def latent_parts(name: str, values: np.ndarray, model: TinyModel) -> Iterator[tuple[str, np.ndarray]]:
    """Keys, turned for the absorbed form, and values of a layer's latents; nothing for other parameters."""
    if "kv_b_proj" in name:
        plain, value, rank = (model.options[size] for size in ("qk_nope_head_dim", "v_head_dim", "kv_lora_rank"))
        layer, joined = name.split(".")[2], values.reshape(model.heads, plain + value, rank)
        yield f"blk.{layer}.attn_k_b.weight", joined[:, :plain].swapaxes(1, 2)
        yield f"blk.{layer}.attn_v_b.weight", joined[:, plain:]
