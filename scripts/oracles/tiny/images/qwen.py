"""What the tiny models of Qwen-VL share."""

from __future__ import annotations

from typing import Any

QWEN = {"intermediate_size": 24, "hidden_size": 16, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32}
QWEN_LIMITS = {"vision.image_min_pixels": 64, "vision.image_max_pixels": 900, "vision.spatial_merge_size": 2}
QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def sections(*pairs: int) -> dict[str, Any]:
    """Rotation with pairs of time, rows and columns."""
    return {"rope_type": "default", "mrope_section": [*pairs], "rope_theta": 10000.0}
