"""The rows of families with recurrent layers, in place of attention or beside it."""

from __future__ import annotations

from dataclasses import replace

from camshaft.models.families.family import Family

_QWEN_HYBRID = Family(
    "neox",
    qk_norm="head",
    ffn_norm="post_attention_norm",
    recurrent="delta",
    attention_every=4,
    gated_attention="joined",
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
HYBRIDS: dict[str, Family] = {
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
    "qwen35": replace(_QWEN_HYBRID, tiled_heads=True, axes="interleaved"),
    "qwen35moe": replace(_QWEN_HYBRID, tiled_heads=True, axes="interleaved"),
    "kimi-linear": Family("interleaved", latent=True, rotates=False, recurrent="kda", expert_score="sigmoid"),
    "rwkv6": Family("neox", norm="layer", recurrent="rwkv", attention=False, builder="rwkv"),
    "rwkv7": Family("neox", norm="layer", recurrent="rwkv", attention=False, builder="rwkv"),
    "plamo2": Family("neox", norms="both", qk_norm="heads", fused="all", recurrent="plamo2"),
}
