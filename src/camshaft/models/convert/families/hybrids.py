"""Keys and tensors of models that mix attention and state space layers in their own ways: Nemotron-H, Jamba, Falcon-H1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from camshaft.errors import ModelError
from camshaft.formats.bits import Floats
from camshaft.formats.mapped import shown_value
from camshaft.models.convert.hub_config import HubConfig

Change: TypeAlias = Callable[[Floats], Floats]
# Nemotron-H's layers in config.json: a letter each, or words.
_KINDS = {"M": "mamba", "linear_attention": "mamba", "*": "attention", "full_attention": "attention"}
_KINDS |= {"-": "mlp", "E": "moe", "mamba": "mamba", "attention": "attention", "mlp": "mlp", "moe": "moe"}


def nemotron_layers(values: Mapping[str, Any], path: str) -> list[str]:
    """The kind of each layer: mamba, attention, mlp or moe."""
    given = values.get("layers_block_type") or values.get("hybrid_override_pattern")
    if not isinstance(given, (list, str)) or not given or any(str(kind) not in _KINDS for kind in given):
        raise ModelError(
            f"{path}: layers_block_type is {shown_value(given)}; wanted a kind of {', '.join(_KINDS)} each"
        )
    return [_KINDS[kind] for kind in given]


def nemotron_values(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The config with its number of layers."""
    return {**values, "num_hidden_layers": len(nemotron_layers(values, path))}


def nemotron_name(values: Mapping[str, Any], path: str) -> str:
    """The GGUF architecture."""
    return "nemotron_h_moe" if "moe" in nemotron_layers(values, path) else "nemotron_h"


def nemotron_keys(config: HubConfig) -> dict[str, Any]:
    """Sizes of each layer; of experts, if there are some."""
    kinds, heads = nemotron_layers(config.values, config.path), config.size("mamba_num_heads")
    widths = {"mlp": config.size("intermediate_size", 1), "moe": config.size("moe_intermediate_size", 1)}
    keys: dict[str, Any] = {
        "feed_forward_length": [widths.get(kind, 0) for kind in kinds],
        "attention.head_count_kv": [config.size("kv_heads") if kind == "attention" else 0 for kind in kinds],
        "attention.layer_norm_epsilon": float(config.number("rms_eps")),
        "ssm.conv_kernel": config.size("conv_kernel"),
        "ssm.inner_size": heads * config.size("mamba_head_dim"),
        "ssm.state_size": config.size("ssm_state_size"),
        "ssm.time_step_rank": heads,
        "ssm.group_count": config.size("n_groups"),
    }
    if "moe" not in kinds:
        return keys
    keys |= {
        "expert_count": config.size("experts"),
        "expert_used_count": config.size("experts_used"),
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.size("moe_shared_expert_intermediate_size"),
        "expert_shared_count": config.size("n_shared_experts", 1),
        "expert_weights_norm": bool(config.get("norm_topk_prob", True)),
        "expert_weights_scale": float(config.number("routed_scaling_factor", 1.0)),
        "expert_group_count": config.size("n_group", 1),
    }
    latent = {"moe_latent_size": config.size("moe_latent_size")} if config.get("moe_latent_size") else {}
    return keys | latent


def jamba_keys(config: HubConfig) -> dict[str, Any]:
    """Which layers have attention, the sizes of Mamba's, and experts."""
    every, first = config.size("attn_layer_period"), int(config.number("attn_layer_offset"))
    layers, kv_heads = range(config.size("layers")), config.size("kv_heads")
    keys: dict[str, Any] = {
        "attention.head_count_kv": [kv_heads if layer % every == first else 0 for layer in layers],
        "ssm.conv_kernel": config.size("mamba_d_conv"),
        "ssm.inner_size": config.size("mamba_expand", 2) * config.size("dim"),
        "ssm.state_size": config.size("mamba_d_state"),
        "ssm.time_step_rank": config.size("mamba_dt_rank"),
    }
    if config.size("experts", 1) > 1:
        keys |= {"expert_count": config.size("experts"), "expert_used_count": config.size("experts_used")}
    return keys


def falcon_h1_keys(config: HubConfig) -> dict[str, Any]:
    """Sizes of the Mamba 2 that runs beside attention."""
    return {
        "ssm.conv_kernel": config.size("mamba_d_conv"),
        "ssm.inner_size": _inner_size(config),
        "ssm.state_size": config.size("mamba_d_state"),
        "ssm.time_step_rank": config.size("mamba_n_heads"),
        "ssm.group_count": config.size("mamba_n_groups"),
    }


def _inner_size(config: HubConfig) -> int:
    return config.size("mamba_d_ssm", config.size("mamba_expand", 2) * config.size("dim"))


# Tensors of Falcon-H1 and what multiplies their results, by the name of a number in its config.
_MULTIPLIERS = {
    "token_embd.weight": ("embedding_multiplier",),
    "output.weight": ("lm_head_multiplier",),
    "attn_q.weight": ("attention_in_multiplier",),
    "attn_k.weight": ("attention_in_multiplier", "key_multiplier"),
    "attn_v.weight": ("attention_in_multiplier",),
    "attn_output.weight": ("attention_out_multiplier",),
    "ssm_out.weight": ("ssm_out_multiplier",),
}


def falcon_h1_changes(name: str, config: HubConfig) -> Iterator[tuple[str, Change]]:
    """Multipliers go into the weights, as GGUF has none. A file with tied embeddings gets an output of its own, since the
    embeddings have another multiplier."""
    if name == "ffn_norm.weight":
        yield "ffn_norm", lambda values: values
    elif name == "ssm_in.weight":
        yield name, lambda values: values * _of_projection(config)[:, None]
    elif name in ("ffn_gate.weight", "ffn_down.weight"):
        yield name, _multiplied(_listed(config, "mlp_multipliers", 2)[name == "ffn_down.weight"])
    elif name in _MULTIPLIERS:
        yield name, _multiplied(_product(config, _MULTIPLIERS[name]))
        if name == "token_embd.weight" and config.get("tie_word_embeddings"):
            yield "output.weight", _multiplied(_product(config, _MULTIPLIERS["output.weight"]))


def _multiplied(factor: float) -> Change:
    return lambda values: values * np.float32(factor)


def _product(config: HubConfig, names: tuple[str, ...]) -> float:
    product = 1.0
    for name in names:
        product *= config.number(name, 1.0)
    return product


def _listed(config: HubConfig, name: str, n: int) -> list[float]:
    found = config.get(name, [1.0] * n)
    if not isinstance(found, list) or len(found) != n or not all(isinstance(x, (int, float)) for x in found):
        raise ModelError(f"{config.path}: {name} is {shown_value(found)}; wanted {n} numbers")
    return found


def _of_projection(config: HubConfig) -> np.ndarray[Any, Any]:
    """Returns the factors of the rows of z, x, B, C and dt."""
    inner, heads = _inner_size(config), config.size("mamba_n_heads")
    state = config.size("mamba_n_groups") * config.size("mamba_d_state")
    factors = np.array(_listed(config, "ssm_multipliers", 5), np.float32)
    return np.repeat(factors, (inner, inner, state, state, heads)) * np.float32(config.number("ssm_in_multiplier", 1.0))
