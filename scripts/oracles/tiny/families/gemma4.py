"""Tiny random models of Gemma 4: with embeddings of each layer and shared keys, and with experts beside a dense feed-forward."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.oracles.tiny.model import FEW, SMALL, WINDOW, TinyModel, sizes

FIRST_SEED = 500
FULL, SLIDING = 16, 8  # sizes of heads
_ROPE = {"rope_type": "proportional", "partial_rotary_factor": 0.5}
_SIZES = {"sliding_window": WINDOW, "global_head_dim": FULL, "final_logit_softcapping": 20.0}
_KEYS = {
    "attention.key_length": FULL,
    "attention.value_length": FULL,
    "attention.key_length_swa": SLIDING,
    "attention.value_length_swa": SLIDING,
    "rope.dimension_count": FULL,
    "rope.dimension_count_swa": SLIDING,
    "rope.freq_base_swa": 1000.0,
    "attention.sliding_window": WINDOW,
    "final_logit_softcapping": 20.0,
}


_NETWORK: dict[str, Any] = {
    **sizes(32, 32, heads=4, kv_heads=2, head_dim=SLIDING),
    "agreement": 0.05,
    "tied": True,
    "theta": 1e4,
    "rope": _ROPE,
    **SMALL,
}


def _pattern(text: str) -> dict[str, list[str]]:
    return {"layer_types": ["full_attention" if c == "f" else "sliding_attention" for c in text]}


MODELS = (
    TinyModel(
        "gemma4",
        "Gemma4",
        **_NETWORK,
        n_layers=5,
        options={
            **_SIZES,
            **_pattern("ssfsf"),
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": FEW,
        },
        keys={
            **_KEYS,
            "attention.sliding_window_pattern": [True, True, False, True, False],
            "attention.shared_kv_layers": 2,
            "feed_forward_length": [32, 32, 32, 64, 64],
            "embedding_length_per_layer_input": 8,
        },
    ),
    TinyModel(
        "gemma4-moe",
        "Gemma4",
        **_NETWORK,
        n_layers=3,
        layer_kv_heads=(2, 2, 1),
        options={
            **_SIZES,
            **_pattern("ssf"),
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 16,
        },
        keys={
            **_KEYS,
            "attention.sliding_window_pattern": [True, True, False],
            "attention.shared_kv_layers": 0,
            "embedding_length_per_layer_input": 0,
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 16,
        },
    ),
)


def gemma4_parameter(name: str, values: np.ndarray, model: TinyModel) -> tuple[str, np.ndarray]:
    """A parameter under the name that the file has or llama.cpp's converter knows."""
    if model.family != "Gemma4" or ".layers." not in name:
        return name, values
    layer, last = name.split(".")[2], name.split(".")[-1]
    names = {
        "layer_scalar": f"blk.{layer}.layer_output_scale.weight",
        "scale": f"blk.{layer}.ffn_gate_inp.scale",
        "per_expert_scale": f"blk.{layer}.ffn_down_exps.scale",
    }
    if name.endswith("router.proj.weight"):
        return f"blk.{layer}.ffn_gate_inp.weight", values
    if name.endswith("experts.gate_up_proj"):
        return f"blk.{layer}.ffn_gate_up_exps.weight", values
    if name.endswith("experts.down_proj"):
        return f"blk.{layer}.ffn_down_exps.weight", values
    return names.get(last, name), values


def proportional_factors(model: TinyModel) -> np.ndarray:
    """What frequencies are divided by: 1 where elements rotate, and so much that the others stand still."""
    rotated = int(FULL * model.rope["partial_rotary_factor"] / 2)
    return np.array([1.0] * rotated + [1e30] * (FULL // 2 - rotated), np.float32)
