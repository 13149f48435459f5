"""Tiny models whose images are in about their own size and shape: Qwen2-VL, Qwen3-VL with experts, Gemma 4, LFM2-VL."""

from __future__ import annotations

from typing import Any

from scripts.oracles.tiny.images.model import ASCII, ASCII_TEXT, TinyVision
from scripts.oracles.tiny.images.processors import gemma4, lfm2, qwen
from scripts.oracles.tiny.images.qwen import QWEN, QWEN_IDS, QWEN_LIMITS, QWEN_TOKENS, sections
from scripts.oracles.tiny.model import MOE, MOE_KEYS, TinyModel, sizes

_GEMMA4_TOKENS = ("<|image>", "<|image|>", "<image|>", "<|audio>", "<|audio|>", "<audio|>", "<|video|>")
_GEMMA4_KEYS = {
    "vision.projector.scale_factor": 2,
    "vision.image_max_pixels": 70 * 64,
    "vision.image_mean": [0.0] * 3,
    "vision.image_std": [1.0] * 3,
}
_GEMMA4_SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "image_size": 224,
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "position_embedding_size": 140,
}


def _gemma4_text(name: str, window: int, options: dict[str, Any], keys: dict[str, Any]) -> TinyModel:
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e4}
    return TinyModel(
        name,
        "Gemma4",
        **sizes(16, 16, heads=2, kv_heads=1, head_dim=8),
        tied=True,
        rope=rope,
        options={
            "model_type": "gemma4_text",
            "sliding_window": window,
            "global_head_dim": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": rope,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
            "pad_token_id": 0,
            **options,
        },
        keys={
            **{f"attention.{part}_length{end}": 8 for part in ("key", "value") for end in ("", "_swa")},
            "rope.dimension_count": 8,
            "rope.dimension_count_swa": 8,
            "rope.freq_base_swa": 1000.0,
            "attention.sliding_window": window,
            "attention.sliding_window_pattern": [True, False],
            **keys,
        },
        **ASCII_TEXT,
    )


MODELS = (
    TinyVision(
        "qwen2vl",
        "Qwen2VL",
        "qwen2vl_merger",
        TinyModel(
            "qwen2vl",
            "Qwen2VL",
            **sizes(16, 24, heads=2, kv_heads=1, head_dim=8),
            options={"model_type": "qwen2_vl_text", "rope_parameters": sections(2, 1, 1)},
            keys={"rope.dimension_sections": [2, 1, 1, 0]},
            **ASCII_TEXT,
        ),
        {"embed_dim": 8, "hidden_size": 16, "mlp_ratio": 2, "num_heads": 2, "patch_size": 4, "depth": 2}
        | {"intermediate_size": 16, "image_size": 560},
        QWEN_LIMITS,
        QWEN_TOKENS,
        "<|image_pad|>",
        "<|vision_start|><|image_pad|><|vision_end|>",
        lambda tokenizer: qwen(tokenizer, "Qwen2VLProcessor"),
        ids=QWEN_IDS,
    ),
    TinyVision(
        "qwen3vlmoe",
        "Qwen3VLMoe",
        "qwen3vl_merger",
        TinyModel(
            "qwen3vlmoe",
            "Qwen3VLMoe",
            **sizes(16, 24, heads=2, kv_heads=1, head_dim=16),
            options={
                "model_type": "qwen3_vl_moe_text",
                "rope_parameters": sections(4, 2, 2),
                **MOE,
                "moe_intermediate_size": 8,
                "norm_topk_prob": True,
            },
            keys={
                "rope.dimension_sections": [4, 2, 2, 0],
                "n_deepstack_layers": 1,
                **MOE_KEYS,
                "expert_feed_forward_length": 8,
            },
            **ASCII_TEXT,
        ),
        {**QWEN, "hidden_size": 8, "out_hidden_size": 16, "depth": 2}
        | {"deepstack_visual_indexes": [0], "num_position_embeddings": 25, "image_size": 20},
        {"use_gelu": True, "vision.is_deepstack_layers": [True, False], **QWEN_LIMITS},
        QWEN_TOKENS,
        "<|image_pad|>",
        "<|vision_start|><|image_pad|><|vision_end|>",
        lambda tokenizer: qwen(tokenizer, "Qwen3VLProcessor"),
        ids=QWEN_IDS,
    ),
    *(
        TinyVision(
            name,
            "Gemma4",
            "gemma4v",
            text,
            {**_GEMMA4_SIZES, **sizes},
            _GEMMA4_KEYS,
            _GEMMA4_TOKENS,
            "<|image|>",
            "<|image|>",
            gemma4,
            ids={"boi_token_id": "<|image>", "eoi_token_id": "<image|>", "audio_token_id": "<|audio|>"},
            options={"audio_config": None},
        )
        for name, text, sizes in (
            (
                "gemma4v",
                _gemma4_text(
                    "gemma4v",
                    72,
                    {"use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0},
                    {"embedding_length_per_layer_input": 0},
                ),
                {"standardize": True},
            ),
            (
                "gemma4v-layers",
                _gemma4_text(
                    "gemma4v-layers",
                    20,
                    {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": ASCII + len(_GEMMA4_TOKENS)},
                    {"embedding_length_per_layer_input": 4},
                ),
                {"use_clipped_linears": True},
            ),
        )
    ),
    TinyVision(
        "lfm2vl",
        "Lfm2Vl",
        "lfm2",
        TinyModel(
            "lfm2vl",
            "Lfm2",
            **sizes(16, 24, heads=2, kv_heads=1, head_dim=8),
            tied=True,
            options={
                "norm_eps": 1e-5,
                "block_auto_adjust_ff_dim": False,
                "layer_types": ["conv", "full_attention"],
                "model_type": "lfm2",
            },
            keys={"shortconv.l_cache": 3},
            layer_kv_heads=(0, 1),
            **ASCII_TEXT,
        ),
        {
            "model_type": "siglip2_vision_model",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 2,
            "num_patches": 9,
            "patch_size": 4,
            "image_size": 12,
            "vision_use_head": False,
        },
        {
            "use_gelu": True,
            "vision.projector.scale_factor": 2,
            "vision.image_min_pixels": 4 * 64,
            "vision.image_max_pixels": 12 * 64,
        },
        (
            *("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
            *(f"<|img_row_{row}_col_{column}|>" for row in (1, 2, 3) for column in (1, 2)),
        ),
        "<image>",
        "<image>",
        lfm2,
        options={"projector_hidden_size": 24},
    ),
)
