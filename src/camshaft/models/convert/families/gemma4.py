"""Metadata and tensors of Gemma 4: two head sizes, shared KV layers, per-layer embeddings, experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from camshaft.formats.bits import Floats
from camshaft.models.convert.hub_config import HubConfig

Change: TypeAlias = Callable[[Floats], Floats]
_STILL = 1e30  # a RoPE frequency divided by this does not rotate


def gemma4_keys(config: HubConfig) -> dict[str, Any]:
    """Returns the sizes of both kinds of layers, which have a window, and how many of the last ones reuse earlier keys."""
    local = [kind == "sliding_attention" for kind in config.layer_kinds]
    full, sliding, shared = _full_attention_size(config, "head_dim"), config.head_dim, _shared(config)
    heads = [config.size("kv_heads") if one else _full_attention_size(config, "num_key_value_heads") for one in local]
    keys = {
        "attention.head_count_kv": heads[0] if len({*heads}) == 1 else heads,
        "attention.key_length": full,
        "attention.value_length": full,
        "attention.key_length_swa": sliding,
        "attention.value_length_swa": sliding,
        "rope.dimension_count": full,
        "rope.dimension_count_swa": sliding,
        "attention.sliding_window": config.size("sliding_window"),
        "attention.sliding_window_pattern": local,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": int(config.number("hidden_size_per_layer_input", 0)),
    }
    if config.get("use_double_wide_mlp") and shared:
        width = config.size("ffn")
        keys["feed_forward_length"] = [width] * (len(local) - shared) + [2 * width] * shared
    if config.get("enable_moe_block"):
        keys |= {
            "expert_count": config.size("experts"),
            "expert_used_count": config.size("top_k_experts"),
            "expert_feed_forward_length": config.size("moe_intermediate_size"),
        }
    return keys


def _shared(config: HubConfig) -> int:
    return int(config.number("num_kv_shared_layers", 0))


def _full_attention_size(config: HubConfig, name: str) -> int:
    """Returns a size of layers without a window: from its own key, else the per-layer config, else the size of all layers."""
    by_layer = config.get("per_layer_config")
    rows = by_layer.values() if isinstance(by_layer, dict) else ()
    listed = [row[name] for row in rows if isinstance(row, dict) and name in row]
    other = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}[name]
    own = config.head_dim if name == "head_dim" else config.size("kv_heads")
    return config.size(other, listed[0] if listed else own)


# Gemma 4 keeps the gate and up projections of experts in one tensor, which other families split.
_KEPT = ("ffn_gate_up_exps.weight", "ffn_down_exps.weight")


def gemma4_changes(name: str, config: HubConfig) -> Iterator[tuple[str, Change]]:
    """Yields the tensors of experts unchanged."""
    if name in _KEPT:
        yield name, lambda values: values


def still_factors(config: HubConfig) -> np.ndarray[Any, Any]:
    """Returns the divisors of RoPE frequencies in layers without a window: 1 for those that rotate."""
    half = _full_attention_size(config, "head_dim") // 2
    rotated = int(half * float(config.rope.get("partial_rotary_factor", 1.0)))
    return np.array([1.0] * rotated + [_STILL] * (half - rotated), np.float32)
