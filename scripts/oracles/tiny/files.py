"""Tiny models as GGUF files, written as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from camshaft.models.convert.architectures import ARCHITECTURES, architecture_of, completed
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.tensors import layer_numbers, parts
from scripts.oracles.plain.decoder import PlainDecoder
from scripts.oracles.tiny.families.experts import expert_parts
from scripts.oracles.tiny.families.gemma4 import gemma4_parameter, proportional_factors
from scripts.oracles.tiny.families.hybrids import hybrid_parameter
from scripts.oracles.tiny.families.latent import latent_parts
from scripts.oracles.tiny.families.own import own_parts, own_state
from scripts.oracles.tiny.families.recurrent import mamba_parts
from scripts.oracles.tiny.families.rows import row_parts
from scripts.oracles.tiny.model import ORIGINAL_CONTEXT, TinyModel
from scripts.oracles.tiny.vocabulary import CHAT_TEMPLATE, make_tokens


def write_gguf(
    model: TinyModel, network: Any, path: Path, more: Sequence[str] = (), template: str = CHAT_TEMPLATE
) -> None:
    """The model as an F32 GGUF file at `path`, with `more` control tokens in its vocabulary."""
    writer = gguf.GGUFWriter(path, model.arch)
    _write_sizes(writer, model, model.n_vocab + len(more))
    _write_rope(writer, model)
    _write_vocabulary(writer, model, more, template)
    for key, numbers in _numbers(model, network).items():
        writer.add_key_value(key, numbers, *_value_types(numbers))
    for name, values in tensors(model, network):
        writer.add_tensor(name, np.ascontiguousarray(values))
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file of what was added, and close it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: gguf.GGUFWriter, model: TinyModel, n_vocab: int) -> None:
    writer.add_name(f"tiny random {model.name}")
    writer.add_context_length(512)
    writer.add_block_count(model.n_layers)
    writer.add_embedding_length(model.hidden)
    if "feed_forward_length" not in model.keys:
        writer.add_feed_forward_length(model.ffn)
    if "attention.head_count" not in model.keys:
        writer.add_head_count(model.heads)
    if model.heads:
        has_own_keys = "attention.key_length" in model.keys
        is_latent = "attention.key_length_mla" in model.keys  # the cache has one head of latents
        writer.add_head_count_kv(list(model.layer_kv_heads) or (1 if is_latent else model.kv_heads))
        if not has_own_keys:
            writer.add_key_length(model.head_dim)
            writer.add_value_length(model.head_dim)
    (writer.add_layer_norm_eps if model.has_layer_norm else writer.add_layer_norm_rms_eps)(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for key, value in model.keys.items():
        writer.add_key_value(f"{model.arch}.{key}", value, *_value_types(value))
    if model.arch == "llama":
        writer.add_vocab_size(n_vocab)
        writer.add_rope_dimension_count(model.head_dim)


def _value_types(value: Any) -> tuple[gguf.GGUFValueType, gguf.GGUFValueType | None]:
    if isinstance(value, list):
        kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.INT32, float: gguf.GGUFValueType.FLOAT32}
        return gguf.GGUFValueType.ARRAY, kinds[type(value[0])]
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


def _write_vocabulary(writer: gguf.GGUFWriter, model: TinyModel, more: Sequence[str], template: str) -> None:
    tokens, types, merges = make_tokens(model.n_vocab, more)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if model.arch.startswith("qwen") else "smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)


def _numbers(model: TinyModel, network: Any) -> dict[str, list[float]]:
    """Numbers of layers that are keys of the file."""
    row = ARCHITECTURES.get(type(network).__name__)
    if row is None or not row.numbers:
        return {}
    values = {name: value.float().numpy() for name, value in network.state_dict().items()}
    config = HubConfig(network.config.to_dict(), type(network).__name__, model.name)
    return layer_numbers(config, row, values, values.__getitem__)


# Families whose parameters have other names in memory than in the folders that are converted.
RENAMED = frozenset({"KimiLinear"})


def tensors(model: TinyModel, network: Any) -> Iterator[tuple[str, np.ndarray]]:
    """(GGUF name, float32 values) of every tensor of the file: as `camshaft convert` makes them, where it knows the family."""
    if isinstance(network, PlainDecoder):
        yield from network.tensors.items()
        return
    row = ARCHITECTURES.get(type(network).__name__)
    if row is not None and not model.row and model.family not in RENAMED:
        values = {name: parameter.float().numpy() for name, parameter in network.state_dict().items()}
        config = HubConfig(network.config.to_dict(), type(network).__name__, model.name)
        row = architecture_of(config)
        config = completed(config, row)
        shapes = {name: value.shape for name, value in values.items() if "embed_scale" not in name}
        for part in parts(config, row, shapes):
            yield part.name, part.made(values.__getitem__)
        return
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == model.arch)
    names = gguf.get_tensor_name_map(arch, model.n_layers)
    for name, parameter in own_state(network.state_dict(), model).items():
        if (model.tied and name == "lm_head.weight") or "rotary" in name or "embed_scale" in name:
            continue
        for part, values in _parts(name, parameter.float().numpy(), model):
            found = part if part.startswith("blk.") else names.get_name(part, try_suffixes=(".weight", ".bias"))
            if found is None:
                raise ValueError(f"{model.name}: no GGUF name for {part}")
            yield found, values
    if model.rope["rope_type"] == "proportional":
        yield "rope_freqs.weight", proportional_factors(model)


def _parts(name: str, values: np.ndarray, model: TinyModel) -> Iterator[tuple[str, np.ndarray]]:
    """A parameter's tensors in the file, of families that `camshaft convert` lacks: gate and up of experts apart."""
    name, values = gemma4_parameter(*hybrid_parameter(name, values, model), model)
    if (
        found := [*own_parts(name, values, model)]
        or [*row_parts(name, values, model)]
        or [*expert_parts(name, values), *latent_parts(name, values, model)]
    ):
        yield from found
        return
    if ".mixer." in name or ".mamba." in name:
        yield from mamba_parts(name, values, model)
        return
    words = name.removesuffix(".weight").split(".")
    layer, last = words[2] if len(words) > 2 else "", words[-1]
    if ".experts.gate_up_proj" in name or "input_linear" in name:
        half = values.shape[1] // 2
        yield f"blk.{layer}.ffn_gate_exps.weight", values[:, :half]
        yield f"blk.{layer}.ffn_up_exps.weight", values[:, half:]
    elif ".experts.down_proj" in name or "output_linear" in name:
        yield f"blk.{layer}.ffn_down_exps.weight", values
    elif (last in ("gate", "layer") and "mlp" in name) or "block_sparse_moe.gate" in name or "router" in name:
        yield f"blk.{layer}.ffn_gate_inp.{'bias' if last == 'bias' else 'weight'}", values
    elif "conv.conv" in name or "conv1d" in name:
        yield name, values.reshape(values.shape[0], -1) if values.ndim > 1 else values
    else:
        yield name, values
