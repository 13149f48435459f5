"""Qwen3.5 and its mixture of experts with images: made anew by the tests that compare them, not frozen."""

from __future__ import annotations

from dataclasses import replace

from scripts.oracles.tiny.families.recurrent import MODELS as RECURRENT
from scripts.oracles.tiny.images.model import ASCII_TEXT, TinyVision
from scripts.oracles.tiny.images.processors import qwen
from scripts.oracles.tiny.images.qwen import QWEN, QWEN_IDS, QWEN_LIMITS, QWEN_TOKENS

FIRST_SEED = 400
_DEPTH = 3


def _seeing(name: str, family: str) -> TinyVision:
    text = next(model for model in RECURRENT if model.name == name)
    options = {**text.options, "model_type": f"{family.lower()}_text"}
    rope = {**text.rope, "mrope_section": text.keys["rope.dimension_sections"][:3]}
    return TinyVision(
        name,
        family,
        "qwen3vl_merger",
        replace(text, options=options, rope=rope, **ASCII_TEXT),
        {**QWEN, "depth": _DEPTH, "num_position_embeddings": 25, "image_size": 20},
        {"use_gelu": True, "vision.is_deepstack_layers": [False] * _DEPTH, **QWEN_LIMITS},
        QWEN_TOKENS,
        "<|image_pad|>",
        "<|vision_start|><|image_pad|><|vision_end|>",
        lambda tokenizer: qwen(tokenizer, "Qwen3VLProcessor"),
        ids=QWEN_IDS,
    )


MODELS = (_seeing("qwen35", "Qwen3_5"), _seeing("qwen35moe", "Qwen3_5Moe"))
