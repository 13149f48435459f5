"""The tensors of an `mmproj` file from those of transformers: names, and what is made of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from camshaft.errors import ModelError
from camshaft.formats.bits import Floats
from camshaft.formats.mapped import shown
from camshaft.formats.safetensors_folder import read_json
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.tensors import Part, Shape
from camshaft.models.vision.positions import CHANNELS

Change = Callable[[Floats], Floats]

_LAYER = {
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    # Pixtral's
    "attention_norm": "ln1",
    "ffn_norm": "ln2",
    "attention.q_proj": "attn_q",
    "attention.k_proj": "attn_k",
    "attention.v_proj": "attn_v",
    "attention.o_proj": "attn_out",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    # Qwen's
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
}
_TOWER = {
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "post_layernorm": "v.post_ln",
    "patch_conv": "v.patch_embd",
    "ln_pre": "v.pre_ln",
    "patch_embed.proj": "v.patch_embd",
    "pos_embed": "v.position_embd",
    "merger.ln_q": "v.post_ln",
    "merger.norm": "v.post_ln",
    "merger.mlp.0": "mm.0",
    "merger.mlp.2": "mm.2",
    "merger.linear_fc1": "mm.0",
    "merger.linear_fc2": "mm.2",
}
_CONNECTOR = {
    "connector.modality_projection.proj": "mm.model.fc",
    "multi_modal_projector.mm_soft_emb_norm": "mm.soft_emb_norm",
    "multi_modal_projector.layer_norm": "mm.input_norm",
    "multi_modal_projector.norm": "mm.input_norm",
    "multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
    "multi_modal_projector.linear_1": "mm.1",
    "multi_modal_projector.linear_2": "mm.2",
}
_WHOLE = {"multi_modal_projector.mm_input_projection_weight": "mm.input_projection.weight"}
_TOWERS = re.compile(r"(?:vision_tower\.vision_model|vision_tower|vision_model|visual)\.(.+)")
_LAYERS = re.compile(r"(?:encoder\.layers|transformer\.layers|blocks)\.(\d+)\.(.+)\.(weight|bias)")
_ROW_BREAK = "[IMG_BREAK]"
_TURNED = re.compile(r"\.attn_[qk]\.")
_DEEP = re.compile(r"deepstack_merger_list\.(\d+)\.(norm|linear_fc1|linear_fc2)\.(weight|bias)")
# The text part, and a head that models of images alone have.
_OTHERS = re.compile(
    r"(language_model|text_model|lm_head|embed_tokens|layers|norm)\.|(vision_tower\.)?vision_model\.head\."
)


def vision_parts(projector: str, vision: HubConfig, shapes: Mapping[str, Shape]) -> Iterator[Part]:
    """The tensors of the vision encoder and its projector. Raises ModelError for one whose name or shape has no place."""
    for source, shape in shapes.items():
        name = source.removeprefix("model.")
        if _OTHERS.match(name):
            continue
        found = _name(name, vision)
        if found is None:
            raise ModelError(f"{vision.path}: {shown(source)} is not a tensor of {projector} that camshaft knows")
        for new, change in _changes(found, projector, vision, shape):
            try:
                made = change(np.broadcast_to(np.float32(0), shape)).shape
            except (ValueError, IndexError):
                raise ModelError(
                    f"{vision.path}: {shown(source)} has shape {list(shape)}, which vision_config does not divide"
                ) from None
            yield Part(new, made, (source,), change)


def row_break(folder: Path, shapes: Mapping[str, Shape]) -> Iterator[Part]:
    """Pixtral's embedding of the end of a row of patches, which llama.cpp reads from this file: a row of the text part's table.
    camshaft takes it from the text model."""
    path = folder / "tokenizer.json"
    added = read_json(path).get("added_tokens") if path.is_file() else None
    tokens = added if isinstance(added, list) else []
    number = next((t.get("id") for t in tokens if isinstance(t, dict) and t.get("content") == _ROW_BREAK), None)
    table = next((name for name in shapes if name.endswith("embed_tokens.weight")), None)
    if table is not None and isinstance(number, int) and 0 <= number < shapes[table][0]:
        yield Part("v.token_embd.img_break", shapes[table][1:], (table,), lambda values: values[number])


def _name(name: str, vision: HubConfig) -> str | None:
    if name in _WHOLE:
        return _WHOLE[name]
    stem, _, ending = name.rpartition(".")
    if stem in _CONNECTOR:
        return f"{_CONNECTOR[stem]}.{ending}"
    tower = _TOWERS.fullmatch(name)
    if tower is None:
        return None
    inner = tower[1]
    layer, deep = _LAYERS.fullmatch(inner), _DEEP.fullmatch(inner)
    if layer is not None:
        return f"v.blk.{layer[1]}.{_LAYER[layer[2]]}.{layer[3]}" if layer[2] in _LAYER else None
    if deep is not None:
        listed = vision.get("deepstack_visual_indexes", [])
        number = int(deep[1])
        return (
            f"v.deepstack.{listed[number]}.{deep[2].replace('linear_', '')}.{deep[3]}" if number < len(listed) else None
        )
    stem, _, ending = inner.rpartition(".")
    return f"{_TOWER[stem]}.{ending}" if stem in _TOWER else None


def _changes(name: str, projector: str, vision: HubConfig, shape: Shape) -> Iterator[tuple[str, Change]]:
    if name == "v.patch_embd.weight" and len(shape) == 2:  # of each patch rows, columns, then channels
        side = vision.size("patch_size")
        yield name, lambda values: values.reshape(len(values), side, side, CHANNELS).transpose(0, 3, 1, 2)
    elif name == "v.patch_embd.weight" and len(shape) == 5:  # an image is a video of two equal frames
        for moment, ending in ((0, ""), (1, ".1")):
            yield name + ending, partial(_moment, moment)
    elif name == "mm.soft_emb_norm.weight":
        yield name, lambda values: values + np.float32(1)
    elif projector == "pixtral" and _TURNED.search(name):
        yield name, partial(_paired, vision.size("num_attention_heads"))
    elif ".attn_qkv." in name and projector != "qwen3vl_merger":
        for number, part in enumerate("qkv"):
            yield name.replace("qkv", part), partial(_third, number)
    else:
        yield name, lambda values: values


def _moment(moment: int, values: Floats) -> Floats:
    return values[:, :, moment]


def _third(number: int, values: Floats) -> Floats:
    q, k, v = np.split(values, 3)
    return (q, k, v)[number]


def _paired(heads: int, values: Floats) -> Floats:
    """Rows i and i + d/2 of each head side by side."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
