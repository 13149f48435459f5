"""The metadata of an `mmproj` file from config.json and preprocessor_config.json: a function for each projector."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value
from camshaft.formats.safetensors_folder import read_json
from camshaft.models.convert.hub_config import HubConfig

Keys = dict[str, Any]
_FILES = ("preprocessor_config.json", "processor_config.json")
_QWEN_SIDE = 560  # of files of Qwen-VL without a table of positions, as llama.cpp's converter writes them
_ACTIVATIONS = {"gelu": "use_gelu", "gelu_pytorch_tanh": "use_gelu", "silu": "use_silu"}


@dataclass(frozen=True)
class Given:
    """The configuration in a folder: of the whole model, its vision encoder, and image preprocessing."""

    model: HubConfig
    vision: HubConfig
    images: HubConfig


def read_given(folder: Path, model: HubConfig) -> Given:
    """Read what a folder says of images. Raises ModelError where it says nothing."""
    vision = model.get("vision_config")
    if not isinstance(vision, dict):
        raise ModelError(f"{model.path}: has no vision_config; {model.architecture} as it is sees no images")
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if path is None:
        raise ModelError(f"{folder}: has neither of {' and '.join(_FILES)}, which say how images are prepared")
    values = read_json(path)
    values = values.get("image_processor", values)
    if not isinstance(values, dict):
        raise ModelError(f"{path}: image_processor is {shown_value(values)}; wanted an object")
    return Given(model, HubConfig(vision, model.architecture, model.path), HubConfig(values, "", str(path)))


def vision_keys(projector: str, given: Given) -> Keys:
    """The keys under `clip.`. Raises ModelError for values that make no sense."""
    vision = given.vision
    text = given.model.get("text_config")
    width = text.get("hidden_size") if isinstance(text, dict) else given.model.get("hidden_size")
    keys = {
        "has_vision_encoder": True,
        "projector_type": projector,
        "vision.projection_dim": int(given.model.checked("hidden_size", width)),
        "vision.embedding_length": vision.size("hidden_size"),
        "vision.patch_size": vision.size("patch_size"),
        "vision.attention.head_count": vision.size("num_attention_heads", vision.get("num_heads")),
        "vision.attention.layer_norm_epsilon": float(vision.number("layer_norm_eps", 1e-6)),
        "vision.image_mean": _colours(given, "image_mean"),
        "vision.image_std": _colours(given, "image_std"),
    }
    return keys | _OWN[projector](given)


def _sizes(vision: HubConfig, layers: str = "num_hidden_layers") -> Keys:
    names = {"feed_forward_length": "intermediate_size", "block_count": layers}
    return {f"vision.{key}": vision.size(name) for key, name in names.items()}


def _idefics3(given: Given) -> Keys:
    side, longest = given.vision.size("image_size"), _size_of(given, "longest_edge")
    return {
        **_sizes(given.vision),
        **_activation(given.vision, "gelu_pytorch_tanh"),
        "vision.image_size": side,
        "vision.projector.scale_factor": given.model.size("scale_factor", 2),
        "vision.preproc_image_size": longest or 4 * side,
    }


def _gemma3(given: Given) -> Keys:
    side, tokens = given.vision.size("image_size"), given.model.size("mm_tokens_per_image", 256)
    patches = side // given.vision.size("patch_size")
    if math.isqrt(tokens) ** 2 != tokens or patches % math.isqrt(tokens):
        raise ModelError(
            f"{given.model.path}: mm_tokens_per_image is {tokens}; wanted a square that divides {patches} a side"
        )
    return {
        **_sizes(given.vision),
        **_activation(given.vision, "gelu_pytorch_tanh"),
        "vision.image_size": side,
        "vision.projector.scale_factor": patches // math.isqrt(tokens),
    }


def _lfm2(given: Given) -> Keys:
    vision, merge = given.vision, given.model.size("downsample_factor", 2)
    unit = (vision.size("patch_size") * merge) ** 2
    limits = {
        f"vision.image_{which}_pixels": given.images.size(f"{which}_image_tokens", tokens) * unit
        for which, tokens in (("min", 64), ("max", 256))
    }
    feature = given.model.get("vision_feature_layer", -1)
    dropped = -1 - feature if isinstance(feature, int) and feature < 0 else None
    keys = _sizes(vision)
    if dropped is None or dropped >= keys["vision.block_count"]:
        raise ModelError(
            f"{given.model.path}: vision_feature_layer is {shown_value(feature)}; wanted one counted from the end"
        )
    return {
        **keys,
        "vision.block_count": keys["vision.block_count"] - dropped,
        **_activation(vision, "gelu_pytorch_tanh"),
        "vision.image_size": math.isqrt(vision.size("num_patches", 256)) * vision.size("patch_size"),
        "vision.projector.scale_factor": merge,
        **limits,
    }


def _limits(given: Given) -> Keys:
    """The pixels of an image, and the patches of a token's side, of a kind of Qwen-VL."""
    keys: Keys = {"vision.spatial_merge_size": given.vision.size("spatial_merge_size", 2)}
    for which, edge in (("min", "shortest_edge"), ("max", "longest_edge")):
        pixels = given.images.get(f"{which}_pixels") or _size_of(given, edge)
        if pixels is not None:
            keys[f"vision.image_{which}_pixels"] = int(given.images.checked(f"{which}_pixels", pixels))
    return keys


def _qwen2(given: Given) -> Keys:
    width = given.vision.size("embed_dim")
    return {
        "vision.embedding_length": width,
        "vision.feed_forward_length": int(width * given.vision.number("mlp_ratio", 4)),
        "vision.block_count": given.vision.size("depth"),
        "vision.image_size": _QWEN_SIDE,
        **_limits(given),
    }


def _qwen25(given: Given) -> Keys:
    depth, whole = given.vision.size("depth"), given.vision.get("fullatt_block_indexes", [])
    first = whole[0] if isinstance(whole, list) and whole and isinstance(whole[0], int) else depth
    if list(whole) != [*range(first, depth, first + 1)]:
        raise ModelError(
            f"{given.vision.path}: fullatt_block_indexes is {shown_value(whole)}; wanted every n-th of {depth}"
        )
    return {
        **_sizes(given.vision, "depth"),
        **_activation(given.vision, "silu"),
        "vision.image_size": _QWEN_SIDE,
        "vision.n_wa_pattern": first + 1,
        "vision.window_size": given.vision.size("window_size", 112),
        **_limits(given),
    }


def _qwen3(given: Given) -> Keys:
    depth, listed = given.vision.size("depth"), given.vision.get("deepstack_visual_indexes", [])
    if not isinstance(listed, list) or any(type(n) is not int or not 0 <= n < depth for n in listed):
        raise ModelError(
            f"{given.vision.path}: deepstack_visual_indexes is {shown_value(listed)}; wanted layers below {depth}"
        )
    side = math.isqrt(given.vision.size("num_position_embeddings"))
    return {
        **_sizes(given.vision, "depth"),
        **_activation(given.vision, "gelu_pytorch_tanh"),
        "vision.image_size": side * given.vision.size("patch_size"),
        "vision.is_deepstack_layers": [layer in listed for layer in range(depth)],
        **_limits(given),
    }


def _pixtral(given: Given) -> Keys:
    return {
        **_sizes(given.vision),
        **_activation(given.vision, "gelu"),
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.image_size": given.vision.size("image_size"),
        "vision.spatial_merge_size": given.model.size("spatial_merge_size", 1),
    }


_OWN: dict[str, Callable[[Given], Keys]] = {
    "idefics3": _idefics3,
    "gemma3": _gemma3,
    "lfm2": _lfm2,
    "qwen2vl_merger": _qwen2,
    "qwen2.5vl_merger": _qwen25,
    "qwen3vl_merger": _qwen3,
    "pixtral": _pixtral,
}


def _activation(vision: HubConfig, default: str) -> Keys:
    name = vision.get("hidden_act", vision.get("hidden_activation", default))
    if name not in _ACTIVATIONS:
        raise ModelError(f"{vision.path}: hidden_act is {shown_value(name)}; wanted one of {', '.join(_ACTIVATIONS)}")
    return {_ACTIVATIONS[name]: True}


def _size_of(given: Given, edge: str) -> int | None:
    size = given.images.get("size", {})
    value = size.get(edge) if isinstance(size, dict) else None
    return None if value is None else int(given.images.checked(f"size.{edge}", value))


def _colours(given: Given, name: str) -> list[float]:
    value = given.images.get(name)
    if not isinstance(value, list) or len(value) != 3:
        raise ModelError(f"{given.images.path}: {name} is {shown_value(value)}; wanted three numbers")
    return [float(given.images.checked(name, each)) for each in value]
