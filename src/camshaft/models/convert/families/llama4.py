"""Keys and tensors of Llama 4: attention within parts of the context, scores scaled by position, experts stored [in, out]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from camshaft.errors import ModelError
from camshaft.formats.bits import Floats
from camshaft.models.configs.experts import WITHOUT_NORMS
from camshaft.models.convert.hub_config import HubConfig

Change: TypeAlias = Callable[[Floats], Floats]


def llama4_keys(config: HubConfig) -> dict[str, Any]:
    """Experts, both widths, the parts of the context, and the scale of scores. ModelError for what GGUF files cannot say."""
    n, layers = config.size("experts"), config.size("layers")
    if bool(config.get("use_qk_norm", True)) != (n != WITHOUT_NORMS):
        raise ModelError(f"{config.path}: use_qk_norm is {n == WITHOUT_NORMS} with {n} experts; wanted the other")
    keys = {
        "expert_count": n,
        "expert_used_count": config.size("experts_used"),
        "expert_feed_forward_length": config.size("ffn"),
        "feed_forward_length": config.size("intermediate_size_mlp"),
        "interleave_moe_layer_step": config.size("interleave_moe_layer_step", 1),
        "attention.sliding_window": config.size("attention_chunk_size") if _unrotated(config, layers) else 0,
        "attention.temperature_length": config.size("floor_scale", 8192),
    }
    scale = config.number("attn_scale", 0.1) if config.get("attn_temperature_tuning", True) else 0.0
    return {**keys, "attention.temperature_scale": float(scale)}


def _unrotated(config: HubConfig, layers: int) -> bool:
    """Whether every fourth layer rotates nothing and sees all; else all rotate."""
    rotates = config.get("no_rope_layers")
    if not rotates:
        return layers >= 4
    fits = isinstance(rotates, list) and len(rotates) == layers
    if fits and rotates == [1] * layers:
        return False
    if not fits or rotates != [int((i + 1) % 4 != 0) for i in range(layers)]:
        raise ModelError(f"{config.path}: no_rope_layers is not every fourth layer, which GGUF files of llama4 have")
    return True


def llama4_changes(name: str, config: HubConfig) -> Iterator[tuple[str, Change]]:
    """Experts' matrices as [out, in]; gate and up apart."""
    if name == "ffn_gate_up_exps.weight":
        half = config.size("ffn")
        yield "ffn_gate_exps.weight", lambda values: values[..., :half].swapaxes(1, 2)
        yield "ffn_up_exps.weight", lambda values: values[..., half:].swapaxes(1, 2)
    elif name == "ffn_down_exps.weight":
        yield name, lambda values: values.swapaxes(1, 2)
