"""Keys and tensors of families whose layers are their own: DBRX, Gemma 3n, Kimi Linear, MiniCPM 3; of Nanbeige and openPangu."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np

from camshaft.errors import ModelError
from camshaft.formats.bits import Floats
from camshaft.formats.mapped import shown_value
from camshaft.models.convert.architecture import Architecture
from camshaft.models.convert.families.attention import longrope
from camshaft.models.convert.families.experts import leading_dense, sigmoid_routing
from camshaft.models.convert.families.latent import latent_changes
from camshaft.models.convert.hub_config import HubConfig

Change: TypeAlias = Callable[[Floats], Floats]
Keys: TypeAlias = dict[str, Any]
# What readers of minicpm3 take for granted.
_SCALES = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
_SPARSE_LAYERS, _SPARSITY = 10, 0.95  # of Gemma 3n, where its config has none


def _inner(values: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
    found = values.get(name, {})
    if not isinstance(found, dict):
        raise ModelError(f"{path}: {name} is {shown_value(found)}; wanted an object")
    return found


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {new: values[old] for old, new in names.items() if values.get(old) is not None}


# --- DBRX ---------------------------------------------------------------------------------------------------------------
def dbrx_values(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Sizes under the names of other families."""
    attention, experts = _inner(values, "attn_config", path), _inner(values, "ffn_config", path)
    if experts.get("moe_normalize_expert_weights", 1) != 1:
        power = shown_value(experts["moe_normalize_expert_weights"])
        raise ModelError(f"{path}: moe_normalize_expert_weights is {power}; wanted 1, weights with the sum 1")
    sizes = {"d_model": "hidden_size", "n_heads": "num_attention_heads", "max_seq_len": "max_position_embeddings"}
    of_experts = {
        "ffn_hidden_size": "ffn_hidden_size",
        "moe_num_experts": "num_experts",
        "moe_top_k": "num_experts_per_tok",
    }
    of_attention = {"kv_n_heads": "num_key_value_heads", "rope_theta": "rope_theta", "clip_qkv": "clip_qkv"}
    return {
        **values,
        **_renamed(values, sizes),
        **_renamed(attention, of_attention),
        **_renamed(experts, of_experts),
        "layer_norm_epsilon": 1e-5,
    }


def dbrx_keys(config: HubConfig) -> Keys:
    """Experts and the limit of q, k and v."""
    keys: Keys = {"expert_count": config.size("experts"), "expert_used_count": config.size("experts_used")}
    return keys | ({"attention.clamp_kqv": float(config.number("clip_qkv"))} if config.get("clip_qkv") else {})


def dbrx_changes(name: str, config: HubConfig) -> Iterator[tuple[str, Change]]:
    """Experts' matrices, which are one under the other, as a stack; those of down as [out, in]."""
    stack = config.size("experts"), config.size("ffn"), config.size("dim")
    if name in ("ffn_gate_exps.weight", "ffn_up_exps.weight"):
        yield name, lambda values: values.reshape(stack)
    elif name == "ffn_down_exps.weight":
        yield name, lambda values: values.reshape(stack).swapaxes(1, 2)


# --- MiniCPM 3 ----------------------------------------------------------------------------------------------------------
def minicpm3_values(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The size of a head is that of its rotated part. Raises ModelError for scales other than those that readers have."""
    for name, wanted in _SCALES.items():
        if values.get(name, wanted) != wanted:
            raise ModelError(
                f"{path}: {name} is {shown_value(values[name])}; wanted {wanted}, which GGUF files of minicpm3 have"
            )
    return {**values, "head_dim": values.get("qk_rope_head_dim")}


def minicpm3_keys(config: HubConfig) -> Keys:
    """Sizes of latent attention, whose projection of keys and values stays one tensor."""
    rope = config.size("qk_rope_head_dim")
    return {
        "attention.q_lora_rank": config.size("q_lora_rank"),
        "attention.kv_lora_rank": config.size("kv_lora_rank"),
        "attention.key_length": config.size("qk_nope_head_dim") + rope,
        "attention.value_length": config.size("v_head_dim"),
        "rope.dimension_count": rope,
    }


# --- Kimi Linear --------------------------------------------------------------------------------------------------------
def kimi_values(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Sizes under the names of other families; kinds of layers from the numbers of those with attention, from 1 on."""
    linear = _inner(values, "linear_attn_config", path)
    sizes = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads"}
    found = _renamed(linear, {**sizes, "short_conv_kernel_size": "linear_conv_kernel_dim"})
    names = {"model_max_length": "max_position_embeddings", "num_experts_per_token": "num_experts_per_tok"}
    whole, n = linear.get("full_attn_layers"), values.get("num_hidden_layers", 0)
    if isinstance(whole, list) and isinstance(n, int):
        found["layer_types"] = ["full_attention" if i + 1 in whole else "linear_attention" for i in range(n)]
    return {**values, **_renamed(values, names), **found}


def kimi_keys(config: HubConfig) -> Keys:
    """Sizes of both kinds of layers, and the experts. Raises ModelError for what GGUF files cannot say."""
    kinds, rope = config.layer_kinds, config.size("qk_rope_head_dim")
    if config.size("linear_num_heads") != config.size("heads"):
        raise ModelError(f"{config.path}: linear_num_heads and num_attention_heads differ; wanted one number")
    return {
        "attention.head_count_kv": [int(kind == "full_attention") for kind in kinds],
        "attention.kv_lora_rank": config.size("kv_lora_rank"),
        "attention.key_length": config.size("qk_nope_head_dim") + rope,
        "attention.value_length": config.size("v_head_dim"),
        "attention.key_length_mla": config.size("qk_nope_head_dim") + rope,
        "attention.value_length_mla": config.size("v_head_dim"),
        "rope.dimension_count": rope,
        "kda.head_dim": config.size("linear_head_dim"),
        "ssm.conv_kernel": config.size("linear_conv_kernel_dim", 4),
        "expert_count": config.size("experts"),
        "expert_used_count": config.size("experts_used"),
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "expert_shared_count": config.size("num_shared_experts", 1),
        "leading_dense_block_count": leading_dense(config),
        **sigmoid_routing(config, config.size("num_expert_group", 1), "moe_renormalize"),
    }


def kimi_changes(name: str, config: HubConfig) -> Iterator[tuple[str, Change]]:
    """Decays as they are used, taps of convolutions in four axes, and latent attention in absorbed form."""
    if name == "ssm_a":
        yield name, lambda values: -np.exp(values)
    elif name.startswith("ssm_conv1d_"):
        yield name, lambda values: values.reshape(1, values.shape[0], 1, -1)
    yield from latent_changes(name, config)


# --- Gemma 3n -----------------------------------------------------------------------------------------------------------
def gemma3n_values(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Widths of feed-forwards by layer, beside that of the first one."""
    n, widths = values.get("num_hidden_layers"), values.get("intermediate_size")
    if not isinstance(n, int) or not 1 <= n < 1 << 16:
        raise ModelError(f"{path}: num_hidden_layers is {shown_value(n)}; wanted a number of layers")
    listed = widths if isinstance(widths, list) else [widths] * n
    if len(listed) != n or any(type(width) is not int or width < 1 for width in listed):
        raise ModelError(
            f"{path}: intermediate_size is {shown_value(widths)}; wanted a size, or one for each of {n} layers"
        )
    return {**values, "intermediate_size": listed[0], "widths": listed}


def gemma3n_keys(config: HubConfig) -> Keys:
    """Streams, sparse gates, windows, shared keys and embeddings of layers."""
    n, kinds = config.size("layers"), config.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != n:
        kinds = [("sliding", "full")[(i + 1) % 5 == 0] + "_attention" for i in range(n)]
    return {
        "feed_forward_length": config.get("widths"),
        "altup.num_inputs": config.size("altup_num_inputs", 4),
        "altup.active_idx": int(config.number("altup_active_idx", 0)),
        "embedding_length_per_layer_input": config.size("hidden_size_per_layer_input", 256),
        "activation_sparsity_scale": [_deviations(share) for share in _sparsity(config, n)],
        "attention.shared_kv_layers": int(config.number("num_kv_shared_layers", 15)),
        "attention.sliding_window": config.size("sliding_window", 512),
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
    }


def _sparsity(config: HubConfig, n: int) -> list[float]:
    """The share of each layer's gates that are 0."""
    given = config.get("activation_sparsity_pattern")
    usual = [_SPARSITY if i < _SPARSE_LAYERS < n else 0.0 for i in range(n)]
    listed = usual if given is None else given if isinstance(given, list) else [given] * n
    shares = [config.checked("activation_sparsity_pattern", share) for share in listed]
    if len(shares) != n or not all(0 <= share < 1 for share in shares):
        raise ModelError(
            f"{config.path}: activation_sparsity_pattern is {shown_value(given)}; wanted {n} shares below 1"
        )
    return [float(share) for share in shares]


def _deviations(share: float) -> float:
    """How many deviations above the mean this share of normal numbers is below, of the share in f32 as transformers has it."""
    return NormalDist().inv_cdf(float(np.float32(share))) if share else -math.inf


# --- BLOOM --------------------------------------------------------------------------------------------------------------
def bloom_values(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The width of feed-forwards, four times that of the model, and the length of texts in training. Raises ModelError for
    residuals that are taken after the norm."""
    if values.get("apply_residual_connection_post_layernorm"):
        raise ModelError(f"{path}: apply_residual_connection_post_layernorm is true; wanted residuals before the norm")
    width = values.get("hidden_size", values.get("n_embed"))
    if type(width) is not int:
        raise ModelError(f"{path}: hidden_size is {shown_value(width)}; wanted a width")
    usual = {"hidden_size": width, "intermediate_size": 4 * width, "tie_word_embeddings": True}
    return {**usual, "max_position_embeddings": values.get("seq_length", 2048), **values}


# --- Nanbeige -----------------------------------------------------------------------------------------------------------
def nanbeige_keys(config: HubConfig) -> Keys:
    """How often the layers run, and whether the last norm comes between."""
    skips = config.get("skip_loop_final_norm", False)
    if not isinstance(skips, bool):
        raise ModelError(f"{config.path}: skip_loop_final_norm is {shown_value(skips)}; wanted true or false")
    return {"num_loops": config.size("num_loops", 1), "skip_loop_final_norm": skips}


ROWS = {
    "NanbeigeForCausalLM": Architecture("nanbeige", permuted=True, keys=(nanbeige_keys,)),
    "PanguEmbeddedForCausalLM": Architecture("pangu-embedded"),
    "MiniCPM3ForCausalLM": Architecture("minicpm3", keys=(minicpm3_keys, longrope), values=minicpm3_values),
    "DbrxForCausalLM": Architecture("dbrx", keys=(dbrx_keys,), values=dbrx_values, changes=dbrx_changes),
    "KimiLinearForCausalLM": Architecture("kimi-linear", keys=(kimi_keys,), values=kimi_values, changes=kimi_changes),
}
