"""Tiny random models of families whose layers are their own: Kimi Linear, Gemma 3n, RWKV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from scripts.oracles.tiny.model import FEW, SMALL, WINDOW, TinyModel, sizes

FIRST_SEED = 600
# transformers computes the delta rule in chunks of 64 tokens
MORE_TOKENS = 70
RANK, PLAIN, ROPE, VALUE = 16, 16, 8, 10
_EXTRA = {"time_mix_extra_dim": 8, "time_decay_extra_dim": 8}
_RANKS = {f"attention.{part}_lora_rank": 8 for part in ("decay", "iclr", "value_residual_mix", "gate")}
_NEVER = float("-inf")
_GEMMA = {
    "altup.num_inputs": 4,
    "altup.active_idx": 0,
    "embedding_length_per_layer_input": 8,
    "activation_sparsity_scale": [1.2815515, _NEVER, _NEVER, _NEVER],
    "feed_forward_length": [40, 48, 48, 48],
    "attention.shared_kv_layers": 1,
    "attention.sliding_window": WINDOW,
    "attention.sliding_window_pattern": [True, False, True, True],
    "rope.freq_base_swa": 10000.0,
    "final_logit_softcapping": 20.0,
}
MODELS = (
    TinyModel(
        "kimi-linear",
        "KimiLinear",
        **sizes(32, 48, heads=2, kv_heads=2, head_dim=ROPE),
        n_layers=3,
        layer_kv_heads=(0, 1, 0),
        options={
            "kv_lora_rank": RANK,
            "qk_nope_head_dim": PLAIN,
            "qk_rope_head_dim": ROPE,
            "v_head_dim": VALUE,
            "linear_head_dim": 16,
            "linear_num_heads": 2,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "n_group": 1,
        },
        keys={
            "attention.kv_lora_rank": RANK,
            "attention.key_length": RANK + ROPE,
            "attention.key_length_mla": PLAIN + ROPE,
            "attention.value_length_mla": VALUE,
            "rope.dimension_count": ROPE,
            "kda.head_dim": 16,
            "ssm.conv_kernel": 4,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 16,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "expert_weights_scale": 2.446,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
        agreement=1e-3,  # it adds another number to squares of lengths
        n_tokens=MORE_TOKENS,
        **SMALL,
    ),
    TinyModel(
        "gemma3n",
        "Gemma3n",
        **sizes(32, 48, heads=4, kv_heads=2, head_dim=8),
        tied=True,
        theta=1e6,
        n_layers=4,
        options={
            "sliding_window": WINDOW,
            "intermediate_size": [40, 48, 48, 48],
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
            "final_logit_softcapping": 20.0,
            "vocab_size_per_layer_input": FEW,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 1,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0],
        },
        keys=_GEMMA,
        agreement=None,  # it takes other sizes for granted
        **SMALL,
    ),
    TinyModel(
        "minicpm3",
        "MiniCPM3",
        **sizes(32, 48, heads=4, kv_heads=4, head_dim=ROPE),
        tied=True,
        options={
            "kv_lora_rank": RANK,
            "q_lora_rank": 24,
            "qk_nope_head_dim": PLAIN,
            "qk_rope_head_dim": ROPE,
            "v_head_dim": 8,
        },
        keys={
            "attention.q_lora_rank": 24,
            "attention.kv_lora_rank": RANK,
            "attention.key_length": PLAIN + ROPE,
            "rope.dimension_count": ROPE,
        },
        agreement=2e-4,
        **SMALL,
    ),
    TinyModel(
        "plamo2",
        "Plamo2",
        **sizes(32, 48, heads=4, kv_heads=2, head_dim=16),
        n_layers=3,
        layer_kv_heads=(0, 2, 0),
        keys={
            "attention.head_count": [0, 4, 0],
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 32,
            "ssm.state_size": 8,
            "ssm.time_step_rank": 2,
            "ssm.group_count": 0,
        },
        n_tokens=40,
        agreement=None,  # it does not run it
        **SMALL,
    ),
    *(
        TinyModel(
            f"rwkv{version}",
            f"Rwkv{version}",
            **sizes(32, 48, heads=0, kv_heads=0, head_dim=16),
            n_layers=n_layers,
            keys=keys,
            n_tokens=40,
            agreement=agreement,
            **SMALL,
        )
        for version, n_layers, agreement, keys in (
            (6, 3, 1e-4, {"wkv.head_size": 16, "rescale_every_n_layers": 2, **_EXTRA}),
            (7, 3, None, {"wkv.head_size": 16, **_RANKS}),  # its kernel takes no heads of 16
        )
    ),
)
_KIMI = {
    "f_a_proj.weight": "ssm_f_a.weight",
    "f_b_proj.weight": "ssm_f_b.weight",
    "g_a_proj.weight": "ssm_g_a.weight",
    "g_b_proj.weight": "ssm_g_b.weight",
    "b_proj.weight": "ssm_beta.weight",
    "o_norm.weight": "ssm_norm.weight",
    "dt_bias": "ssm_dt.bias",
    "A_log": "ssm_a",
}


def own_state(state: Mapping[str, Any], model: TinyModel) -> dict[str, Any]:
    """The parameters of a network, by name: those that are one tensor in the file as one."""
    found = {f"{name}.weight" if name.endswith("output_scale") else name: values for name, values in state.items()}
    for layer in range(model.n_layers if model.arch == "bailingmoe2" else 0):
        parts = [found.pop(f"model.layers.{layer}.self_attn.{part}_proj.weight") for part in "qkv"]
        found[f"model.layers.{layer}.self_attn.qkv.weight"] = torch.cat(parts)
    return found


def own_parts(name: str, values: np.ndarray, model: TinyModel) -> Iterator[tuple[str, np.ndarray]]:
    """A parameter's tensors in the file of such a family; nothing for those that are named as in others."""
    layer, _, last = name.removeprefix("model.layers.").partition(".")
    if model.family == "KimiLinear":
        yield from _kimi_parts(f"blk.{layer}.", last, values, model)


def _kimi_parts(prefix: str, name: str, values: np.ndarray, model: TinyModel) -> Iterator[tuple[str, np.ndarray]]:
    last = name.removeprefix("self_attn.").removeprefix("forget_gate.")
    if last == "conv1d.weight":
        for part, taps in zip("qkv", np.split(values, 3), strict=True):
            yield f"{prefix}ssm_conv1d_{part}.weight", taps.reshape(1, len(taps), 1, -1)
    elif last in _KIMI:
        yield prefix + _KIMI[last], -np.exp(values) if last == "A_log" else values
    elif "kv_b_proj" in name:
        plain, value, rank = (model.options[size] for size in ("qk_nope_head_dim", "v_head_dim", "kv_lora_rank"))
        joined = values.reshape(model.heads, plain + value, rank)
        yield f"{prefix}attn_k_b.weight", joined[:, :plain].swapaxes(1, 2)
        yield f"{prefix}attn_v_b.weight", joined[:, plain:]
