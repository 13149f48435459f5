"""The GGUF files of tiny models that see images, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from scripts.oracles.tiny.files import finish, write_gguf
from scripts.oracles.tiny.images.model import MEAN, STD, TinyVision

GEMMA4 = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "ln1",
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ln2",
    "post_feedforward_layernorm": "ffn_post_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Names of transformers, and of the files that it saves, which the converter reads.
RENAMED = {
    "model.visual.merger.norm": "v.post_ln",
    "model.visual.merger.linear_fc1": "mm.0",
    "model.visual.merger.linear_fc2": "mm.2",
    "projection_weight": "projection.weight",
    "vision_tower.e": "vision_tower.vision_model.e",
    "vision_tower.post_layernorm": "vision_tower.vision_model.post_layernorm",
}


def text_of(model: TinyVision, network: Any) -> Any:
    """The text model alone, with its output projection, as `tiny/files.py` reads a network."""
    part = getattr(network.model, "text_model", None) or network.model.language_model
    state = {f"model.{name}": value for name, value in part.state_dict().items()}
    state["lm_head.weight"] = network.lm_head.weight.detach()
    parts = {"state_dict": lambda self: state, "config": network.config.text_config}
    return type(f"{model.text.family}ForCausalLM", (), parts)()


def write_text(model: TinyVision, network: Any, path: Path) -> None:
    """The text model as an F32 GGUF file."""
    given = {"template": model.template} if model.template else {}
    write_gguf(model.text, text_of(model, network), path, model.more, **given)


def write_vision(model: TinyVision, network: Any, path: Path) -> None:
    """The vision encoder and projector as an F32 GGUF file."""
    writer, sizes = gguf.GGUFWriter(path, "clip"), model.sizes
    given = {
        "has_vision_encoder": True,
        "projector_type": model.projector,
        "vision.projection_dim": model.text.hidden,
        "vision.embedding_length": sizes.get("embed_dim", sizes["hidden_size"]),
        "vision.feed_forward_length": sizes["intermediate_size"],
        "vision.block_count": sizes.get("depth", 2),
        "vision.attention.head_count": sizes.get("num_attention_heads", sizes.get("num_heads")),
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.image_size": sizes["image_size"],
        "vision.patch_size": sizes["patch_size"],
        "vision.image_mean": MEAN,
        "vision.image_std": STD,
        **model.keys,
    }
    for key, value in given.items():
        writer.add_key_value(f"clip.{key}", value, *_kinds(value))
    for name, values in vision_tensors(model, network):
        writer.add_tensor(name, np.ascontiguousarray(values))
    finish(writer)


def _kinds(value: Any) -> tuple[gguf.GGUFValueType, gguf.GGUFValueType | None]:
    kinds = gguf.GGUFValueType
    if isinstance(value, list):
        return kinds.ARRAY, kinds.BOOL if isinstance(value[0], bool) else kinds.FLOAT32
    if isinstance(value, bool | str):
        return kinds.BOOL if isinstance(value, bool) else kinds.STRING, None
    return kinds.UINT32 if isinstance(value, int) else kinds.FLOAT32, None


def vision_tensors(model: TinyVision, network: Any) -> Iterator[tuple[str, np.ndarray]]:
    """(GGUF name, float32 values) of the tensors that are not the text model's."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 16)
    for parameter_name, parameter in network.state_dict().items():
        if any(part in parameter_name for part in ("text_model", "language_model", "lm_head")):
            continue
        for name, values in _as_written(model, parameter_name, parameter.float().numpy()):
            spellings = (
                names.get_name(n, try_suffixes=(".weight", ".bias")) for n in (name, name.removeprefix("model."))
            )
            found = next((spelling for spelling in spellings if spelling is not None), None)
            if found is None and not name.startswith(("v.", "mm.")):
                raise ValueError(f"no GGUF name for {name}")
            yield found or name, values


def _as_written(model: TinyVision, name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """A parameter as the converter has it before it looks up its name, or with its name in the file."""
    for old, new in RENAMED.items():
        name = name.replace(old, new)
    if "soft_emb_norm" in name:
        yield name, values + 1
    elif "patch_embedder.input_proj" in name or ("patch_embedding.weight" in name and values.ndim == 2):
        side = model.sizes["patch_size"]  # of each patch rows, columns, then channels
        yield "v.patch_embd.weight", values.reshape(len(values), side, side, 3).transpose(0, 3, 1, 2)
    elif model.projector == "gemma4v":
        yield from _gemma4(name, values)
    elif "patch_embed.proj.weight" in name:
        yield "v.patch_embd.weight", values[:, :, 0]
        yield "v.patch_embd.weight.1", values[:, :, 1]
    elif model.projector == "pixtral" and ("q_proj" in name or "k_proj" in name):
        heads = model.sizes["num_attention_heads"]  # pairs of each head side by side
        yield name, values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    elif ".qkv." in name and model.projector in ("qwen2vl_merger", "qwen2.5vl_merger"):
        for part, rows in zip("qkv", np.split(values, 3), strict=True):
            yield name.replace("qkv", part), rows
    elif "deepstack_merger_list" in name:
        number, rest = name.split("deepstack_merger_list.")[1].split(".", 1)
        layer = model.sizes["deepstack_visual_indexes"][int(number)]
        yield f"v.deepstack.{layer}.{rest.replace('linear_', '')}", values
    else:
        yield name, values


def _gemma4(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """A parameter of Gemma 4's encoder, with the limits of its linear layers."""
    stem, ending = name.replace(".linear", "").rsplit(".", 1)
    if ".layers." in name:
        layer, part = stem.split(".layers.")[1].split(".", 1)
        yield f"v.blk.{layer}.{GEMMA4[part]}.{ending}", values.reshape(1) if values.ndim == 0 else values
    elif name.endswith("position_embedding_table"):
        yield "v.position_embd.weight", values
    elif ending in ("std_bias", "std_scale"):
        yield f"v.{ending}", values
    else:
        yield "mm.input_projection.weight", values
