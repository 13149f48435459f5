"""Tiny random models of families whose experts are chosen with a bias, behind dense layers, and of their dense relatives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scripts.oracles.tiny.model import HALF_ROPE, SMALL, TinyModel, sizes

FIRST_SEED = 200
# Six experts of 16, of which two are chosen; the first layer is dense.
_KEYS = {
    "expert_count": 6,
    "expert_used_count": 2,
    "expert_feed_forward_length": 16,
    "leading_dense_block_count": 1,
}
MODELS = (
    TinyModel(
        "glm4",
        "Glm4",
        **sizes(32, 48, heads=4, kv_heads=2, head_dim=16),
        rope=HALF_ROPE,
        options={"attention_bias": True},
        keys={"rope.dimension_count": 8},
        **SMALL,
    ),
    TinyModel(
        "glm4moe",
        "Glm4Moe",
        **sizes(32, 48, heads=4, kv_heads=2, head_dim=16),
        n_layers=3,
        rope=HALF_ROPE,
        options={
            "attention_bias": True,
            "use_qk_norm": True,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.5,
            "num_mtp_layers": 0,
        },
        keys={
            **_KEYS,
            "rope.dimension_count": 8,
            "expert_shared_count": 2,
            "expert_weights_scale": 1.5,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
        **SMALL,
    ),
    TinyModel("ernie4_5", "Ernie4_5", **sizes(32, 48, heads=4, kv_heads=2, head_dim=16), tied=True, **SMALL),
    TinyModel(
        "ernie4_5-moe",
        "Ernie4_5_Moe",
        **sizes(32, 48, heads=4, kv_heads=2, head_dim=8),
        n_layers=4,
        tied=True,
        options={
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 16,
            "moe_num_shared_experts": 2,
            "moe_layer_interval": 2,
        },
        keys={
            **_KEYS,
            "interleave_moe_layer_step": 2,
            "expert_shared_count": 2,
            "expert_shared_feed_forward_length": 32,
        },
        agreement=None,
        **SMALL,
    ),
    TinyModel("hunyuan-dense", "HunYuanDenseV1", **sizes(32, 48, heads=4, kv_heads=2, head_dim=16), tied=True, **SMALL),
    TinyModel(
        "lfm2moe",
        "Lfm2Moe",
        **sizes(32, 48, heads=4, kv_heads=2, head_dim=8),
        tied=True,
        n_layers=4,
        options={
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "num_dense_layers": 1,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
        },
        keys={**_KEYS, "expert_gating_func": 2, "shortconv.l_cache": 3},
        layer_kv_heads=(0, 2, 0, 0),
        **SMALL,
    ),
)


def expert_parts(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The bias of the choice, and the router, as the file has them; nothing for other parameters."""
    layer = (name.split(".") + [""] * 3)[2]
    if name.endswith(("correction_bias", "expert_bias")):
        yield f"blk.{layer}.exp_probs_b.bias", values.reshape(-1)
    elif name.endswith((".mlp.gate.weight", ".feed_forward.gate.weight")):
        yield f"blk.{layer}.ffn_gate_inp.weight", values
