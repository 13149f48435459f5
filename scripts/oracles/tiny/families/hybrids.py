"""Tiny random models whose layers mix attention, state space models and feed-forwards in other ways than one after the other."""

from __future__ import annotations

import numpy as np

from scripts.oracles.tiny.model import (
    MAMBA2_KEYS,
    MAMBA_KEYS,
    MOE,
    MOE_KEYS,
    NUMBERS_OF_8_BITS,
    SMALL,
    TinyModel,
    sizes,
)

FIRST_SEED = 400
# Several chunks of the state space models of transformers.
N_TOKENS = 40
_NEMOTRON = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 2,
    "chunk_size": 16,
    "time_step_min": 1e-12,  # llama.cpp has no lower limit of steps
}
# What its file has multiplied into weights.
_MULTIPLIERS = {
    "attention_in_multiplier": 0.75,
    "attention_out_multiplier": 1.5,
    "key_multiplier": 0.5,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.5,
    "ssm_multipliers": [0.5, 0.75, 1.25, 1.5, 2.0],
    "mlp_multipliers": [1.5, 0.75],
    "embedding_multiplier": 2.0,
    "lm_head_multiplier": 0.75,
}
MODELS = (
    TinyModel(
        "nemotron_h",
        "NemotronH",
        **sizes(32, 48, heads=4, kv_heads=2, head_dim=8),
        n_layers=5,
        layer_kv_heads=(0, 0, 2, 0, 0),
        options={
            **_NEMOTRON,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
        },
        keys={**MAMBA2_KEYS, "feed_forward_length": [0, 48, 0, 0, 48], "attention.layer_norm_epsilon": 1e-5},
        n_tokens=N_TOKENS,
        **SMALL,
    ),
    TinyModel(
        "nemotron_h_moe",
        "NemotronH",
        **sizes(32, 32, heads=4, kv_heads=2, head_dim=8),
        n_layers=4,
        layer_kv_heads=(0, 0, 2, 0),
        options={
            **_NEMOTRON,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention"],
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "moe_latent_size": 16,
            "moe_shared_expert_intermediate_size": 32,
            "routed_scaling_factor": 2.5,
        },
        keys={
            **MAMBA2_KEYS,
            "attention.layer_norm_epsilon": 1e-5,
            "feed_forward_length": [0, 24, 0, 0],
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 24,
            "expert_shared_feed_forward_length": 32,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "expert_group_count": 1,
            "moe_latent_size": 16,
        },
        n_tokens=N_TOKENS,
        values=NUMBERS_OF_8_BITS,
    ),
    TinyModel(
        "falcon-h1",
        "FalconH1",
        **sizes(32, 48, heads=4, kv_heads=2, head_dim=16),
        n_layers=2,
        options={
            "mamba_d_ssm": 64,
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_n_groups": 2,
            "mamba_d_state": 8,
            "mamba_chunk_size": 16,
            **_MULTIPLIERS,
        },
        keys=MAMBA2_KEYS,
        n_tokens=N_TOKENS,
        **SMALL,
    ),
    TinyModel(
        "jamba",
        "Jamba",
        **sizes(32, 32, heads=4, kv_heads=2, head_dim=8),
        n_layers=4,
        layer_kv_heads=(0, 0, 2, 0),
        options={
            **MOE,
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
        },
        keys={**MOE_KEYS, **MAMBA_KEYS},
        **SMALL,
    ),
)
_FACTORS = {
    "embed_tokens": "embedding_multiplier",
    "lm_head": "lm_head_multiplier",
    "o_proj": "attention_out_multiplier",
    "out_proj": "ssm_out_multiplier",
}


def hybrid_parameter(name: str, values: np.ndarray, model: TinyModel) -> tuple[str, np.ndarray]:
    """A parameter under the name that llama.cpp's converter knows, and multiplied as it does."""
    if model.family == "NemotronH":
        name = name.replace("model.", "backbone.", 1)
        if ".experts." in name:
            layer, part = name.split(".")[2], name.split(".")[-1].removesuffix("_proj")
            name = f"blk.{layer}.ffn_{part}_exps.weight"
    if model.family == "FalconH1":
        values = values * _factor(name)
    return name, values


def _factor(name: str) -> np.ndarray | float:
    given = _MULTIPLIERS
    if ".mamba.in_proj" in name:
        parts = np.repeat(np.array(given["ssm_multipliers"], np.float32), (64, 64, 16, 16, 4))
        return (parts * np.float32(given["ssm_in_multiplier"]))[:, None]
    if "gate_proj" in name or "down_proj" in name:
        return given["mlp_multipliers"]["down_proj" in name]
    if any(part in name for part in ("q_proj", "k_proj", "v_proj")):
        return given["attention_in_multiplier"] * (given["key_multiplier"] if "k_proj" in name else 1)
    found = [factor for part, factor in _FACTORS.items() if f"{part}." in name]
    return given[found[0]] if found else 1.0
