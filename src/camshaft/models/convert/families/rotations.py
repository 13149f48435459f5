"""Keys of rotations that scale scores or magnitudes in ways of their own."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from camshaft.models.convert.hub_config import HubConfig

Keys: TypeAlias = dict[str, Any]


def temperature(config: HubConfig) -> Keys:
    """Mistral 3's: scores grow with the position; YaRN's magnitude is told by mscale_all_dim."""
    rope, keys = config.rope, {}
    if rope.get("llama_4_scaling_beta"):
        keys["attention.temperature_scale"] = float(rope["llama_4_scaling_beta"])
    if rope.get("mscale_all_dim"):
        keys["rope.scaling.yarn_log_multiplier"] = float(rope["mscale_all_dim"])
    return keys


def longrope(config: HubConfig) -> Keys:
    """Phi-3's magnitude of rotations, sqrt(1 + ln(context / original) / ln(original))."""
    if config.rope["rope_type"] not in ("longrope", "su"):
        return {}
    old = config.rope.get("original_max_position_embeddings") or config.size("original_max_position_embeddings")
    scale = config.size("context") / old
    factor = config.rope.get("attention_factor") or math.sqrt(1 + math.log(scale) / math.log(old)) if scale > 1 else 1.0
    return {"rope.scaling.original_context_length": int(old), "rope.scaling.attn_factor": float(factor)}
