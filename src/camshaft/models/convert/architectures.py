"""The classes of transformers that are converted: the GGUF architecture of each, and what its config adds to the metadata."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown
from camshaft.models.convert.delta_rule import delta_keys, rotation_sections
from camshaft.models.convert.encoder_decoder import WHISPER, EncoderDecoder
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.state_space import (
    adjusted_ffn,
    granite_hybrid_keys,
    mamba2_keys,
    mamba_keys,
    short_convolutions,
)

Keys: TypeAlias = dict[str, Any]
MoreKeys: TypeAlias = Callable[[HubConfig], Keys]


@dataclass(frozen=True)
class Architecture:
    """name: general.architecture. permuted: rows of q and k go from halves to pairs. norm_offset is added to weights of norms.

    keys: more metadata, under the architecture's prefix. transposed: matrices are stored [in, out]. defaults: what config.json
    leaves out, as transformers does for values that are its defaults. in_turn: heads of values share those of keys in turn.
    encoder_decoder: what takes the place of all this in models with an encoder and a decoder.
    """

    name: str
    permuted: bool = False
    norm_offset: float = 0.0
    keys: tuple[MoreKeys, ...] = ()
    transposed: bool = False
    in_turn: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    encoder_decoder: EncoderDecoder | None = None


def _window(config: HubConfig) -> Keys:
    return {"attention.sliding_window": config.size("sliding_window")} if config.get("sliding_window") else {}


def _window_pattern(config: HubConfig) -> Keys:
    """The window, and which layers have it."""
    kinds = config.get("layer_types")
    if not config.get("sliding_window") or not isinstance(kinds, list):
        return {}
    return {**_window(config), "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds]}


def _window_every(n: int) -> MoreKeys:
    """The window, of all layers but every n-th, as GGUF files have it without saying so."""

    def keys(config: HubConfig) -> Keys:
        kinds = config.get("layer_types")
        expected = ["full_attention" if (i + 1) % n == 0 else "sliding_attention" for i in range(config.size("layers"))]
        if kinds is not None and kinds != expected:
            raise ModelError(f"{config.path}: layer_types do not have full_attention in every layer {n} of {n} alone")
        return _window(config)

    return keys


def _window_base(config: HubConfig) -> Keys:
    theta = config.window_theta
    return {} if theta is None else {"rope.freq_base_swa": float(theta)}


def _soft_caps(config: HubConfig) -> Keys:
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    return {name: float(config.number(name)) for name in names if config.get(name)}


def _query_scale(layers: int) -> MoreKeys:
    """attention.scale, unless query_pre_attn_scalar is the head's size, or what readers take in models of so many layers."""

    def keys(config: HubConfig) -> Keys:
        usual = config.size("dim") / config.size("heads") if config.size("layers") == layers else config.head_dim
        wanted = config.number("query_pre_attn_scalar", usual)
        return {} if wanted == usual else {"attention.scale": wanted**-0.5}

    return keys


def _experts(config: HubConfig) -> Keys:
    keys = {"expert_count": config.size("experts"), "expert_used_count": config.size("experts_used")}
    for name, key in (("moe_intermediate_size", "expert"), ("shared_expert_intermediate_size", "expert_shared")):
        if config.get(name):
            keys[f"{key}_feed_forward_length"] = config.size(name)
    return keys


def _granite(config: HubConfig) -> Keys:
    names = {"embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale"}
    names |= {"attention_multiplier": "attention.scale", "logits_scaling": "logit_scale"}
    return {key: float(config.number(name)) for name, key in names.items() if config.get(name) is not None}


def _parallel(default: bool) -> MoreKeys:
    return lambda config: {"use_parallel_residual": bool(config.get("use_parallel_residual", default))}


def _logit_scale(config: HubConfig) -> Keys:
    return {"logit_scale": float(config.number("logit_scale"))}


def _temperature(config: HubConfig) -> Keys:
    """Mistral 3's: scores grow with the position; YaRN's magnitude is told by mscale_all_dim."""
    rope, keys = config.rope, {}
    if rope.get("llama_4_scaling_beta"):
        keys["attention.temperature_scale"] = float(rope["llama_4_scaling_beta"])
    if rope.get("mscale_all_dim"):
        keys["rope.scaling.yarn_log_multiplier"] = float(rope["mscale_all_dim"])
    return keys


def _longrope(config: HubConfig) -> Keys:
    """Phi-3's magnitude of rotations, sqrt(1 + ln(context / original) / ln(original))."""
    if config.rope["rope_type"] not in ("longrope", "su"):
        return {}
    old = config.rope.get("original_max_position_embeddings") or config.size("original_max_position_embeddings")
    scale = config.size("context") / old
    factor = config.rope.get("attention_factor") or math.sqrt(1 + math.log(scale) / math.log(old)) if scale > 1 else 1.0
    return {"rope.scaling.original_context_length": int(old), "rope.scaling.attn_factor": float(factor)}


def _every_fourth_is_not_rotated(config: HubConfig) -> Keys:
    layers = config.get("no_rope_layers")
    if layers is not None and layers != [int((i + 1) % 4 != 0) for i in range(config.size("layers"))]:
        raise ModelError(f"{config.path}: no_rope_layers is not every fourth layer, which GGUF files of smollm3 have")
    return {}


def _no_alibi(config: HubConfig) -> Keys:
    if config.get("alibi"):
        raise ModelError(f"{config.path}: has alibi; wanted a model with rotary positions")
    return {}


def _gpt_oss(config: HubConfig) -> Keys:
    return {**_experts(config), "expert_feed_forward_length": config.size("ffn")}


def _lfm2_experts(config: HubConfig) -> Keys:
    return {**_experts(config), "leading_dense_block_count": config.size("num_dense_layers"), **_SIGMOID}


def _glm4_experts(config: HubConfig) -> Keys:
    return {
        **_experts(config),
        "leading_dense_block_count": config.size("first_k_dense_replace"),
        "expert_shared_count": config.size("n_shared_experts"),
        "expert_weights_scale": float(config.number("routed_scaling_factor", 1.0)),
        "expert_weights_norm": bool(config.get("norm_topk_prob", True)),
        **_SIGMOID,
    }


def _ernie_experts(config: HubConfig) -> Keys:
    shared = config.size("moe_num_shared_experts")
    return {
        **_experts(config),
        "leading_dense_block_count": config.size("moe_layer_start_index"),
        "interleave_moe_layer_step": config.size("moe_layer_interval", 1),
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": shared * config.size("moe_intermediate_size"),
    }


_SIGMOID = {"expert_gating_func": 2}


_GEMMA = {"head_dim": 256, "rms_norm_eps": 1e-6, "sliding_window": 4096, "num_key_value_heads": 4}
_NO_LIMIT = {"max_position_embeddings": 1 << 20}  # recurrent models have none
_LLAMA = Architecture("llama", permuted=True, defaults={"rms_norm_eps": 1e-6})
ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": Architecture("llama", permuted=True, keys=(_experts,)),
    "Qwen2ForCausalLM": Architecture("qwen2"),
    "Qwen2MoeForCausalLM": Architecture("qwen2moe", keys=(_experts,)),
    "Qwen3ForCausalLM": Architecture("qwen3"),
    "Qwen3MoeForCausalLM": Architecture("qwen3moe", keys=(_experts,)),
    "Gemma2ForCausalLM": Architecture(
        "gemma2",
        norm_offset=1,
        keys=(_window_pattern, _soft_caps, _query_scale(46)),
        defaults={**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    **dict.fromkeys(
        ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        Architecture(
            "gemma3",
            norm_offset=1,
            keys=(_window_every(6), _window_base, _soft_caps, _query_scale(62)),
            defaults={
                **_GEMMA,
                "num_attention_heads": 8,
                "rope_theta": 1e6,
                "rope_local_base_freq": 10000.0,
                "max_position_embeddings": 131072,
            },
        ),
    ),
    "Olmo2ForCausalLM": Architecture("olmo2"),
    "Olmo3ForCausalLM": Architecture("olmo2", keys=(_window_pattern,)),
    "OlmoeForCausalLM": Architecture("olmoe", keys=(_experts,)),
    "Exaone4ForCausalLM": Architecture("exaone4", keys=(_window_pattern,)),
    "Phi3ForCausalLM": Architecture("phi3", keys=(_window, _longrope)),
    "SmolLM3ForCausalLM": Architecture("smollm3", permuted=True, keys=(_every_fourth_is_not_rotated,)),
    "SeedOssForCausalLM": Architecture("seed_oss"),
    "Ministral3ForCausalLM": Architecture("mistral3", permuted=True, keys=(_temperature,)),
    "GraniteForCausalLM": Architecture("granite", permuted=True, keys=(_granite,)),
    "GraniteMoeForCausalLM": Architecture("granitemoe", permuted=True, keys=(_granite, _experts)),
    "GptOssForCausalLM": Architecture("gpt-oss", keys=(_gpt_oss, _window_every(2))),
    "Starcoder2ForCausalLM": Architecture("starcoder2"),
    "StableLmForCausalLM": Architecture("stablelm", keys=(_parallel(default=False),)),
    "GPT2LMHeadModel": Architecture("gpt2", transposed=True, defaults={"layer_norm_epsilon": 1e-5}),
    "GPTNeoXForCausalLM": Architecture("gptneox", keys=(_parallel(default=True),)),
    "FalconForCausalLM": Architecture("falcon", keys=(_no_alibi,), defaults={"max_position_embeddings": 2048}),
    "CohereForCausalLM": Architecture("command-r", keys=(_logit_scale,)),
    "Cohere2ForCausalLM": Architecture("cohere2", keys=(_logit_scale, _window_every(4))),
    "Lfm2ForCausalLM": Architecture("lfm2", keys=(short_convolutions, adjusted_ffn)),
    "Lfm2MoeForCausalLM": Architecture("lfm2moe", keys=(short_convolutions, _lfm2_experts)),
    "Glm4ForCausalLM": Architecture("glm4"),
    "Glm4MoeForCausalLM": Architecture("glm4moe", keys=(_glm4_experts,)),
    "Ernie4_5ForCausalLM": Architecture("ernie4_5"),
    "Ernie4_5_MoeForCausalLM": Architecture("ernie4_5-moe", keys=(_ernie_experts,)),
    "HunYuanDenseV1ForCausalLM": Architecture("hunyuan-dense"),
    **dict.fromkeys(
        ("MambaForCausalLM", "FalconMambaForCausalLM"), Architecture("mamba", keys=(mamba_keys,), defaults=_NO_LIMIT)
    ),
    "Mamba2ForCausalLM": Architecture("mamba2", keys=(mamba2_keys,), defaults=_NO_LIMIT),
    "GraniteMoeHybridForCausalLM": Architecture(
        "granitehybrid", permuted=True, keys=(granite_hybrid_keys, _granite, _experts)
    ),
    "Qwen3NextForCausalLM": Architecture("qwen3next", norm_offset=1, keys=(delta_keys, _experts)),
    **dict.fromkeys(
        ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        Architecture("qwen35", norm_offset=1, keys=(delta_keys, rotation_sections), in_turn=True),
    ),
    **dict.fromkeys(
        ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
        Architecture("qwen35moe", norm_offset=1, keys=(delta_keys, rotation_sections, _experts), in_turn=True),
    ),
    "WhisperForConditionalGeneration": Architecture("whisper", encoder_decoder=WHISPER),
}


def architecture_of(config: HubConfig) -> Architecture:
    """The row of a config's class. Raises ModelError, listing those that have one."""
    if config.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{config.path}: no conversion of {shown(config.architecture)}; camshaft converts {known}")
    return ARCHITECTURES[config.architecture]
