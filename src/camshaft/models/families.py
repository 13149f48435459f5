"""The supported model families: a row of options of one decoder each, by general.architecture of GGUF.

All are decoders of grouped-query attention and a feed-forward, dense or of experts; some have recurrent layers in place of
attention, in some layers or all. A row says what the file's metadata does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value


@dataclass(frozen=True)
class Family:
    """How a family differs from the plain decoder.

    pairing: which elements of a head rotate together; GGUF permutes q and k of families with 'interleaved'.
    norms: rms_norm before attention and feed-forward ('pre'), after them ('post') or both, or of the sums ('sum').
    ffn_norm: the tensor of that before the feed-forward.
    norm: rms_norm, or layer_norm, with a bias unless norm_bias is False. qk_norm: rms_norm of q and k, of each head or whole row
    ('file': of each head where the file has their weights). norms_rotated: these norms are of rotated q and k.
    parallel: attention and feed-forward have the same input; a file's use_parallel_residual takes precedence.
    biases: of q, k and v ('qkv'; 'file': where the file has them), or of all linear layers ('all').
    fused: q, k and v are one tensor ('qkv'), or gate and up ('up'), or both are ('all').
    gated: the feed-forward is down(act(gate) * up), or else down(act(up)).
    sinks: each head's scores have one more, whose value is 0. learned_positions: embeddings of positions, and no rotation.
    embedding_scale: embeddings are multiplied by sqrt(dim) ('dim') or by the file's embedding_scale.
    windows: attention.sliding_window applies, but for every n-th layer of full_every, which sees all tokens (0: no layer
    does): the last of n, or the first one with full_first.
    window_rope: layers with a window rotate as all ('same'), or without scaling by rope.freq_base_swa or window_theta ('plain').
    yarn_truncates: the ends of YaRN's ramp are whole dimensions.
    unrotated_every: every n-th layer does not rotate. rotates_windows_only: in a file with a window, layers without do not.
    query_scale_layers: in files of so many layers the scores are divided by sqrt(dim / heads), not by sqrt(head_dim).
    softcaps: attention's and the logits', where the file names none.
    multiplies_logits: the file's logit_scale multiplies logits, and does not divide them.
    encoder: tokens see all of their text, and the result is a vector for each; windows are on both sides, half on each.
    embedding_norm: embeddings are normed. alibi: scores are less by the distance of tokens, and nothing rotates.
    normalizes_experts: the chosen experts' weights are divided by their sum. expert_score: how logits become these weights. Both
    where the file does not say.
    recurrent: the kind of the layers without attention. attention_every: only every n-th layer has attention, where the file does
    not say which (0: it does, by head_count_kv). output_norm: the tensor of the last norm.
    attention, feed_forward: whether its layers have them. one_block: each layer has either these or a recurrence, and one norm.
    rotates: whether queries and keys rotate. side_by_side: attention and a recurrence have the same input, and are added.
    dense_unrouted: layers without a router have no experts. dense_beside_experts: other layers have a dense feed-forward too.
    score_scale: what scores are multiplied by, where it is not 1 / sqrt(head_dim).
    layer_sizes: layers may differ in the sizes of heads and feed-forwards, and the last ones read the keys of earlier ones.
    norms_values: values are normed, without weights, and are the projection of keys where the file has none for them.
    per_layer: each layer has embeddings of tokens of its own, where the file has them, and a scale of its result.
    rotates_if_finetuned: layers rotate where the file says rope.scaling.finetuned.
    expert_biases: experts and their router have biases.
    latent: attention to latents of keys and values, whose rotation keeps its magnitude under YaRN: the scores are scaled.
    tiled_heads: heads of values share those of keys in turn, not in runs. gated_attention: q comes with a gate of what is found.
    """

    pairing: Literal["interleaved", "neox"]
    norms: Literal["pre", "post", "both", "sum"] = "pre"
    ffn_norm: str = "ffn_norm"
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = True
    parallel: bool = False
    biases: Literal["", "qkv", "file", "all"] = ""
    qk_norm: Literal["", "head", "row", "file"] = ""
    norms_rotated: bool = False
    fused: Literal["", "qkv", "up", "all"] = ""
    gated: bool = True
    activation: Literal["silu", "gelu", "gelu_erf", "clamped_swiglu", "relu_squared"] = "silu"
    sinks: bool = False
    learned_positions: bool = False
    embedding_scale: Literal["", "dim"] = ""
    windows: bool = False
    full_every: int = 0
    full_first: bool = False
    window_rope: Literal["same", "plain"] = "same"
    window_theta: float = 0.0
    yarn_truncates: bool = True
    unrotated_every: int = 0
    rotates_windows_only: bool = False
    query_scale_layers: int = 0
    softcaps: tuple[float, float] = (0.0, 0.0)
    multiplies_logits: bool = False
    normalizes_experts: bool = True
    expert_biases: bool = False
    expert_score: Literal["softmax", "sigmoid"] = "softmax"
    encoder: bool = False
    embedding_norm: bool = False
    alibi: bool = False
    recurrent: Literal["", "short_conv", "delta", "mamba", "mamba2"] = ""
    attention: bool = True
    feed_forward: bool = True
    one_block: bool = False
    rotates: bool = True
    side_by_side: bool = False
    dense_unrouted: bool = False
    dense_beside_experts: bool = False
    score_scale: float = 0.0
    layer_sizes: bool = False
    norms_values: bool = False
    per_layer: bool = False
    attention_every: int = 0
    output_norm: str = "output_norm"
    tiled_heads: bool = False
    gated_attention: bool = False
    rotates_if_finetuned: bool = False
    latent: bool = False


_QWEN_HYBRID = Family(
    "neox",
    qk_norm="head",
    ffn_norm="post_attention_norm",
    recurrent="delta",
    attention_every=4,
    gated_attention=True,
)
_GEMMA3 = Family(
    "neox",
    norms="both",
    qk_norm="head",
    activation="gelu",
    embedding_scale="dim",
    windows=True,
    full_every=6,
    window_rope="plain",
    window_theta=10000.0,
    query_scale_layers=62,
)
_ROTATED_BERT = Family(
    "neox",
    norms="sum",
    norm="layer",
    biases="all",
    fused="qkv",
    gated=False,
    activation="gelu_erf",
    encoder=True,
    embedding_norm=True,
)
_NEMOTRON_HYBRID = Family(
    "neox",
    gated=False,
    activation="relu_squared",
    recurrent="mamba2",
    one_block=True,
    rotates=False,
    normalizes_experts=False,
    expert_score="sigmoid",
)
# "llama" is also SmolLM2, Llama 2 and 3, Mistral, Mixtral and TinyLlama; "olmo2" is also OLMo 3; "phi3" is also Phi-3.5 and 4;
# "gptneox" is also Pythia.
FAMILIES: dict[str, Family] = {
    "llama": Family("interleaved"),
    "qwen2": Family("neox", biases="qkv"),
    "qwen2moe": Family("neox", biases="qkv", normalizes_experts=False),
    "qwen3": Family("neox", qk_norm="head"),
    "qwen3moe": Family("neox", qk_norm="head"),
    "gemma2": Family(
        "neox",
        norms="both",
        activation="gelu",
        embedding_scale="dim",
        windows=True,
        full_every=2,
        query_scale_layers=46,
        softcaps=(50.0, 30.0),
    ),
    "gemma3": _GEMMA3,
    "gemma4": Family(
        "neox",
        norms="both",
        qk_norm="head",
        activation="gelu",
        embedding_scale="dim",
        windows=True,
        window_rope="plain",
        window_theta=10000.0,
        dense_unrouted=True,
        dense_beside_experts=True,
        score_scale=1.0,
        layer_sizes=True,
        norms_values=True,
        per_layer=True,
    ),
    "olmo2": Family("neox", norms="post", qk_norm="row", windows=True, full_every=4, window_rope="plain"),
    "olmoe": Family("neox", qk_norm="row", normalizes_experts=False),
    "exaone4": Family("neox", norms="post", qk_norm="head", windows=True, full_every=4, rotates_windows_only=True),
    "phi3": Family("neox", fused="all", windows=True),
    "smollm3": Family("interleaved", unrotated_every=4),
    "seed_oss": Family("neox", biases="qkv", ffn_norm="post_attention_norm"),
    "mistral3": Family("interleaved"),
    "starcoder2": Family("neox", norm="layer", biases="all", gated=False, activation="gelu"),
    "stablelm": Family("neox", norm="layer", biases="file"),
    "gpt2": Family(
        "neox", norm="layer", biases="all", fused="qkv", gated=False, activation="gelu", learned_positions=True
    ),
    "gptneox": Family(
        "neox", norm="layer", parallel=True, biases="all", fused="qkv", gated=False, activation="gelu_erf"
    ),
    "falcon": Family("neox", norm="layer", parallel=True, fused="qkv", gated=False, activation="gelu_erf"),
    "command-r": Family("interleaved", norm="layer", norm_bias=False, parallel=True, multiplies_logits=True),
    "cohere2": Family(
        "interleaved",
        norm="layer",
        norm_bias=False,
        parallel=True,
        multiplies_logits=True,
        windows=True,
        full_every=4,
        rotates_windows_only=True,
    ),
    "bert": Family(
        "neox",
        norms="sum",
        norm="layer",
        biases="all",
        gated=False,
        activation="gelu_erf",
        learned_positions=True,
        encoder=True,
        embedding_norm=True,
    ),
    "nomic-bert": Family("neox", norms="sum", norm="layer", fused="qkv", encoder=True, embedding_norm=True),
    "nomic-bert-moe": replace(_ROTATED_BERT, normalizes_experts=False),
    "jina-bert-v2": Family(
        "neox",
        norms="sum",
        norm="layer",
        biases="all",
        fused="up",
        activation="gelu_erf",
        encoder=True,
        embedding_norm=True,
        alibi=True,
    ),
    "jina-bert-v3": _ROTATED_BERT,
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
    "granite": Family("interleaved"),
    "granitemoe": Family("interleaved"),
    "lfm2": Family("neox", qk_norm="head", recurrent="short_conv", output_norm="token_embd_norm"),
    "lfm2moe": Family(
        "neox", qk_norm="head", recurrent="short_conv", output_norm="token_embd_norm", expert_score="sigmoid"
    ),
    "mamba": Family("neox", recurrent="mamba", attention=False, feed_forward=False),
    "mamba2": Family("neox", recurrent="mamba2", attention=False, feed_forward=False),
    "falcon-h1": Family("neox", recurrent="mamba2", side_by_side=True),
    "jamba": Family("neox", recurrent="mamba", rotates=False, normalizes_experts=False, dense_unrouted=True),
    "nemotron_h": _NEMOTRON_HYBRID,
    "nemotron_h_moe": _NEMOTRON_HYBRID,
    "granitehybrid": Family("interleaved", recurrent="mamba2", rotates_if_finetuned=True),
    "qwen3next": _QWEN_HYBRID,
    "qwen35": replace(_QWEN_HYBRID, tiled_heads=True),
    "qwen35moe": replace(_QWEN_HYBRID, tiled_heads=True),
}


def family_name(metadata: Mapping[str, Any]) -> str:
    """The file's architecture. Raises ModelError, naming it and the nearest known ones, if it is not supported."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in FAMILIES:
        near = get_close_matches(name, FAMILIES, n=1) if isinstance(name, str) else []
        known = f"the nearest is {near[0]}" if near else "such as llama, qwen3, gemma3 and bert"
        message = f"camshaft runs {len(FAMILIES)} others, {known}; docs/models.md has the list"
        raise ModelError(f"the file's architecture is {shown_value(name)}; {message}")
    return name
