"""Metadata keys of attention: sliding windows, RoPE scaling that only one family has, and a few other constants."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from camshaft.errors import ModelError
from camshaft.models.convert.architecture import MoreKeys
from camshaft.models.convert.hub_config import HubConfig

Keys: TypeAlias = dict[str, Any]
_JITTER = 0.01  # readers of GGUF files assume it


def temperature(config: HubConfig) -> Keys:
    """Returns Mistral 3's attention temperature, by which scores grow with the position, and YaRN's mscale_all_dim."""
    rope, keys = config.rope, {}
    if rope.get("llama_4_scaling_beta"):
        keys["attention.temperature_scale"] = float(rope["llama_4_scaling_beta"])
    if rope.get("mscale_all_dim"):
        keys["rope.scaling.yarn_log_multiplier"] = float(rope["mscale_all_dim"])
    return keys


def phimoe(config: HubConfig) -> Keys:
    """Returns Phi-3.5-MoE's attention factor, which its config gives for short and long texts, and its norms' epsilon under the
    key that GGUF readers expect. Raises ModelError if the two factors differ, or for another router jitter."""
    keys: Keys = {"attention.layer_norm_rms_epsilon": float(config.number("layer_eps"))}
    if config.number("router_jitter_noise", _JITTER) != _JITTER:
        raise ModelError(f"{config.path}: router_jitter_noise is {config.get('router_jitter_noise')}; wanted {_JITTER}")
    if config.rope["rope_type"] not in ("longrope", "su"):
        return keys
    short, long = (config.checked(name, config.rope.get(name)) for name in ("short_mscale", "long_mscale"))
    if short != long:
        raise ModelError(f"{config.path}: short_mscale is {short} and long_mscale {long}; wanted equal factors")
    old = config.rope.get("original_max_position_embeddings") or config.size("original_max_position_embeddings")
    keys |= {"rope.scaling.original_context_length": int(old), "rope.scaling.attn_factor": float(short)}
    return keys


def clamp(config: HubConfig) -> Keys:
    """Returns OLMo's clamp of q, k and v, and the epsilon of its norms, which its config does not have."""
    keys: Keys = {"attention.layer_norm_epsilon": 1e-5}
    return keys | ({"attention.clamp_kqv": float(config.number("clip_qkv"))} if config.get("clip_qkv") else {})


def deepstack(config: HubConfig) -> Keys:
    """Returns how many of the first layers of the text model receive image embeddings (DeepStack)."""
    vision = config.get("vision_config")
    layers = vision.get("deepstack_visual_indexes") if isinstance(vision, dict) else None
    if not isinstance(layers, list):
        raise ModelError(f"{config.path}: vision_config has no deepstack_visual_indexes; wanted a list of layers")
    return {"n_deepstack_layers": len(layers)}


def longrope(config: HubConfig) -> Keys:
    """Returns Phi-3's attention factor, sqrt(1 + ln(context / original) / ln(original))."""
    if config.rope["rope_type"] not in ("longrope", "su"):
        return {}
    old = config.rope.get("original_max_position_embeddings") or config.size("original_max_position_embeddings")
    scale = config.size("context") / old
    factor = config.rope.get("attention_factor") or math.sqrt(1 + math.log(scale) / math.log(old)) if scale > 1 else 1.0
    return {"rope.scaling.original_context_length": int(old), "rope.scaling.attn_factor": float(factor)}


def window(config: HubConfig) -> Keys:
    """Returns the window size, if there is one."""
    return {"attention.sliding_window": config.size("sliding_window")} if config.get("sliding_window") else {}


def window_pattern(config: HubConfig) -> Keys:
    """Returns the window size and which layers have it."""
    kinds = config.get("layer_types")
    if not config.get("sliding_window") or not isinstance(kinds, list):
        return {}
    return {**window(config), "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds]}


def window_every(n: int) -> MoreKeys:
    """Returns the window size, after a check that all layers but every n-th have it: GGUF readers assume that pattern."""

    def keys(config: HubConfig) -> Keys:
        kinds = config.get("layer_types")
        expected = ["full_attention" if (i + 1) % n == 0 else "sliding_attention" for i in range(config.size("layers"))]
        if kinds is not None and kinds != expected:
            raise ModelError(f"{config.path}: layer_types do not have full_attention in every layer {n} of {n} alone")
        return window(config)

    return keys


def window_base(config: HubConfig) -> Keys:
    """Returns the RoPE base of layers with a window, if it differs from the others'."""
    theta = config.window_theta
    return {} if theta is None else {"rope.freq_base_swa": float(theta)}
