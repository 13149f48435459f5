"""Tiny random models of families whose experts are chosen or weighed in ways of their own, and of Llama-Nemotron."""

from __future__ import annotations

from scripts.oracles.tiny.model import LONGROPE, NUMBERS_OF_8_BITS, WINDOW, TinyModel, sizes

FIRST_SEED = 800
MODELS = (
    TinyModel(
        "llama4",
        "Llama4",
        **sizes(16, 16, heads=2, kv_heads=1, head_dim=8),
        n_layers=4,
        options={
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 24,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": WINDOW,
            "floor_scale": 4,
            "attn_scale": 0.5,
        },
        keys={
            "feed_forward_length": 24,
            "expert_count": 4,
            "expert_used_count": 1,
            "expert_feed_forward_length": 16,
            "interleave_moe_layer_step": 2,
            "attention.sliding_window": WINDOW,
            "attention.temperature_length": 4,
            "attention.temperature_scale": 0.5,
        },
        agreement=None,  # its parts of the context have 8192 tokens
        values=NUMBERS_OF_8_BITS,
        n_vocab=64,
    ),
    TinyModel(
        "phimoe",
        "Phimoe",
        **sizes(16, 16, heads=2, kv_heads=1, head_dim=16),
        # transformers has the factors of short texts for long ones too
        rope={**LONGROPE, "original_max_position_embeddings": 256, "short_mscale": 1.25, "long_mscale": 1.25},
        options={"num_local_experts": 6, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True},
        keys={
            "attention.layer_norm_rms_epsilon": 1e-5,
            "expert_count": 6,
            "expert_used_count": 2,
            "rope.scaling.original_context_length": 256,
            "rope.scaling.attn_factor": 1.25,
        },
        agreement=None,  # it has rms_norm, and the softmax of all experts
        values=NUMBERS_OF_8_BITS,
        n_vocab=64,
    ),
    TinyModel(
        "smallthinker",
        "SmallThinker",
        **sizes(16, 16, heads=2, kv_heads=1, head_dim=8),
        n_layers=3,
        keys={
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 16,
            "expert_gating_func": 2,
            "attention.sliding_window": WINDOW,
        },
        agreement=None,  # its windows have 4096 tokens
        values=NUMBERS_OF_8_BITS,
        n_vocab=64,
    ),
    TinyModel(
        "deci",
        "Deci",
        **sizes(16, 24, heads=2, kv_heads=1, head_dim=8),
        n_layers=6,
        layer_kv_heads=(1, 2, 0, 0, 0, 1),
        keys={"attention.head_count": [2, 2, 2, 0, 0, 2], "feed_forward_length": [24, 16, 24, 16, 0, 24]},
        values=NUMBERS_OF_8_BITS,
        n_vocab=64,
    ),
)
