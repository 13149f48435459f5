"""Tiny models with rows of 256 elements or more, so that every format of quantized weights has whole blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scripts.oracles.tiny.model import TinyModel
from scripts.oracles.tiny.vocabulary import N_VOCAB

HIDDEN, FFN, EXPERT, HEAD, RANK = 256, 512, 256, 64, 256
# Sizes in the words of transformers and of GGUF, of all families whose options or keys have them.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(
        (
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "moe_latent_size",
            "expert_feed_forward_length",
            "expert_shared_feed_forward_length",
        ),
        EXPERT,
    ),
    **dict.fromkeys(("n_inner", "ffn_hidden_size", "intermediate_size_mlp", "feed_forward_length"), FFN),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "attention.kv_lora_rank", "attention.q_lora_rank"), RANK),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim", "attention.value_length_mla"), HEAD),
    **dict.fromkeys(("hidden_size_per_layer_input", "embedding_length_per_layer_input"), EXPERT),
    "query_pre_attn_scalar": HEAD,
    "vocab_size_per_layer_input": N_VOCAB,
    "ssm.inner_size": 2 * HIDDEN,
}
_ROPE = 32  # of heads of latents
_LATENT = {
    "head_dim": _ROPE,
    "qk_rope_head_dim": _ROPE,
    "rope.dimension_count": _ROPE,
    "attention.key_length": RANK + _ROPE,
    "attention.value_length": RANK,
    "attention.key_length_mla": HEAD + _ROPE,
}
_DELTA = {
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "ssm.state_size"), HEAD),
    "ssm.inner_size": 4 * HEAD,
}
_EXPERTS_OF_FFN = {"expert_feed_forward_length": FFN}
_SEES_ALL = dict.fromkeys(("attention.indexer.top_k", "index_topk"), 512)  # longer texts are refused
_MAMBA2 = {"num_heads": 8, "mamba_num_heads": 8, "ssm.time_step_rank": 8}
_MAMBA2 |= dict.fromkeys(("head_dim", "mamba_head_dim", "mamba_d_head"), HEAD)
_MAMBA2 |= {"mamba_n_heads": 8, "mamba_d_ssm": 2 * HIDDEN, "intermediate_size": 2 * HIDDEN}
_MAMBA = {
    "intermediate_size": 2 * HIDDEN,
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank", "ssm.time_step_rank"), 16),
}
_GEMMA4 = {
    "global_head_dim": 2 * HEAD,
    **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), 2 * HEAD),
    **dict.fromkeys(("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"), HEAD),
}
_SHARED_EXPERTS = {"expert_shared_feed_forward_length": 2 * EXPERT}
# What a family's sizes are beside those, where it has others; names of fields of TinyModel too.
_OF: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("mamba2", "granitehybrid", "nemotron_h", "nemotron_h_moe", "falcon-h1"), _MAMBA2),
    **dict.fromkeys(("mamba", "falcon-mamba", "jamba"), _MAMBA),
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next"), _DELTA),
    **dict.fromkeys(("deepseek2-lite", "deepseek2-v3"), _LATENT),
    **dict.fromkeys(("deepseek32", "glm-dsa"), _LATENT | _SEES_ALL),
    **dict.fromkeys(("mixtral", "gpt-oss", "granitemoe"), _EXPERTS_OF_FFN),
    **dict.fromkeys(("gemma4", "gemma4-moe"), _GEMMA4),
    "minicpm3": {**_LATENT, "attention.key_length": HEAD + _ROPE},
    "kimi-linear": {**_LATENT, "kv_heads": 4, "linear_num_heads": 4, "linear_head_dim": HEAD, "kda.head_dim": HEAD},
    # llama.cpp takes experts to be as wide as a dense feed-forward
    "hunyuan-moe": {**_EXPERTS_OF_FFN, "moe_intermediate_size": FFN, "expert_shared_feed_forward_length": FFN},
    "minimax-m2": {**_EXPERTS_OF_FFN, "intermediate_size": FFN},
    **dict.fromkeys(("exaone-moe", "ernie4_5-moe"), _SHARED_EXPERTS),
    # llama.cpp's parts of the context, its scales by position and its windows are these, whatever the file says
    "llama4": {
        **_EXPERTS_OF_FFN,
        **dict.fromkeys(("attention.sliding_window", "attention.temperature_length", "floor_scale"), 8192),
        **dict.fromkeys(("attention.temperature_scale", "attn_scale"), 0.1),
    },
    "smallthinker": {"attention.sliding_window": 4096},
    "rwkv6": {"heads": 0, "wkv.head_size": HEAD},
    "rwkv7": {"heads": 0, "wkv.head_size": HEAD},
    "bloom": {"ffn": 4 * HIDDEN, "n_head": 4},
    # llama.cpp reads none of these: layers with sparse gates and with keys of their own, ranks, the cap of logits
    "gemma3n": {"n_layers": 22, "laurel_rank": 64, "final_logit_softcapping": 30.0},
    # llama.cpp takes as many heads of keys as of queries for granted
    "dots1": {"kv_heads": 4},
    "ernie4_5-moe": {**_SHARED_EXPERTS, "moe_layer_interval": 1, "interleave_moe_layer_step": 1, "moe_layer_start_index": 1},
}  # fmt: skip
_FIELDS = ("heads", "kv_heads", "head_dim", "ffn", "n_layers")
# Keys that released files have and llama.cpp wants, where a tiny one does without.
_MORE_KEYS = {"hunyuan-moe": {"expert_feed_forward_length": FFN}}
_SPARSE, _OWN_KEYS, _SHARED_KEYS, _PERIOD = 10, 20, 2, 5
_WINDOWS = [(layer + 1) % _PERIOD != 0 for layer in range(_OWN_KEYS + _SHARED_KEYS)]
# Lists of layers of a family, in the words of transformers and of GGUF, where it has another number of them.
_LISTS: dict[str, dict[str, Any]] = {
    "gemma3n": {
        "layer_types": ["sliding_attention" if is_window else "full_attention" for is_window in _WINDOWS],
        "attention.sliding_window_pattern": _WINDOWS,
        **dict.fromkeys(("intermediate_size", "feed_forward_length"), [FFN] * len(_WINDOWS)),
        **dict.fromkeys(("num_kv_shared_layers", "attention.shared_kv_layers"), _SHARED_KEYS),
        "activation_sparsity_pattern": [0.95] * _SPARSE + [0.0] * (len(_WINDOWS) - _SPARSE),
        "activation_sparsity_scale": [1.6448536] * _SPARSE + [float("-inf")] * (len(_WINDOWS) - _SPARSE),
    }
}


def widened(model: TinyModel) -> TinyModel:
    """The model with rows of whole blocks, and the vocabulary and the accuracy that the frozen ones may lack."""
    own = _OF.get(model.name, {})
    sizes = _SIZES | own

    def sized(given: Mapping[str, Any]) -> dict[str, Any]:
        lists = _LISTS.get(model.name, {})
        return {name: lists.get(name, _size(name, value, sizes)) for name, value in given.items()}

    fields: dict[str, Any] = {"ffn": FFN if model.ffn else 0}
    if model.heads:
        one = min(model.kv_heads, 2)
        fields |= {"heads": 4, "kv_heads": 4 if model.kv_heads == model.heads else one, "head_dim": HEAD}
    elif model.head_dim:
        fields["head_dim"] = HEAD
    fields |= {name: own[name] for name in _FIELDS if name in own}
    extra = {name: own[name] for name in ("moe_layer_start_index",) if name in own}
    return replace(
        model,
        name="wide",  # by a name with phi3 llama.cpp takes other tokens for granted
        hidden=HIDDEN,
        **fields,
        rope={name: _factors(value, fields.get("head_dim", 0)) for name, value in model.rope.items()},
        options=_inside(sized(model.options), model) | extra,
        keys=sized(model.keys) | _MORE_KEYS.get(model.name, {}),
        values="bfloat16",
        n_vocab=N_VOCAB,
    )


def _size(name: str, value: Any, sizes: Mapping[str, Any]) -> Any:
    """0 and None stay as they are; sizes of a list of layers keep their proportions."""
    if name not in sizes or not value:
        return value
    if isinstance(value, list):
        least = min(x for x in value if x)
        return [sizes[name] * x // least for x in value]
    return sizes[name]


def _factors(value: Any, head_dim: int) -> Any:
    """A factor for each pair of a head's elements, where there is a list of them."""
    return [value[i % len(value)] for i in range(head_dim // 2)] if isinstance(value, list) else value


def _inside(options: dict[str, Any], model: TinyModel) -> dict[str, Any]:
    """The options of options, of which DBRX has some."""
    if model.family != "Dbrx":
        return options
    inner = {**options["ffn_config"], "ffn_hidden_size": FFN, "hidden_size": HIDDEN}
    return {**options, "d_model": HIDDEN, "n_heads": 4, "ffn_config": inner}
