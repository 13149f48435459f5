"""The rows of encoders: BERT and its relatives, whose tokens see all of their text."""

from __future__ import annotations

from dataclasses import replace

from camshaft.models.families.family import Family

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
