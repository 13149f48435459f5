"""Tiny random models of families that are rows of others' options, as small as they can be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from scripts.oracles.tiny.model import ADDED, HALF_ROPE, NUMBERS_OF_8_BITS, TinyModel

FIRST_SEED = 700
# Six experts of 8, of which two are chosen; the first layer is dense.
_EXPERTS = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 2}
_EXPERTS |= {"first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True}
_EXPERT_KEYS = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 8}
_SHARED_KEYS = {
    **_EXPERT_KEYS,
    "expert_shared_count": 2,
    "leading_dense_block_count": 1,
    "expert_weights_scale": 2.5,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
}


def _row(name: str, family: str, row: str = "", **options: Any) -> TinyModel:
    """A model of 16 columns and two layers."""
    sizes = {"heads": 2, "kv_heads": 1, "head_dim": 8, "values": NUMBERS_OF_8_BITS, "n_vocab": 64, "row": row}
    return TinyModel(name, family, 16, 24, **(sizes | options))


MODELS = (
    _row("gemma", "Gemma", head_dim=16, tied=True, agreement=0.05),
    _row("phi2", "Phi", kv_heads=2, rope=HALF_ROPE, keys={"rope.dimension_count": 4}, agreement=0.05),
    _row("internlm2", "Llama", row="internlm2"),
    _row("exaone", "Llama", row="exaone"),
    _row("orion", "StableLm", row="orion", kv_heads=2, rope={"rope_type": "default", "partial_rotary_factor": 1.0}),
    _row("arcee", "Arcee"),
    _row("nemotron", "Nemotron", rope=HALF_ROPE, keys={"rope.dimension_count": 4}),
    _row("chatglm", "Glm", rope=HALF_ROPE, options={"attention_bias": True}, keys={"rope.dimension_count": 4}),
    _row("olmo", "Olmo", options={"clip_qkv": 1.0, "rope_theta": 10000.0}, keys={"attention.clamp_kqv": 1.0}),
    _row(
        "minicpm",
        "Granite",
        row="minicpm",
        options={
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.7,
            "attention_multiplier": 8**-0.5,
            "logits_scaling": 1.25,
        },
        keys={"embedding_scale": 6.0, "residual_scale": 0.7, "logit_scale": 1.25},
    ),
    # agreement=None: llama.cpp does not open the file
    _row("dots1", "Dots1", options=_EXPERTS, keys=_SHARED_KEYS, agreement=None),
    _row(
        "bailingmoe2",
        "Dots1",
        row="bailingmoe2",
        options={**_EXPERTS, "n_routed_experts": 8, "n_group": 4, "topk_group": 2},
        keys={
            **_SHARED_KEYS,
            "expert_count": 8,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
        },
    ),
    _row(
        "hunyuan-moe",
        "HunYuanMoEV1",
        agreement=None,
        options={"num_experts": 4, "moe_topk": 2},
        keys={"expert_count": 4, "expert_used_count": 2, "expert_shared_feed_forward_length": 24},
    ),
    _row(
        "minimax-m2",
        "MiniMaxM2",
        agreement=None,
        rope=HALF_ROPE,
        options={"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 8},
        keys={**_EXPERT_KEYS, "feed_forward_length": 8, "rope.dimension_count": 4, "expert_gating_func": 2},
    ),
    _row(
        "dbrx",
        "Dbrx",
        options={
            "d_model": 16,
            "n_heads": 2,
            "n_layers": 2,
            "max_seq_len": 512,
            "attn_config": {"kv_n_heads": 1, "clip_qkv": 1.0, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 16},
        },
        keys={"attention.clamp_kqv": 1.0, "expert_count": 4, "expert_used_count": 2},
    ),
)
# Families whose rows of q and k go from halves to pairs.
_PAIRED = ("internlm2", "arcee", "olmo", "minicpm")


def row_parts(name: str, values: np.ndarray, model: TinyModel) -> Iterator[tuple[str, np.ndarray]]:
    """A parameter's tensors in the file of such a family; nothing for those that are as they are in others."""
    layer = (name.split(".") + [""] * 3)[2]
    if model.arch in _PAIRED and name.endswith(("q_proj.weight", "k_proj.weight")):
        yield name, values.reshape(-1, 2, model.head_dim // 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    elif model.arch in ADDED and "norm" in name and name.endswith("weight"):
        yield name, values + 1
    elif model.arch == "dbrx":
        yield from _dbrx_parts(name, values, layer, (4, model.ffn, model.hidden))
    elif model.arch == "hunyuan-moe" and ".mlp.gate.wg" in name:
        yield f"blk.{layer}.ffn_gate_inp.weight", values
    elif model.arch == "bailingmoe2" and name.endswith("qkv.weight"):
        yield f"blk.{layer}.attn_qkv.weight", values


def _dbrx_parts(
    name: str, values: np.ndarray, layer: str, shape: tuple[int, int, int]
) -> Iterator[tuple[str, np.ndarray]]:
    part = name.rpartition("mlp.")[2]
    if part in ("w1", "v1"):
        yield f"blk.{layer}.ffn_{'gate' if part == 'w1' else 'up'}_exps.weight", values.reshape(shape)
    elif part == "w2":
        yield f"blk.{layer}.ffn_down_exps.weight", values.reshape(shape).swapaxes(1, 2)
    else:
        yield name, values
