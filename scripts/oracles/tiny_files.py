"""Tiny models as GGUF files, written as llama.cpp's converter writes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from scripts.oracles.tiny_experts import expert_parts
from scripts.oracles.tiny_hybrids import hybrid_parameter
from scripts.oracles.tiny_latent import latent_parts
from scripts.oracles.tiny_models import ORIGINAL_CONTEXT, TinyModel
from scripts.oracles.tiny_recurrent import delta_parts, mamba_parts
from scripts.oracles.tiny_vocabulary import CHAT_TEMPLATE, N_VOCAB, make_tokens


def write_gguf(model: TinyModel, network: Any, path: Path) -> None:
    """The model as an F32 GGUF file at `path`."""
    writer = gguf.GGUFWriter(path, model.arch)
    _write_sizes(writer, model)
    _write_rope(writer, model)
    _write_vocabulary(writer, model)
    for name, values in tensors(model, network):
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    writer.add_name(f"tiny random {model.name}")
    writer.add_context_length(512)
    writer.add_block_count(model.n_layers)
    writer.add_embedding_length(model.hidden)
    if "feed_forward_length" not in model.keys:
        writer.add_feed_forward_length(model.ffn)
    writer.add_head_count(model.heads)
    if model.heads:
        is_latent = "attention.kv_lora_rank" in model.keys  # the cache has one head of latents
        writer.add_head_count_kv(1 if is_latent else list(model.layer_kv_heads) or model.kv_heads)
        if not is_latent:
            writer.add_key_length(model.head_dim)
            writer.add_value_length(model.head_dim)
    (writer.add_layer_norm_eps if model.has_layer_norm else writer.add_layer_norm_rms_eps)(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for key, value in model.keys.items():
        writer.add_key_value(f"{model.arch}.{key}", value, *_value_types(value))
    if model.arch == "llama":
        writer.add_vocab_size(N_VOCAB)
        writer.add_rope_dimension_count(model.head_dim)


def _value_types(value: Any) -> tuple[gguf.GGUFValueType, gguf.GGUFValueType | None]:
    if isinstance(value, list):
        return gguf.GGUFValueType.ARRAY, (
            gguf.GGUFValueType.BOOL if isinstance(value[0], bool) else gguf.GGUFValueType.INT32
        )
    if isinstance(value, bool):
        return gguf.GGUFValueType.BOOL, None
    return (gguf.GGUFValueType.UINT32 if isinstance(value, int) else gguf.GGUFValueType.FLOAT32), None


def _write_rope(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    writer.add_rope_freq_base(model.theta)
    kind = model.rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(model.rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(model.rope.get("original_max_position_embeddings", ORIGINAL_CONTEXT))


def _write_vocabulary(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    tokens, types, merges = make_tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if model.arch.startswith("qwen") else "smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def tensors(model: TinyModel, network: Any) -> Iterator[tuple[str, np.ndarray]]:
    """(GGUF name, float32 values) of every tensor of the file."""
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == model.arch)
    names = gguf.get_tensor_name_map(arch, model.n_layers)
    for name, parameter in network.state_dict().items():
        if (model.tied and name == "lm_head.weight") or "rotary" in name or "embed_scale" in name:
            continue
        for part, values in _parts(name, parameter.float().numpy(), model):
            found = part if part.startswith("blk.") else names.get_name(part, try_suffixes=(".weight", ".bias"))
            if found is None:
                raise ValueError(f"{model.name}: no GGUF name for {part}")
            yield found, values
    if model.rope["rope_type"] == "llama3":
        yield "rope_freqs.weight", llama3_factors(model)
    if model.rope["rope_type"] == "longrope":
        for kind in ("short", "long"):
            yield f"rope_factors_{kind}.weight", np.array(model.rope[f"{kind}_factor"], np.float32)


def _parts(name: str, values: np.ndarray, model: TinyModel) -> Iterator[tuple[str, np.ndarray]]:
    """A parameter's tensors in the file: gate and up of experts apart, q and k permuted, the 1 that Gemma adds to norms."""
    if model.permutes and (".q_proj." in name or ".k_proj." in name):
        values = _neighbours(values, model.heads if ".q_proj." in name else model.kv_heads)
    if model.family == "GPT2" and ".c_" in name and name.endswith("weight"):
        values = values.T
    if "query_key_value" in name:
        values = _joined_apart(values, model)
    if model.family.startswith("Gemma") and "norm" in name:
        values = values + 1
    if model.family.startswith(("Qwen3_5", "Qwen3Next")):
        if name.endswith("norm.weight") and "linear_attn" not in name:
            values = values + 1
        if "linear_attn" in name:
            yield from delta_parts(name, values, in_turn=model.family != "Qwen3Next")
            return
    name, values = hybrid_parameter(name, values, model)
    if found := [*expert_parts(name, values), *latent_parts(name, values, model)]:
        yield from found
        return
    if ".mixer." in name or ".mamba." in name:
        yield from mamba_parts(name, values, model)
        return
    if "shared_mlp" in name:
        layer = name.split(".")[2]
        if "output_linear" in name:
            yield f"blk.{layer}.ffn_down_shexp.weight", values
        else:
            for part, half in zip(("gate", "up"), np.split(values, 2), strict=True):
                yield f"blk.{layer}.ffn_{part}_shexp.weight", half
        return
    parts = name.removesuffix(".weight").split(".")
    layer, last = parts[2] if len(parts) > 2 else "", parts[-1]
    if model.family == "GptOss" and "experts." in name:
        yield from _interleaved_experts(f"blk.{layer}", name, values)
    elif name.endswith("sinks"):
        yield f"blk.{layer}.attn_sinks.weight", values
    elif ".experts.gate_up_proj" in name or "input_linear" in name:
        half = values.shape[1] // 2
        yield f"blk.{layer}.ffn_gate_exps.weight", values[:, :half]
        yield f"blk.{layer}.ffn_up_exps.weight", values[:, half:]
    elif ".experts.down_proj" in name or "output_linear" in name:
        yield f"blk.{layer}.ffn_down_exps.weight", values
    elif (last in ("gate", "layer") and "mlp" in name) or "block_sparse_moe.gate" in name or "router" in name:
        yield f"blk.{layer}.ffn_gate_inp.{'bias' if last == 'bias' else 'weight'}", values
    elif "conv.conv" in name or "conv1d" in name:
        yield name, values.reshape(values.shape[0], -1) if values.ndim > 1 else values
    elif "shared_expert_gate" in name:
        yield f"blk.{layer}.ffn_gate_inp_shexp.weight", values.reshape(-1)
    else:
        yield name, values


def _interleaved_experts(prefix: str, name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """gpt-oss's experts: columns are outputs, those of gate and up take turns."""
    kind = "bias" if name.endswith("bias") else "weight"
    values = values if kind == "bias" else values.swapaxes(1, 2)
    if "gate_up_proj" in name:
        yield f"{prefix}.ffn_gate_exps.{kind}", values[:, ::2]
        yield f"{prefix}.ffn_up_exps.{kind}", values[:, 1::2]
    else:
        yield f"{prefix}.ffn_down_exps.{kind}", values


def _joined_apart(values: np.ndarray, model: TinyModel) -> np.ndarray:
    """Rows of all q, then all k, then all v, out of groups of a key-value head each: its q, its k, its v."""
    groups = values.reshape(model.kv_heads, model.heads // model.kv_heads + 2, model.head_dim, *values.shape[1:])
    parts = groups[:, :-2], groups[:, -2], groups[:, -1]
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])


def _neighbours(values: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows i and i + d/2 of each head side by side, as the interleaved rotation of llama.cpp wants them."""
    return (
        values.reshape(n_heads, 2, values.shape[0] // n_heads // 2, *values.shape[1:])
        .swapaxes(1, 2)
        .reshape(values.shape)
    )


def llama3_factors(model: TinyModel) -> np.ndarray:
    """What each rotation frequency is divided by: 1 for short waves, `factor` for long ones, smooth in between."""
    rope = model.rope
    frequency = model.theta ** -(np.arange(0, model.head_dim, 2) / model.head_dim)
    waves = ORIGINAL_CONTEXT * frequency / (2 * math.pi)
    smooth = np.clip((waves - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"]), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)
