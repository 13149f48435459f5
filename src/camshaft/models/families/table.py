"""The supported model families: a row of options of one decoder each, by general.architecture of GGUF.

All are decoders of grouped-query attention and a feed-forward, dense or of experts; some have recurrent layers in place of
attention, in some layers or all. A row says what the file's metadata does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from camshaft.errors import ModelError, OtherArchitectureError
from camshaft.formats.mapped import shown_value
from camshaft.models.families.family import Family
from camshaft.models.families.hybrids import HYBRIDS

_BERT = Family(
    "neox",
    norms="sum",
    norm="layer",
    biases="all",
    gated=False,
    activation="gelu_erf",
    learned_positions=True,
    encoder=True,
    embedding_norm=True,
)
_ROTATED_BERT = replace(_BERT, learned_positions=False, fused="qkv")
ENCODERS: dict[str, Family] = {
    "bert": _BERT,
    "nomic-bert": Family("neox", norms="sum", norm="layer", fused="qkv", encoder=True, embedding_norm=True),
    "nomic-bert-moe": replace(_ROTATED_BERT, normalizes_experts=False),
    "jina-bert-v2": replace(_BERT, learned_positions=False, fused="up", gated=True, alibi=True),
    "jina-bert-v3": _ROTATED_BERT,
    "t5encoder": Family(
        "neox", encoder=True, one_text=True, rotates=False, score_scale=1.0, activation="gelu", builder="t5"
    ),
    "modern-bert": Family(
        "neox",
        norm="layer",
        norm_bias=False,
        fused="all",
        activation="gelu_erf",
        windows=True,
        full_every=3,
        full_first=True,
        window_rope="plain",
        window_theta=10000.0,
        encoder=True,
        embedding_norm=True,
    ),
}

_GEMMA2 = Family(
    "neox",
    norms="both",
    activation="gelu",
    embedding_scale="dim",
    windows=True,
    full_every=2,
    query_scale_layers=46,
    softcaps=(50.0, 30.0),
)
_GEMMA3 = replace(
    _GEMMA2,
    qk_norm="head",
    full_every=6,
    window_rope="plain",
    window_theta=10000.0,
    query_scale_layers=62,
    softcaps=(0.0, 0.0),
)
# Gemma 4, and 3n
_SIZED_GEMMA = replace(
    _GEMMA3, query_scale_layers=0, score_scale=1.0, layer_sizes=True, norms_values=True, per_layer=True
)
_GPT2 = Family("neox", norm="layer", biases="all", fused="qkv", gated=False, activation="gelu", learned_positions=True)
_COMMAND_R = Family("interleaved", norm="layer", norm_bias=False, parallel=True, multiplies_logits=True)
_STARCODER2 = Family("neox", norm="layer", biases="all", gated=False, activation="gelu")
# "llama" is also SmolLM2, Llama 2 and 3, Mistral, Mixtral and TinyLlama; "olmo2" is also OLMo 3; "phi3" is also Phi-3.5 and 4;
# "gptneox" is also Pythia.
FAMILIES: dict[str, Family] = {
    "llama": Family("interleaved"),
    "llama4": Family(
        "interleaved",
        qk_norm="bare",
        windows=True,
        full_every=4,
        chunks=8192,
        rotates_windows_only=True,
        temperature=0.1,
        expert_score="sigmoid",
        normalizes_experts=False,
        shared_experts=1,
        weighs_inputs=True,
    ),
    "qwen": Family("neox", biases="qkv", fused="qkv", halves_width=True),
    "qwen2": Family("neox", biases="qkv"),
    "qwen2moe": Family("neox", biases="qkv", normalizes_experts=False),
    "qwen2vl": Family("neox", biases="qkv", axes="contiguous"),
    "qwen3": Family("neox", qk_norm="head"),
    "qwen3moe": Family("neox", qk_norm="head"),
    "qwen3vl": Family("neox", qk_norm="head", axes="interleaved"),
    "qwen3vlmoe": Family("neox", qk_norm="head", axes="interleaved"),
    "gemma": Family("neox", activation="gelu", embedding_scale="dim"),
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma4": replace(_SIZED_GEMMA, full_every=0, dense_unrouted=True, dense_beside_experts="normed"),
    "gemma3n": replace(_SIZED_GEMMA, full_every=5, softcaps=(0.0, 30.0), builder="gemma3n"),
    "olmo": Family("interleaved", norm="bare"),
    "olmo2": Family("neox", norms="post", qk_norm="row", windows=True, full_every=4, window_rope="plain"),
    "olmoe": Family("neox", qk_norm="row", normalizes_experts=False),
    "exaone-moe": Family(
        "neox",
        qk_norm="head",
        windows=True,
        full_every=4,
        rotates_windows_only=True,
        normalizes_experts=False,
        expert_score="sigmoid",
    ),
    "afmoe": Family(
        "neox",
        norms="both",
        qk_norm="head",
        embedding_scale="dim",
        windows=True,
        full_every=4,
        rotates_windows_only=True,
        gated_attention="apart",
        normalizes_experts=False,
        expert_score="sigmoid",
    ),
    "mellum": Family("neox", qk_norm="head", windows=True, full_every=4, window_rope="plain"),
    "exaone4": Family("neox", norms="post", qk_norm="head", windows=True, full_every=4, rotates_windows_only=True),
    "phi2": Family("neox", norm="layer", parallel=True, biases="all", gated=False, activation="gelu"),
    "phi3": Family("neox", fused="all", windows=True),
    "phimoe": Family("neox", norm="layer", biases="all", expert_score="sparse_mixer"),
    "deci": Family("interleaved", layer_sizes=True, layers_apart=True),
    "smallthinker": Family(
        "neox",
        activation="relu",
        windows=True,
        full_every=4,
        full_first=True,
        rotates_windows_only=True,
        expert_score="sigmoid",
        routes_inputs=True,
    ),
    "smollm3": Family("interleaved", unrotated_every=4),
    "seed_oss": Family("neox", biases="qkv", ffn_norm="post_attention_norm"),
    "mistral3": Family("interleaved"),
    "starcoder2": _STARCODER2,
    "codeshell": replace(_STARCODER2, one_table=True),
    "stablelm": Family("neox", norm="layer", biases="file"),
    "gpt2": _GPT2,
    "starcoder": _GPT2,
    "gptneox": Family(
        "neox", norm="layer", parallel=True, biases="all", fused="qkv", gated=False, activation="gelu_erf"
    ),
    "bloom": replace(_GPT2, learned_positions=False, alibi=True, embedding_norm=True),
    "falcon": Family("neox", norm="layer", parallel=True, fused="qkv", gated=False, activation="gelu_erf"),
    "command-r": _COMMAND_R,
    "cohere2": replace(_COMMAND_R, windows=True, full_every=4, rotates_windows_only=True),
    **ENCODERS,
    **HYBRIDS,
    "gemma-embedding": replace(_GEMMA3, encoder=True, query_scale_layers=0),
    "gpt-oss": Family(
        "neox",
        ffn_norm="post_attention_norm",
        biases="all",
        expert_biases=True,
        sinks=True,
        activation="clamped_swiglu",
        windows=True,
        full_every=2,
        yarn_truncates=False,
    ),
    "glm4": Family("interleaved", norms="both", biases="file", fused="up"),
    "glm4moe": Family(
        "neox",
        ffn_norm="post_attention_norm",
        biases="file",
        qk_norm="file",
        normalizes_experts=False,
        expert_score="sigmoid",
    ),
    "ernie4_5": Family("interleaved"),
    "ernie4_5-moe": Family("interleaved"),
    "hunyuan-dense": Family("neox", qk_norm="head", norms_rotated=True),
    "deepseek2": Family("interleaved", normalizes_experts=False, latent=True),
    **dict.fromkeys(
        ("deepseek32", "glm-dsa"),
        Family("interleaved", normalizes_experts=False, expert_score="sigmoid", latent=True, indexed=True),
    ),
    "minicpm": Family("interleaved", scales="minicpm"),
    "minicpm3": Family("neox", latent=True, scales="minicpm"),
    "apertus": Family("neox", qk_norm="head", gated=False, activation="xielu"),
    "nanbeige": Family("interleaved", loops=True),
    "plamo": Family("neox", parallel=True),
    "pangu-embedded": Family("neox", biases="attention"),
    "internlm2": Family("interleaved"),
    "exaone": Family("neox"),
    "orion": Family("neox", norm="layer"),
    "arcee": Family("interleaved", gated=False, activation="relu_squared"),
    "nemotron": Family("neox", norm="layer", gated=False, activation="relu_squared"),
    "chatglm": Family("interleaved", biases="file", fused="up"),
    "dbrx": Family("neox", norm="layer", norm_bias=False, fused="qkv", ffn_norm="attn_output_norm"),
    "grok": Family(
        "neox",
        norms="both",
        activation="gelu",
        softcaps=(30.0, 0.0),
        scales="grok",
        score_scale=128**-0.5,
        multiplies_logits=True,
        dense_beside_experts="halved",
    ),
    "dots1": Family("neox", qk_norm="head", normalizes_experts=False, expert_score="sigmoid"),
    "bailingmoe2": Family("neox", qk_norm="head", normalizes_experts=False, expert_score="sigmoid"),
    "hunyuan-moe": Family("neox", qk_norm="head", norms_rotated=True),
    "minimax-m2": Family("neox", qk_norm="row", expert_score="sigmoid"),
    "xverse": Family("interleaved"),
    "baichuan": Family("interleaved", alibi_layers=40),
    "maincoder": Family("interleaved", qk_norm="head", norms_rotated=True),
    "deepseek": Family("interleaved", normalizes_experts=False),
    "bailingmoe": Family("interleaved", normalizes_experts=False),
    "granite": Family("interleaved"),
    "granitemoe": Family("interleaved"),
}


# Architectures that other classes run, with what a message says of them.
OTHERS = {
    "whisper": "a speech model: camshaft transcribe and SpeechModel run it",
    "t5": "a model with an encoder and a decoder: camshaft generate and TextToTextModel run it",
}


def family_name(metadata: Mapping[str, Any]) -> str:
    """The file's architecture. Raises ModelError, naming it and the nearest known ones, if it is not supported."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in FAMILIES:
        if isinstance(name, str) and name in OTHERS:
            raise OtherArchitectureError(name, OTHERS[name])
        near = get_close_matches(name, FAMILIES, n=1) if isinstance(name, str) else []
        known = f"the nearest is {near[0]}" if near else "such as llama, qwen3, gemma3 and bert"
        message = f"camshaft runs {len(FAMILIES)} others, {known}; docs/models.md has the list"
        if name is None:
            raise ModelError(
                "the file has no key 'general.architecture', the name of its family; convert the model again"
            )
        raise ModelError(f"the file's architecture is {shown_value(name)}; {message}")
    return name
