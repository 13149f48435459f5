"""Tensors and keys of layers with the gated delta rule (Qwen3-Next, Qwen3.5).

Heads of values share those of keys in runs; files of qwen35 have them in turn: head h uses head h % n of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from camshaft.formats.bits import Floats
from camshaft.models.convert.hub_config import HubConfig

Change: TypeAlias = Callable[[Floats], Floats]


def delta_keys(config: HubConfig) -> dict[str, Any]:
    """Sizes of the recurrent layers, and how many layers there are to one with attention."""
    heads = config.size("linear_num_value_heads")
    return {
        "ssm.conv_kernel": config.size("linear_conv_kernel_dim"),
        "ssm.state_size": config.size("linear_key_head_dim"),
        "ssm.group_count": config.size("linear_num_key_heads"),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config.size("linear_value_head_dim"),
        "full_attention_interval": config.size("full_attention_interval", 4),
    }


def rotation_sections(config: HubConfig) -> dict[str, Any]:
    """How many pairs rotate by time, height and width: a third each unless the config says more."""
    given = config.rope.get("mrope_section")
    sizes = [len(part) for part in np.array_split(np.zeros(config.rope_dim // 2), 3)]
    sections = [config.whole("mrope_section", n) for n in given] if isinstance(given, list) and given else sizes
    return {"rope.dimension_sections": (sections + [0] * 4)[:4]}


def delta_changes(name: str, config: HubConfig, *, in_turn: bool) -> Iterator[tuple[str, Change]]:
    """Yields (name, change) of the file's tensors for a tensor of a recurrent layer, `name` without 'blk.N.'; nothing for
    others."""
    keys = config.size("linear_num_key_heads") * config.size("linear_key_head_dim")
    size = config.size("linear_value_head_dim")

    def order(values: Floats, head_size: int, axis: int = 0) -> Floats:
        return _interleaved(values, config, head_size, axis) if in_turn else values

    def after_keys(values: Floats) -> Floats:
        rows = values.reshape(values.shape[0], -1)
        return np.concatenate([rows[: 2 * keys], order(rows[2 * keys :], size)])

    changes: dict[str, Change] = {
        "ssm_a": lambda values: order(-np.exp(values), 1),
        "ssm_dt.bias": lambda values: order(values, 1),
        "ssm_conv1d.weight": after_keys,
        "attn_qkv.weight": after_keys,
        "attn_gate.weight": lambda values: order(values, size),
        "ssm_alpha.weight": lambda values: order(values, 1),
        "ssm_beta.weight": lambda values: order(values, 1),
        "ssm_out.weight": lambda values: order(values, size, axis=1),
        "ssm_norm.weight": lambda values: values,
    }
    if name in changes:
        yield name, changes[name]
    elif name == "attn_qkvz.weight":
        yield "attn_qkv.weight", lambda values: np.concatenate(_groups(values, config)[:3])
        yield "attn_gate.weight", lambda values: _groups(values, config)[3]


def _interleaved(values: Floats, config: HubConfig, head_size: int, axis: int) -> Floats:
    """Heads of values from runs of those that share a head of keys to the order in which they take turns."""
    groups, heads = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    shape = (*values.shape[:axis], groups, heads // groups, head_size, *values.shape[axis + 1 :])
    return values.reshape(shape).swapaxes(axis, axis + 1).reshape(values.shape)


def _groups(values: Floats, config: HubConfig) -> list[Floats]:
    """q, k, v and z out of groups of a head of keys each, which have them side by side."""
    groups, size = config.size("linear_num_key_heads"), config.size("linear_key_head_dim")
    shared = config.size("linear_num_value_heads") // groups * config.size("linear_value_head_dim")
    rows = values.reshape(groups, 2 * size + 2 * shared, values.shape[1])
    parts = np.split(rows, (size, 2 * size, 2 * size + shared), axis=1)
    return [part.reshape(-1, values.shape[1]) for part in parts]
