"""Keys and tensors of models with latent attention: DeepSeek V2 and V3, GLM-4.7-Flash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from camshaft.formats.bits import Floats
from camshaft.models.convert.hub_config import HubConfig

Change: TypeAlias = Callable[[Floats], Floats]
SOFTMAX, SIGMOID = 1, 2


def latent_keys(config: HubConfig) -> dict[str, Any]:
    """Sizes of the absorbed form: one key of rank and rotated elements for all heads, and YaRN's multiplier."""
    rank, rope = config.size("kv_lora_rank"), config.size("qk_rope_head_dim")
    keys: dict[str, Any] = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": config.size("qk_nope_head_dim") + rope,
        "attention.value_length_mla": config.size("v_head_dim"),
        "rope.dimension_count": rope,
    }
    if config.get("q_lora_rank"):
        keys["attention.q_lora_rank"] = config.size("q_lora_rank")
    if config.rope.get("mscale_all_dim"):
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * float(config.rope["mscale_all_dim"])
    return keys


def latent_experts(config: HubConfig) -> dict[str, Any]:
    """Experts of V2, which a softmax weighs, and of V3 and GLM, which have a bias for the choice and weights of a sigmoid."""
    of_v2 = config.architecture == "DeepseekV2ForCausalLM"
    groups = config.size("n_group", 1)
    keys: dict[str, Any] = {
        "expert_count": config.size("experts"),
        "expert_used_count": config.size("experts_used"),
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "expert_shared_count": config.size("n_shared_experts", 1),
        "leading_dense_block_count": int(config.number("first_k_dense_replace", 0)),
        "expert_gating_func": SOFTMAX if of_v2 else SIGMOID,
        "expert_weights_scale": float(config.number("routed_scaling_factor", 1.0)),
        "expert_weights_norm": bool(config.get("norm_topk_prob", not of_v2)),
    }
    if groups > 1 and config.get("topk_method") != "greedy":
        keys |= {"expert_group_count": groups, "expert_group_used_count": config.size("topk_group")}
    return keys


def latent_changes(name: str, config: HubConfig) -> Iterator[tuple[str, Change]]:
    """Splits the up-projection of latents into the parts for keys and for values of each head."""
    if name != "attn_kv_b.weight":
        return
    heads, plain = config.size("heads"), config.size("qk_nope_head_dim")

    def of_heads(values: Floats) -> Floats:
        return values.reshape(heads, plain + config.size("v_head_dim"), values.shape[-1])

    yield "attn_k_b.weight", lambda values: np.swapaxes(of_heads(values)[:, :plain], 1, 2)
    yield "attn_v_b.weight", lambda values: of_heads(values)[:, plain:]
