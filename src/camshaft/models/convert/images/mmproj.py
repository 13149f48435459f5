"""Converts the vision encoder and projector of a Hugging Face folder to an `mmproj` file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from camshaft.errors import ModelError
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.formats.mapped import shown_value
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.images.keys import read_given, vision_keys
from camshaft.models.convert.images.names import row_break, vision_parts
from camshaft.models.convert.tensors import Part, Shape
from camshaft.models.files.quantization_mix import MIXES

_QUANTIZATION_VERSION = 2
_LLAVA = "LlavaForConditionalGeneration"
# transformers' class -> clip.projector_type
PROJECTOR_OF = {
    "Idefics3ForConditionalGeneration": "idefics3",
    "SmolVLMForConditionalGeneration": "idefics3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Lfm2VlForConditionalGeneration": "lfm2",
    "Qwen2VLForConditionalGeneration": "qwen2vl_merger",
    "Qwen2_5_VLForConditionalGeneration": "qwen2.5vl_merger",
    "Qwen3VLForConditionalGeneration": "qwen3vl_merger",
    "Qwen3VLMoeForConditionalGeneration": "qwen3vl_merger",
    "Qwen3_5ForConditionalGeneration": "qwen3vl_merger",
    "Qwen3_5MoeForConditionalGeneration": "qwen3vl_merger",
    "Mistral3ForConditionalGeneration": "pixtral",
    _LLAVA: "pixtral",  # if its encoder is Pixtral's
}
# Formats of the matrices; other tensors are F32.
TYPES = ("F32", "F16", "BF16", "Q8_0")
_PLAIN = ("v.patch_embd.weight", "v.patch_embd.weight.1", "v.position_embd.weight", "mm.input_projection.weight")


def projector_of(config: HubConfig) -> str:
    """Returns the projector type of a model. Raises ModelError for a class without one."""
    vision = config.get("vision_config", {})
    kind = vision.get("model_type") if isinstance(vision, dict) else None
    if config.architecture not in PROJECTOR_OF or (config.architecture == _LLAVA and kind != "pixtral"):
        what = f"{shown_value(config.architecture)} with an encoder {shown_value(kind)}"
        raise ModelError(f"{config.path}: no mmproj file is made of {what}; wanted one of {', '.join(PROJECTOR_OF)}")
    return PROJECTOR_OF[config.architecture]


def mmproj_of(
    folder: Path, config: HubConfig, shapes: Mapping[str, Shape], file_type: str
) -> tuple[str, dict[str, Any], tuple[Part, ...], dict[str, BlockFormat]]:
    """The projector, metadata, tensors and their formats. Raises ModelError for a class without a projector, tensors without a
    place, and a type that encoders do not have."""
    if file_type not in TYPES:
        raise ModelError(f"got the type {file_type} of a vision encoder; wanted one of {', '.join(TYPES)}")
    projector = projector_of(config)
    given = read_given(folder, config)
    found = tuple(_used_parts(vision_parts(projector, given.vision, shapes), vision_keys(projector, given)))
    found += tuple(row_break(folder, shapes)) if projector == "pixtral" else ()
    name = config.get("_name_or_path") or folder.absolute().name
    values = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "general.name": str(name).rstrip("/").rpartition("/")[2],
        "general.file_type": MIXES[file_type].file_type,
        "general.quantization_version": _QUANTIZATION_VERSION,
        **{f"clip.{key}": value for key, value in vision_keys(projector, given).items()},
    }
    return projector, values, found, {part.name: _format(part, file_type) for part in found}


def _used_parts(found: Any, keys: Mapping[str, Any]) -> Sequence[Part]:
    """The parts without those of layers that the encoder leaves out."""
    n = keys["vision.block_count"]

    def is_in(name: str) -> bool:
        return not name.startswith("v.blk.") or int(name.split(".")[2]) < n

    return [part for part in found if is_in(part.name)]


def _format(part: Part, file_type: str) -> BlockFormat:
    is_matrix = len(part.shape) == 2 and part.name.endswith(".weight") and part.name not in _PLAIN
    form = BLOCK_FORMATS[file_type if is_matrix else "F32"]
    return BLOCK_FORMATS["F16"] if part.shape[-1] % form.block_size else form
