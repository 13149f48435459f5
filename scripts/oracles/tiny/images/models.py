"""The tiny models that see images: a row for each projector, or for each text model with one of its own."""

from __future__ import annotations

from scripts.oracles.tiny.images.model import ASCII_TEXT, TinyVision
from scripts.oracles.tiny.images.own_sizes import MODELS as OWN_SIZES
from scripts.oracles.tiny.images.processors import gemma3, idefics3, pixtral, qwen
from scripts.oracles.tiny.images.qwen import QWEN, QWEN_IDS, QWEN_LIMITS, QWEN_TOKENS, sections
from scripts.oracles.tiny.model import LOCAL, LOCAL_KEYS, TinyModel, sizes

FIRST_SEED = 300
MODELS = (
    TinyVision(
        "idefics3",
        "Idefics3",
        "idefics3",
        TinyModel(
            "idefics3",
            "Llama",
            **sizes(32, 64, heads=2, kv_heads=1, head_dim=16),
            **ASCII_TEXT,
        ),
        {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "image_size": 32, "patch_size": 8},
        {"use_gelu": True, "vision.projector.scale_factor": 2, "vision.preproc_image_size": 64},
        (
            *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
            *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
        ),
        "<image>",
        "<image>",
        idefics3,
        options={"scale_factor": 2},
    ),
    TinyVision(
        "gemma3",
        "Gemma3",
        "gemma3",
        TinyModel(
            "gemma3",
            "Gemma3",
            **sizes(32, 48, heads=2, kv_heads=1, head_dim=16),
            tied=True,
            theta=1e6,
            options={
                **LOCAL,
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                },
                "query_pre_attn_scalar": 16,
                "final_logit_softcapping": None,
                "model_type": "gemma3_text",
            },
            keys=LOCAL_KEYS,
            **ASCII_TEXT,
        ),
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 4,
            "vision_use_head": False,
        },
        {"use_gelu": True},
        ("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
        "<image_soft_token>",
        "<start_of_image>",
        gemma3,
        options={"mm_tokens_per_image": 4, "boi_token_index": 131, "eoi_token_index": 133},
    ),
    TinyVision(
        "qwen2.5vl",
        "Qwen2_5_VL",
        "qwen2.5vl_merger",
        TinyModel(
            "qwen2.5vl",
            "Qwen2VL",
            **sizes(32, 48, heads=2, kv_heads=1, head_dim=16),
            options={"model_type": "qwen2_5_vl_text", "rope_parameters": sections(2, 3, 3)},
            keys={"rope.dimension_sections": [2, 3, 3, 0]},
            **ASCII_TEXT,
        ),
        {**QWEN, "depth": 3, "window_size": 16, "fullatt_block_indexes": [1], "image_size": 560},
        {"use_silu": True, "vision.n_wa_pattern": 2, "vision.window_size": 16, **QWEN_LIMITS},
        QWEN_TOKENS,
        "<|image_pad|>",
        "<|vision_start|><|image_pad|><|vision_end|>",
        lambda tokenizer: qwen(tokenizer, "Qwen2_5_VLProcessor"),
        ids=QWEN_IDS,
    ),
    TinyVision(
        "qwen3vl",
        "Qwen3VL",
        "qwen3vl_merger",
        TinyModel(
            "qwen3vl",
            "Qwen3VL",
            **sizes(32, 48, heads=2, kv_heads=1, head_dim=16),
            n_layers=3,
            options={"model_type": "qwen3_vl_text", "rope_parameters": sections(4, 2, 2)},
            keys={"rope.dimension_sections": [4, 2, 2, 0], "n_deepstack_layers": 2},
            **ASCII_TEXT,
        ),
        {**QWEN, "depth": 3, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 25, "image_size": 20},
        {"use_gelu": True, "vision.is_deepstack_layers": [True, True, False], **QWEN_LIMITS},
        QWEN_TOKENS,
        "<|image_pad|>",
        "<|vision_start|><|image_pad|><|vision_end|>",
        lambda tokenizer: qwen(tokenizer, "Qwen3VLProcessor"),
        ids=QWEN_IDS,
    ),
    TinyVision(
        "pixtral",
        "Mistral3",
        "pixtral",
        TinyModel(
            "pixtral",
            "Mistral",
            **sizes(32, 48, heads=2, kv_heads=1, head_dim=16),
            tied=True,
            options={"sliding_window": None},
            **ASCII_TEXT,
        ),
        {
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 2,
            "image_size": 48,
            "patch_size": 4,
            "head_dim": 8,
            "hidden_act": "silu",
        },
        {"use_silu": True, "vision.spatial_merge_size": 2, "vision.attention.layer_norm_epsilon": 1e-5},
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        "[IMG]",
        "[IMG]",
        pixtral,
        options={"spatial_merge_size": 2},
    ),
    *OWN_SIZES,
)
