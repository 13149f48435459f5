"""Tiny random models with recurrent layers."""

from __future__ import annotations

from scripts.oracles.tiny_models import TinyModel

FIRST_SEED = 100
MODELS = (
    TinyModel(
        "lfm2",
        "Lfm2",
        32,
        64,
        heads=4,
        kv_heads=2,
        head_dim=8,
        tied=True,
        n_layers=4,
        options={
            "norm_eps": 1e-5,
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
        },
        keys={"shortconv.l_cache": 3},
        layer_kv_heads=(0, 2, 0, 0),
    ),
)
