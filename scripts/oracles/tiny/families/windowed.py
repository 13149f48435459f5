"""Tiny random models of families with windows and experts, of Apertus and of BLOOM."""

from __future__ import annotations

from typing import Any

from scripts.oracles.tiny.model import (
    LLAMA3_ROPE,
    LOCAL_KEYS,
    NUMBERS_OF_8_BITS,
    OLD,
    WINDOW,
    YARN_ROPE,
    TinyModel,
    sizes,
)

FIRST_SEED = 900
_SIZES: dict[str, Any] = {"heads": 2, "kv_heads": 1, "head_dim": 8, "values": NUMBERS_OF_8_BITS, "n_vocab": 64}
_KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
_LOCAL = {"sliding_window": WINDOW, "layer_types": _KINDS, "num_experts": 6, "num_experts_per_tok": 2}
_LOCAL |= {"moe_intermediate_size": 8}
_KEYS = {**LOCAL_KEYS, "attention.sliding_window_pattern": [True, False, True]}
_KEYS |= {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 8}
MODELS = (
    TinyModel(
        "mellum",
        "Mellum",
        16,
        24,
        n_layers=3,
        theta=5000.0,
        rope={**YARN_ROPE, **OLD},
        options=_LOCAL,
        keys={**_KEYS, "rope.freq_base_swa": 10000.0},
        agreement=None,  # its layers with windows rotate by the base of the others
        **_SIZES,
    ),
    TinyModel(
        "exaone-moe",
        "ExaoneMoe",
        16,
        24,
        n_layers=3,
        options={**_LOCAL, "num_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5},
        keys={
            **_KEYS,
            "expert_shared_count": 2,
            "expert_shared_feed_forward_length": 16,
            "leading_dense_block_count": 1,
            "expert_weights_scale": 1.5,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
        **_SIZES,
    ),
    TinyModel(
        "afmoe",
        "Afmoe",
        16,
        24,
        n_layers=4,
        options={
            **_LOCAL,
            "layer_types": [*["sliding_attention"] * 3, "full_attention"],
            "num_shared_experts": 2,
            "num_dense_layers": 1,
            "route_scale": 1.5,
            "mup_enabled": True,
        },
        keys={
            **_KEYS,
            "attention.sliding_window_pattern": [True, True, True, False],
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
            "expert_weights_scale": 1.5,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
        **_SIZES,
    ),
    TinyModel(
        "apertus",
        "Apertus",
        16,
        24,
        rope={**LLAMA3_ROPE, **OLD},
        theta=500.0,
        **_SIZES,
    ),
    TinyModel(
        "bloom",
        "Bloom",
        **sizes(24, 96, heads=3, kv_heads=3, head_dim=8),
        tied=True,
        options={"n_layer": 2, "n_head": 3},
        values=NUMBERS_OF_8_BITS,
        n_vocab=64,
        agreement=0.05,
    ),
)
