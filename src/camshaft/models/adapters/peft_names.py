"""Names and row orders of matrices in Hugging Face models, by those of GGUF files: what PEFT calls the modules of an adapter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from camshaft.errors import FormatError
from camshaft.formats.mapped import shown_value
from camshaft.models.config import ModelConfig

Array = np.ndarray[Any, Any]
Order = Literal["", "halves", "groups"]

_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_DENSE = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LATENT = {
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_output": "self_attn.o_proj",
}
_NEOX_FFN = {"ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}


@dataclass(frozen=True)
class Naming:
    """The modules of a layer by their names in a block of the file; `layers` is the path of the layers, `head` that of the
    output matrix. `transposed`: weights are [k, n] there. `orders`: the rows of which matrices are in another order there.

    'halves': of each head first the first elements of all pairs that rotate, then the second ones; GGUF has pair after pair.
    'groups': a key-value head's q, its k, its v; GGUF has all q, all k, all v.
    """

    modules: Mapping[str, str] = field(default_factory=lambda: _ATTENTION | _DENSE)
    layers: str = "model.layers"
    head: str = "lm_head"
    orders: Mapping[str, Order] = field(default_factory=dict)
    transposed: bool = False


def _shared(path: str) -> dict[str, str]:
    """The shared expert of each layer."""
    return {f"ffn_{part}_shexp": f"{path}.{part}_proj" for part in ("gate", "up", "down")}


_PLAIN, _EXPERTS = Naming(), Naming(_ATTENTION)
_SHARED_EXPERTS = Naming(_ATTENTION | _DENSE | _shared("mlp.shared_experts"))
_LFM2 = Naming(
    {
        **_ATTENTION,
        "attn_output": "self_attn.out_proj",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
        **{f"shortconv.{part}": f"conv.{part}" for part in ("in_proj", "out_proj")},
    }
)
_SCAN = {"ssm_in": "in_proj", "ssm_out": "out_proj"}
_STEPS = {"ssm_x": "x_proj", "ssm_dt": "dt_proj"}


def _mixer(path: str, parts: Mapping[str, str]) -> dict[str, str]:
    return {name: f"{path}.{part}" for name, part in parts.items()}


# q and k of families that rotate in pairs, but for those that do so in transformers too: Cohere, GLM, ERNIE and DeepSeek.
_HALVES: dict[str, Order] = {"attn_q": "halves", "attn_k": "halves"}
_PAIRS = Naming(orders=_HALVES)
NAMINGS: dict[str, Naming] = {
    **dict.fromkeys(("llama", "smollm3", "mistral3", "granite", "minicpm", "olmo", "deci", "nanbeige"), _PAIRS),
    **dict.fromkeys(
        ("qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma3n", "olmo2", "exaone4", "seed_oss", "stablelm"), _PLAIN
    ),
    **dict.fromkeys(("command-r", "cohere2", "hunyuan-dense", "ernie4_5", "gemma4"), _PLAIN),
    **dict.fromkeys(("ernie4_5-moe", "glm4moe", "dots1", "exaone-moe"), _SHARED_EXPERTS),
    "qwen2moe": Naming(_ATTENTION | _shared("mlp.shared_expert")),
    **dict.fromkeys(("qwen3moe", "olmoe", "gpt-oss", "minimax-m2", "phimoe", "smallthinker"), _EXPERTS),
    "mellum": _EXPERTS,
    "hunyuan-moe": Naming(_ATTENTION | _shared("mlp.shared_mlp")),
    **dict.fromkeys(("lfm2", "lfm2moe"), _LFM2),
    "mamba": Naming(_mixer("mixer", _SCAN | _STEPS), layers="backbone.layers"),
    "mamba2": Naming(_mixer("mixer", _SCAN), layers="backbone.layers"),
    "jamba": Naming(
        _ATTENTION
        | _mixer("mamba", _SCAN | _STEPS)
        | {name: path.replace("mlp", "feed_forward") for name, path in _DENSE.items()}
    ),
    "granitehybrid": Naming(_ATTENTION | _mixer("mamba", _SCAN), orders=_HALVES),
    "qwen3next": Naming(_ATTENTION | _shared("mlp.shared_expert")),
    "qwen35": _PLAIN,
    "qwen35moe": Naming(_ATTENTION | _shared("mlp.shared_expert")),
    "afmoe": Naming(_ATTENTION | {"attn_gate": "self_attn.gate_proj"} | _DENSE | _shared("mlp.shared_experts")),
    "llama4": Naming(
        _ATTENTION
        | {name: part.replace("mlp", "feed_forward") for name, part in _DENSE.items()}
        | _shared("feed_forward.shared_expert")
    ),
    "arcee": Naming({**_ATTENTION, "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}, orders=_HALVES),
    **dict.fromkeys(
        ("nemotron", "apertus"), Naming({**_ATTENTION, "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"})
    ),
    "pangu-embedded": _PLAIN,
    "qwen": Naming(
        {
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_up": "mlp.w1",
            "ffn_gate": "mlp.w2",
            "ffn_down": "mlp.c_proj",
        },
        layers="transformer.h",
    ),
    "codeshell": Naming(
        {"attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        layers="transformer.h",
    ),
    "phi2": Naming({**_ATTENTION, "attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}),
    "dbrx": Naming(
        {"attn_qkv": "norm_attn_norm.attn.Wqkv", "attn_output": "norm_attn_norm.attn.out_proj"},
        layers="transformer.blocks",
    ),
    "granitemoe": Naming(_ATTENTION, orders=_HALVES),
    "phi3": Naming(
        {
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        }
    ),
    **dict.fromkeys(
        ("glm4", "chatglm"), Naming(_ATTENTION | {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"})
    ),
    **dict.fromkeys(
        ("deepseek2", "deepseek32", "glm-dsa", "minicpm3"), Naming(_LATENT | _DENSE | _shared("mlp.shared_experts"))
    ),
    "kimi-linear": Naming({**_ATTENTION, "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa"} | _DENSE),
    "starcoder2": Naming(_ATTENTION | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
    "gpt2": Naming(
        {"attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        layers="transformer.h",
        transposed=True,
    ),
    "gptneox": Naming(
        {"attn_qkv": "attention.query_key_value", "attn_output": "attention.dense", **_NEOX_FFN},
        layers="gpt_neox.layers",
        head="embed_out",
        orders={"attn_qkv": "groups"},
    ),
    **dict.fromkeys(
        ("bloom", "falcon"),
        Naming(
            {"attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense", **_NEOX_FFN},
            layers="transformer.h",
            orders={"attn_qkv": "groups"},
        ),
    ),
}
# Where text models are parts of models that see images, their path has this in front of the first dot or after it.
_TEXT = "language_model."


def naming_of(architecture: object) -> Naming:
    """The naming of an architecture. FormatError for one that has none here."""
    if not isinstance(architecture, str) or architecture not in NAMINGS:
        known = ", ".join(NAMINGS)
        raise FormatError(f"PEFT adapters of {shown_value(architecture)} are not supported; wanted a model of {known}")
    return NAMINGS[architecture]


def module_name(naming: Naming, name: str) -> str | None:
    """The path of a module by the matrix's name in the file without '.weight'; None for one that is not of the naming."""
    if name == "output":
        return naming.head
    match = re.fullmatch(r"blk\.(\d+)\.([\w.]+)", name)
    short = naming.modules.get(match[2]) if match else None
    return f"{naming.layers}.{match[1]}.{short}" if match and short else None


def file_name(naming: Naming, module: str) -> str | None:
    """The reverse of `module_name`."""
    module = module.removeprefix(_TEXT).replace(f"model.{_TEXT}", "model.", 1)
    if module == naming.head:
        return "output"
    match = re.fullmatch(rf"{re.escape(naming.layers)}\.(0|[1-9]\d{{0,5}})\.([\w.]+)", module, re.ASCII)
    short = next((s for s, path in naming.modules.items() if path == match[2]), None) if match else None
    return f"blk.{match[1]}.{short}" if match and short else None


def row_order(naming: Naming, config: ModelConfig, name: str, n: int) -> Array | None:
    """The rows of a Hugging Face matrix in the order of the file, where that is another one. FormatError for `n` rows that are
    no heads."""
    order = naming.orders.get(name.rpartition(".")[2], "")
    if not order:
        return None
    rows, size = np.arange(n), config.head_dim
    per_group = size if order == "halves" else (config.n_heads // config.n_kv_heads + 2) * size
    if n % per_group or size % 2:
        raise FormatError(f"{name}.weight has {n} rows; wanted a multiple of {per_group}, heads of {size}")
    if order == "halves":
        return rows.reshape(-1, 2, size // 2).swapaxes(1, 2).reshape(-1)
    groups = rows.reshape(-1, per_group // size, size)
    return np.concatenate([part.reshape(-1) for part in (groups[:, :-2], groups[:, -2], groups[:, -1])])
