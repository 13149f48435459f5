"""Keys of models with experts, and of LFM2's short convolutions."""

from __future__ import annotations

from typing import Any, TypeAlias

from camshaft.errors import ModelError
from camshaft.models.convert.families.latent import SIGMOID
from camshaft.models.convert.hub_config import HubConfig

Keys: TypeAlias = dict[str, Any]


def experts(config: HubConfig) -> Keys:
    """Their number, how many are chosen, and widths."""
    keys = {"expert_count": config.size("experts"), "expert_used_count": config.size("experts_used")}
    for name, key in (("moe_intermediate_size", "expert"), ("shared_expert_intermediate_size", "expert_shared")):
        if config.get(name):
            keys[f"{key}_feed_forward_length"] = config.size(name)
    return keys


def short_convolutions(config: HubConfig) -> Keys:
    """Which of LFM2's layers have attention, and the taps of the others."""
    kinds, kv_heads = config.layer_kinds, config.size("kv_heads")
    return {
        "attention.head_count_kv": [kv_heads if kind == "full_attention" else 0 for kind in kinds],
        "shortconv.l_cache": config.size("conv_L_cache"),
    }


def adjusted_ffn(config: HubConfig) -> Keys:
    """LFM2's width, which its config states before it is cut to two thirds and rounded up."""
    width = config.size("ffn")
    if not config.get("block_auto_adjust_ff_dim", True):
        return {"feed_forward_length": width}
    multiple = config.size("block_multiple_of", 256)
    width = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    return {"feed_forward_length": config.whole("block_ffn_dim_multiplier's width", multiple * -(-width // multiple))}


def lfm2_experts(config: HubConfig) -> Keys:
    """Experts of LFM2, behind dense layers."""
    return {
        **experts(config),
        "leading_dense_block_count": config.size("num_dense_layers"),
        "expert_gating_func": SIGMOID,
    }


def sigmoid_routing(config: HubConfig, groups: int = 1, norm: str = "norm_topk_prob") -> Keys:
    """How tokens choose experts whose scores are sigmoids. `norm` is the config's name for weights that sum to 1."""
    keys = {
        "expert_weights_scale": float(config.number("routed_scaling_factor", 1.0)),
        "expert_weights_norm": bool(config.get(norm, True)),
        "expert_gating_func": SIGMOID,
    }
    if groups > 1:
        keys |= {"expert_group_count": groups, "expert_group_used_count": config.size("topk_group")}
    return keys


def glm4_experts(config: HubConfig) -> Keys:
    """Experts of GLM 4.5, behind dense layers, with shared ones."""
    return {
        **experts(config),
        "leading_dense_block_count": config.size("first_k_dense_replace"),
        "expert_shared_count": config.size("n_shared_experts"),
        **sigmoid_routing(config),
    }


def exaone_experts(config: HubConfig) -> Keys:
    """Experts of EXAONE MoE, behind dense layers, in groups if it has several, with shared ones."""
    shared = config.size("num_shared_experts", 1)
    return {
        **experts(config),
        "leading_dense_block_count": leading_dense(config),
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": shared * config.size("moe_intermediate_size"),
        **sigmoid_routing(config, config.size("n_group", 1)),
    }


def afmoe_experts(config: HubConfig) -> Keys:
    """Experts of AFMoE, behind dense layers, with shared ones. Raises ModelError for embeddings that are not scaled, as those of
    GGUF files of afmoe are."""
    if not config.get("mup_enabled", False):
        raise ModelError(f"{config.path}: mup_enabled is false; wanted embeddings times sqrt(hidden_size)")
    return {
        **experts(config),
        "leading_dense_block_count": int(config.number("num_dense_layers", 1)),
        "expert_shared_count": config.size("num_shared_experts", 2),
        "expert_weights_scale": float(config.number("route_scale", 1.0)),
        "expert_weights_norm": True,
        "expert_gating_func": SIGMOID,
    }


def indexed(config: HubConfig) -> Keys:
    """Sizes of what chooses the tokens that layers see, which layers have one of their own, and dense layers before experts."""
    kinds = config.get("indexer_types")
    named = {"attention.indexer.types": [kind == "full" for kind in kinds]} if isinstance(kinds, list) else {}
    return {
        **named,
        "leading_dense_block_count": leading_dense(config),
        "attention.indexer.head_count": config.size("index_n_heads"),
        "attention.indexer.key_length": config.size("index_head_dim"),
        "attention.indexer.top_k": config.size("index_topk"),
    }


def mellum_experts(config: HubConfig) -> Keys:
    """Experts of Mellum. Raises ModelError for dense layers, which GGUF files of mellum cannot have."""
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list) and "dense" in kinds:
        raise ModelError(f"{config.path}: mlp_layer_types has dense layers; wanted experts in all")
    return experts(config)


def leading_dense(config: HubConfig) -> int:
    """How many layers are dense before those with experts. Raises ModelError for dense layers behind sparse ones."""
    kinds = config.get("mlp_layer_types")
    if not isinstance(kinds, list):
        return int(config.number("first_k_dense_replace", 0))
    leading = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    if "dense" in kinds[leading:]:
        raise ModelError(f"{config.path}: mlp_layer_types has dense layers behind sparse ones; wanted them first")
    return leading


def ernie_experts(config: HubConfig) -> Keys:
    """Experts of ERNIE 4.5, in every n-th layer, with shared ones."""
    shared = config.size("moe_num_shared_experts")
    return {
        **experts(config),
        "leading_dense_block_count": config.size("moe_layer_start_index"),
        "interleave_moe_layer_step": config.size("moe_layer_interval", 1),
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": shared * config.size("moe_intermediate_size"),
    }


def hunyuan_experts(config: HubConfig) -> Keys:
    """Experts of Hunyuan, and as many shared ones; ModelError for numbers that differ by layer."""

    def number(name: str, default: int) -> int:
        value = config.get(name, default)
        same = {config.whole(name, one) for one in (value if isinstance(value, list) else [value])}
        if len(same) != 1:
            raise ModelError(f"{config.path}: {name} differs by layer; wanted one number for all")
        return same.pop()

    width = number("moe_intermediate_size", config.size("ffn"))
    return {
        "expert_count": config.size("experts"),
        "expert_used_count": number("moe_topk", 1),
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": number("num_shared_expert", 1) * width,
    }


def minimax_experts(config: HubConfig) -> Keys:
    """Experts of MiniMax M2, whose width is that of the feed-forward."""
    return {**gpt_oss(config), "expert_gating_func": SIGMOID}


def gpt_oss(config: HubConfig) -> Keys:
    """Experts whose width is that of the feed-forward."""
    return {**experts(config), "expert_feed_forward_length": config.size("ffn")}
