"""The metadata of a GGUF file, but for the tokenizer's: sizes, rotation, and what the architecture adds."""

from __future__ import annotations

import math
from typing import Any

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value
from camshaft.models.convert.architecture import Architecture
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.tensors import kv_heads
from camshaft.models.families import FAMILIES


def model_keys(config: HubConfig, row: Architecture, vocab_size: int) -> dict[str, Any]:
    """Values under the architecture's prefix, by key without it."""
    family = FAMILIES[row.name]
    keys: dict[str, Any] = {
        "context_length": config.size("context"),
        "block_count": config.size("layers"),
        "embedding_length": config.size("dim"),
        "vocab_size": vocab_size,
        "feed_forward_length": _ffn(config, row),
        "attention.head_count": 0,
    }
    if family.attention:
        keys |= {
            "attention.head_count": config.size("heads"),
            "attention.head_count_kv": kv_heads(config),
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
            "rope.dimension_count": config.rope_dim,
        }
    if family.norm == "layer":
        keys["attention.layer_norm_epsilon"] = float(config.number("layer_eps"))
    elif family.norm == "rms":
        keys["attention.layer_norm_rms_epsilon"] = float(config.number("rms_eps"))
    keys |= _rotation(config)
    for more in row.keys:
        keys |= more(config)
    return keys


def _ffn(config: HubConfig, row: Architecture) -> int:
    if not FAMILIES[row.name].feed_forward:
        return 0
    return config.size("ffn", 4 * config.size("dim") if row.transposed else None)


def _rotation(config: HubConfig) -> dict[str, Any]:
    rope = config.rope
    kind = rope["rope_type"]
    keys: dict[str, Any] = {"rope.freq_base": float(rope["rope_theta"])}
    if kind not in ("default", "llama3", "linear", "yarn", "longrope", "su", "proportional"):
        raise ModelError(
            f"{config.path}: rope_type is {shown_value(kind)}; wanted default, linear, yarn, llama3 or longrope"
        )
    if kind in ("longrope", "su"):
        keys["rope.scaling.type"] = "longrope"
    if kind in ("linear", "yarn"):
        if not rope.get("factor"):
            raise ModelError(f"{config.path}: rope_type is {kind} without a factor; wanted one above 0")
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        keys["rope.scaling.original_context_length"] = int(
            rope.get("original_max_position_embeddings") or config.size("context")
        )
        for name in ("beta_fast", "beta_slow"):
            if rope.get(name) is not None:
                keys[f"rope.scaling.yarn_{name}"] = float(rope[name])
        if (
            rope.get("attention_factor") is not None
        ):  # of transformers it is the whole magnitude, of GGUF a factor of it
            usual = 1 + 0.1 * math.log(float(rope["factor"]))
            if usual <= 0:
                raise ModelError(
                    f"{config.path}: rope_type is yarn with the factor {rope['factor']:g}; wanted 1 or more"
                )
            keys["rope.scaling.attn_factor"] = float(rope["attention_factor"]) / usual
    return keys
