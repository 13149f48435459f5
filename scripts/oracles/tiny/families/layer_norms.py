"""Tiny random models of decoders with layer_norm."""

from __future__ import annotations

from scripts.oracles.tiny.model import HALF_ROPE, SMALL, WINDOW, TinyModel, sizes

FIRST_SEED = 25
MODELS = (
    TinyModel(
        "starcoder2",
        "Starcoder2",
        **sizes(32, 64, heads=4, kv_heads=2, head_dim=8),
        tied=True,
        options={"use_bias": True, "sliding_window": None},
        agreement=0.05,
    ),
    TinyModel(
        "stablelm",
        "StableLm",
        **sizes(32, 64, heads=2, kv_heads=2, head_dim=16),
        rope=HALF_ROPE,
        options={"use_qkv_bias": True},
        keys={"rope.dimension_count": 8},
        **SMALL,
    ),
    TinyModel(
        "stablelm-parallel",
        "StableLm",
        **sizes(32, 64, heads=2, kv_heads=1, head_dim=16),
        rope=HALF_ROPE,
        options={"use_parallel_residual": True},
        keys={"rope.dimension_count": 8, "use_parallel_residual": True},
        **SMALL,
    ),
    TinyModel(
        "gpt2",
        "GPT2",
        **sizes(32, 64, heads=4, kv_heads=4, head_dim=8),
        tied=True,
        options={"n_inner": 64},
        agreement=0.05,
    ),
    TinyModel(
        "gptneox",
        "GPTNeoX",
        **sizes(32, 64, heads=2, kv_heads=2, head_dim=16),
        rope=HALF_ROPE,
        keys={"rope.dimension_count": 8, "use_parallel_residual": True},
        agreement=0.05,
    ),
    TinyModel(
        "falcon",
        "Falcon",
        **sizes(32, 64, heads=4, kv_heads=1, head_dim=8),
        tied=True,
        options={"ffn_hidden_size": 64, "multi_query": True, "parallel_attn": True},
        agreement=0.05,
    ),
    TinyModel(
        "falcon-two-norms",
        "Falcon",
        **sizes(32, 64, heads=4, kv_heads=2, head_dim=8),
        tied=True,
        options={"ffn_hidden_size": 64, "new_decoder_architecture": True, "num_kv_heads": 2},
        agreement=0.05,
    ),
    TinyModel(
        "command-r",
        "Cohere",
        **sizes(32, 64, heads=4, kv_heads=2, head_dim=8),
        tied=True,
        options={"logit_scale": 1.5},
        keys={"logit_scale": 1.5},
    ),
    TinyModel(
        "cohere2",
        "Cohere2",
        **sizes(32, 32, heads=4, kv_heads=2, head_dim=8),
        n_layers=4,
        tied=True,
        options={"logit_scale": 1.5, "sliding_window": WINDOW},
        keys={"logit_scale": 1.5, "attention.sliding_window": WINDOW},
    ),
)
