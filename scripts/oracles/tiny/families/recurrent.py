"""Tiny random models with recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from scripts.oracles.tiny.model import HALF_ROPE, MAMBA2_KEYS, MAMBA_KEYS, MOE, MOE_KEYS, SMALL, TinyModel, sizes

FIRST_SEED = 100
# transformers computes the delta rule in chunks of 64 tokens
MORE_TOKENS = 70
# heads of values: 4 in 2 groups; a rotation of 8 of 16 elements
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "partial_rotary_factor": 0.5,
}
_DELTA_KEYS = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
    "full_attention_interval": 4,
    "rope.dimension_count": 8,
}
# experts beside the delta rule, with a shared one
_EXPERTS = {**MOE, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 32, "norm_topk_prob": True}
_EXPERT_KEYS = {**MOE_KEYS, "expert_feed_forward_length": 16, "expert_shared_feed_forward_length": 32}
_MAMBA = {
    "state_size": 8,
    "conv_kernel": 4,
    "expand": 2,
    "time_step_rank": 4,
    "layer_norm_epsilon": 1e-5,
    "intermediate_size": 64,
}
_NO_HEADS = sizes(32, 0, heads=0, kv_heads=0, head_dim=0)
# Qwen's experts beside the delta rule
_QWEN_EXPERTS: dict[str, Any] = {
    **sizes(32, 32, heads=2, kv_heads=1, head_dim=16),
    "tied": True,
    "n_layers": 5,
    "rope": HALF_ROPE,
    "options": {**_DELTA, **_EXPERTS},
    "n_tokens": MORE_TOKENS,
}
MODELS = (
    TinyModel(
        "lfm2",
        "Lfm2",
        **sizes(32, 64, heads=4, kv_heads=2, head_dim=8),
        tied=True,
        n_layers=4,
        options={
            "norm_eps": 1e-5,
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
        },
        keys={"shortconv.l_cache": 3},
        layer_kv_heads=(0, 2, 0, 0),
    ),
    TinyModel(
        "qwen35",
        "Qwen3_5",
        **sizes(32, 48, heads=4, kv_heads=2, head_dim=16),
        tied=True,
        n_layers=5,
        rope=HALF_ROPE,
        options=_DELTA,
        keys={**_DELTA_KEYS, "rope.dimension_sections": [2, 1, 1, 0]},
        n_tokens=MORE_TOKENS,
    ),
    TinyModel(
        "qwen3next",
        "Qwen3Next",
        **_QWEN_EXPERTS,
        keys={**_DELTA_KEYS, **_EXPERT_KEYS},
        agreement=3e-4,  # 1.5e-4 where llama.cpp has AVX2 alone
    ),
    TinyModel(
        "qwen35moe",
        "Qwen3_5Moe",
        **_QWEN_EXPERTS,
        keys={**_DELTA_KEYS, "rope.dimension_sections": [2, 1, 1, 0], **_EXPERT_KEYS},
        agreement=1e-3,
        **SMALL,
    ),
    TinyModel(
        "mamba2",
        "Mamba2",
        **_NO_HEADS,
        n_layers=3,
        options={
            "num_heads": 4,
            "state_size": 8,
            "head_dim": 16,
            "n_groups": 2,
            "conv_kernel": 4,
            "expand": 2,
            "chunk_size": 16,
            "layer_norm_epsilon": 1e-5,
            "intermediate_size": 64,
        },
        keys=MAMBA2_KEYS,
        n_tokens=MORE_TOKENS,
    ),
    TinyModel(
        "mamba",
        "Mamba",
        **_NO_HEADS,
        tied=True,
        n_layers=3,
        options=_MAMBA,
        keys={**MAMBA_KEYS, "ssm.dt_b_c_rms": False},
    ),
    TinyModel(
        "granitehybrid",
        "GraniteMoeHybrid",
        **sizes(32, 32, heads=4, kv_heads=2, head_dim=8),
        n_layers=4,
        layer_kv_heads=(0, 2, 0, 0),
        options={
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 32,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
            "mamba_n_heads": 4,
            "mamba_n_groups": 2,
            "mamba_d_state": 8,
            "mamba_d_head": 16,
            "mamba_chunk_size": 16,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
            "logits_scaling": 0.5,
        },
        keys={
            **MOE_KEYS,
            "expert_shared_feed_forward_length": 32,
            **MAMBA2_KEYS,
            "rope.scaling.finetuned": False,
            "embedding_scale": 3.0,
            "residual_scale": 0.5,
            "attention.scale": 0.2,
            "logit_scale": 0.5,
        },
        n_tokens=MORE_TOKENS,
        **SMALL,
    ),
    TinyModel(
        "falcon-mamba",
        "FalconMamba",
        **_NO_HEADS,
        n_layers=3,
        options={**_MAMBA, "mixer_rms_eps": 1e-5},
        keys={**MAMBA_KEYS, "ssm.dt_b_c_rms": True},
        **SMALL,
    ),
)


def mamba_parts(name: str, values: np.ndarray, model: TinyModel) -> Iterator[tuple[str, np.ndarray]]:
    """A parameter of a state space layer as the file has it."""
    groups = model.keys.get("ssm.group_count")
    if name.endswith(".A_log"):
        values = -np.exp(values)
    if "conv1d.weight" in name:
        values = values.reshape(values.shape[0], -1)
    elif groups and name.endswith((".A_log", ".D")):
        values = values.reshape(-1, 1)
    elif groups and "norm.weight" in name:
        values = values.reshape(groups, -1)
    yield name.replace(".dt_bias", ".dt_proj.bias"), values
