"""Metadata of sliding-window attention: window size, which layers have one, and the RoPE base of those layers."""

from __future__ import annotations

from camshaft.errors import ModelError
from camshaft.models.convert.architecture import Keys, MoreKeys
from camshaft.models.convert.hub_config import HubConfig


def window(config: HubConfig) -> Keys:
    """Returns the window size, if there is one."""
    return {"attention.sliding_window": config.size("sliding_window")} if config.get("sliding_window") else {}


def window_pattern(config: HubConfig) -> Keys:
    """Returns the window size and which layers have it."""
    kinds = config.get("layer_types")
    if not config.get("sliding_window") or not isinstance(kinds, list):
        return {}
    return {**window(config), "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds]}


def window_every(n: int) -> MoreKeys:
    """Returns the window size, after a check that all layers but every n-th have it: GGUF readers assume that pattern."""

    def keys(config: HubConfig) -> Keys:
        kinds = config.get("layer_types")
        expected = ["full_attention" if (i + 1) % n == 0 else "sliding_attention" for i in range(config.size("layers"))]
        if kinds is not None and kinds != expected:
            raise ModelError(f"{config.path}: layer_types do not have full_attention in every layer {n} of {n} alone")
        return window(config)

    return keys


def window_base(config: HubConfig) -> Keys:
    """Returns the RoPE base of layers with a window, if it differs from the others'."""
    theta = config.window_theta
    return {} if theta is None else {"rope.freq_base_swa": float(theta)}
