"""Tensors and keys of state space layers: Mamba, FalconMamba, Mamba 2, and Granite 4's hybrids."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from camshaft.errors import ModelError
from camshaft.formats.bits import Floats
from camshaft.models.convert.hub_config import HubConfig

Change: TypeAlias = Callable[[Floats], Floats]


def mamba_keys(config: HubConfig) -> dict[str, Any]:
    """Sizes of Mamba's layers; FalconMamba norms the step, B and C."""
    rank = config.get("time_step_rank", "auto")
    return {
        "ssm.conv_kernel": config.size("conv_kernel"),
        "ssm.inner_size": config.size("intermediate_size", config.size("expand", 2) * config.size("dim")),
        "ssm.state_size": config.size("state_size"),
        "ssm.time_step_rank": math.ceil(config.size("dim") / 16) if rank == "auto" else config.size("time_step_rank"),
        "ssm.dt_b_c_rms": config.architecture == "FalconMambaForCausalLM",
    }


def mamba2_keys(config: HubConfig) -> dict[str, Any]:
    """Sizes of Mamba 2's layers."""
    return {
        "ssm.conv_kernel": config.size("conv_kernel"),
        "ssm.inner_size": config.size("expand", 2) * config.size("dim"),
        "ssm.state_size": config.size("state_size"),
        "ssm.time_step_rank": config.size("num_heads"),
        "ssm.group_count": config.size("n_groups"),
    }


def granite_hybrid_keys(config: HubConfig) -> dict[str, Any]:
    """Sizes of Granite 4's Mamba 2 layers, and which layers have attention instead."""
    if not config.get("num_local_experts"):
        raise ModelError(f"{config.path}: a Granite hybrid without experts is not converted; wanted num_local_experts")
    kinds, kv_heads = config.layer_kinds, config.size("kv_heads")
    return {
        "attention.head_count_kv": [kv_heads if "attention" in kind and "linear" not in kind else 0 for kind in kinds],
        "expert_shared_feed_forward_length": config.size("shared_intermediate_size"),
        "ssm.conv_kernel": config.size("mamba_d_conv"),
        "ssm.inner_size": config.size("mamba_expand", 2) * config.size("dim"),
        "ssm.state_size": config.size("mamba_d_state"),
        "ssm.time_step_rank": config.size("mamba_n_heads"),
        "ssm.group_count": config.size("mamba_n_groups"),
        "rope.scaling.finetuned": config.get("position_embedding_type") == "rope",
    }


def state_space_changes(name: str, config: HubConfig, *, by_heads: bool) -> Iterator[tuple[str, Change]]:
    """Yields (name, change) of the file's tensors for a layer's tensor, `name` without 'blk.N.'; nothing for others. `by_heads`:
    of Mamba 2, whose decays are one for each head."""
    groups = config.size("n_groups", config.size("mamba_n_groups", 1))
    changes: dict[str, Change] = {
        "ssm_a": lambda values: -np.exp(values.reshape(-1, 1) if by_heads else values),
        "ssm_d": lambda values: values.reshape(-1, 1) if by_heads else values,
        "ssm_conv1d.weight": lambda values: values.reshape(values.shape[0], -1),
        "ssm_norm.weight": lambda values: values.reshape(groups, -1),
    }
    if name in changes:
        yield name, changes[name]
    elif name == "ffn_gate_up_shexp.weight":
        yield "ffn_gate_shexp.weight", lambda values: values[: len(values) // 2]
        yield "ffn_up_shexp.weight", lambda values: values[len(values) // 2 :]
