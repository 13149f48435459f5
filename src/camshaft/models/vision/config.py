"""VisionConfig: the sizes and options of a vision encoder and its projector, read from a second GGUF file (`mmproj`).

`line_of` says of which line of models a file is: encoders of several have the same sizes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value
from camshaft.models.file_keys import Keys
from camshaft.models.layer_options import MOST_LAYERS
from camshaft.models.vision.projectors import PROJECTORS, Projector

PREFIX = "clip.vision"
MOST_SIDE = 1 << 14  # pixels of a side that a file may name
MOST_MERGE = 16
MOST_PATCHES = 1 << 16  # of an image: 2,048 by 2,048 pixels have 21,316 of 14 by 14
ACTIVATIONS = {"clip.use_gelu": "gelu", "clip.use_silu": "silu"}


@dataclass(frozen=True)
class VisionConfig:
    """Sizes in elements. An image's tiles have patches of `patch` pixels a side, of which `merge` by `merge` become one token.

    `side` is that of a tile, or of the table of learned positions, in pixels. `out_dim` is the width of the text model.
    `longest_edge` is what an image's longer side is resized to before it is split. `mean` and `std` are of red, green and blue.
    Every `full_every`-th layer sees the whole image (0: all do), the others windows. After the layers `deepstack` there are
    embeddings for the first layers of the text model.
    """

    projector: str
    n_layers: int
    dim: int
    ffn_dim: int
    n_heads: int
    eps: float
    out_dim: int
    side: int
    patch: int
    merge: int
    activation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    longest_edge: int
    min_pixels: int
    max_pixels: int
    full_every: int = 0
    window: int = 0
    deepstack: tuple[int, ...] = ()

    @property
    def row(self) -> Projector:
        """The row of its projector."""
        return PROJECTORS[self.projector]

    @property
    def head_dim(self) -> int:
        """The elements of a head."""
        return self.dim // self.n_heads

    @property
    def grid(self) -> int:
        """The patches of a tile's side."""
        return self.side // self.patch

    @property
    def most_patches(self) -> int:
        """The most patches of a tile."""
        return self.max_pixels // self.patch**2 if self.row.any_size else self.grid**2

    @property
    def most_side(self) -> int:
        """The most rows, or columns, of patches of a tile."""
        return self.most_patches // self.merge if self.row.any_size else self.grid

    @property
    def window_side(self) -> int:
        """The patches of a window's side."""
        return self.window // self.unit * self.merge

    @property
    def most_windows(self) -> int:
        """The most windows of a tile, all but the last of a row or column whole in one direction."""
        side = self.window_side
        return max(self.most_patches // (self.merge * side), 4 * self.most_patches // side**2) + 2

    @property
    def split_side(self) -> int:
        """The pixels of a side of the tiles that large images are split into, where the whole has its own size; else 0."""
        return 2 * self.side if self.row.split == "tiles_and_whole" else 0

    @property
    def unit(self) -> int:
        """The pixels of a token's side."""
        return self.patch * self.merge


def read_vision(metadata: Mapping[str, Any]) -> VisionConfig:
    """Read the metadata of an `mmproj` file. Raises ModelError, naming the key, for a missing or impossible value."""
    name = _projector(metadata)
    row, keys = PROJECTORS[name], Keys(metadata, PREFIX)
    dim, n_heads, patch = (keys.size(key) for key in ("embedding_length", "attention.head_count", "patch_size"))
    n_layers, merge = keys.size("block_count", most=MOST_LAYERS), keys.size(row.merge_key, row.merge, most=MOST_MERGE)
    side = keys.size("image_size", most=MOST_SIDE)
    _check_sizes(row, dim=dim, n_heads=n_heads, patch=patch, side=side, merge=merge)
    pixels = (patch * merge) ** 2
    min_pixels, max_pixels = (
        keys.size(f"image_{which}_pixels", tokens * pixels)
        for which, tokens in zip(("min", "max"), row.tokens, strict=True)
    )
    if min_pixels > max_pixels:
        raise ModelError(
            f"the keys '{PREFIX}.image_min_pixels' and '{PREFIX}.image_max_pixels' are {min_pixels} and {max_pixels}; "
            "wanted the first at most the second"
        )
    config = VisionConfig(
        projector=name,
        n_layers=n_layers,
        dim=dim,
        ffn_dim=keys.size("feed_forward_length"),
        n_heads=n_heads,
        eps=keys.positive("attention.layer_norm_epsilon"),
        out_dim=keys.size("projection_dim"),
        side=side,
        patch=patch,
        merge=merge,
        activation=_activation(metadata, row),
        mean=_colours(metadata, "image_mean"),
        std=_colours(metadata, "image_std", above=0.0),
        longest_edge=keys.size("preproc_image_size", 4 * side, most=MOST_SIDE),
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        full_every=keys.size("n_wa_pattern") if row.windows else 0,
        window=keys.size("window_size", row.windows, most=MOST_SIDE) if row.windows else 0,
        deepstack=_deepstack(metadata, n_layers) if row.deepstack else (),
    )
    _check_limits(config)
    return config


def _check_limits(config: VisionConfig) -> None:
    """Raise ModelError for windows and images that hold no token, or more than memory."""
    row, least = config.row, max(config.unit, config.split_side) ** 2
    if row.windows and not config.window_side:
        raise ModelError(f"the key '{PREFIX}.window_size' is {config.window}; wanted at least {config.unit}, a token")
    if row.any_size and config.max_pixels < least:
        what = "a tile" if config.split_side else "a token"
        raise ModelError(f"the key '{PREFIX}.image_max_pixels' is {config.max_pixels}; wanted at least {least}, {what}")
    if config.split_side % config.unit:
        wanted = f"wanted a multiple of {config.unit} for twice of it"
        raise ModelError(f"the key '{PREFIX}.image_size' is {config.side}; {wanted}")
    if config.most_patches > MOST_PATCHES:
        key = "image_max_pixels" if row.any_size else "image_size"
        raise ModelError(
            f"images of {config.most_patches} patches (the keys '{PREFIX}.{key}' and 'patch_size'); "
            f"wanted at most {MOST_PATCHES}"
        )


def _projector(metadata: Mapping[str, Any]) -> str:
    kind = metadata.get("general.architecture")
    if not isinstance(kind, str) or kind != "clip":
        raise ModelError(f"the file's architecture is {shown_value(kind)}; wanted clip, a vision encoder (mmproj)")
    if metadata.get("clip.has_vision_encoder", False) is not True:
        has = shown_value(metadata.get("clip.has_vision_encoder"))
        raise ModelError(f"the key 'clip.has_vision_encoder' is {has}; wanted True: the file has no vision encoder")
    name = metadata.get(f"{PREFIX}.projector_type", metadata.get("clip.projector_type"))
    if not isinstance(name, str) or name not in PROJECTORS:
        known = ", ".join(PROJECTORS)
        raise ModelError(f"the file's projector (clip.projector_type) is {shown_value(name)}; wanted one of {known}")
    return name


def _check_sizes(row: Projector, *, dim: int, n_heads: int, patch: int, side: int, merge: int) -> None:
    if dim % n_heads or (row.rope and dim // n_heads % 4):
        wanted = "a multiple of 4 times" if row.rope else "a multiple of"
        raise ModelError(f"the key '{PREFIX}.embedding_length' is {dim}; wanted {wanted} the {n_heads} heads")
    wanted_unit = patch * (1 if row.any_size else merge)
    if patch > side or side % wanted_unit:
        raise ModelError(f"the key '{PREFIX}.image_size' is {side}; wanted a multiple of {wanted_unit}")


def _activation(metadata: Mapping[str, Any], row: Projector) -> str:
    flags = {key: metadata.get(key, False) for key in ACTIVATIONS}
    for key, value in flags.items():
        if not isinstance(value, bool):
            raise ModelError(f"the key {key!r} is {shown_value(value)}; wanted true or false")
    given = [name for key, name in ACTIVATIONS.items() if flags[key]] or ([row.activation] if row.activation else [])
    if len(given) != 1:
        raise ModelError("the file has not one of clip.use_gelu and clip.use_silu as true; convert the model again")
    return given[0]


def _colours(metadata: Mapping[str, Any], key: str, above: float = -math.inf) -> tuple[float, ...]:
    name = f"{PREFIX}.{key}"
    value = metadata.get(name)
    listed = _listed(value)
    fits = [isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) and v > above for v in listed]
    if len(listed) != 3 or not all(fits):
        wanted = "three numbers" if above < 0 else "three numbers above 0"
        raise ModelError(f"the key {name!r} is {shown_value(value)}; wanted {wanted}")
    return tuple(float(v) for v in listed)


def _deepstack(metadata: Mapping[str, Any], n_layers: int) -> tuple[int, ...]:
    name = f"{PREFIX}.is_deepstack_layers"
    value = metadata.get(name)
    listed = _listed(value)
    if len(listed) != n_layers or any(type(has) is not bool for has in listed):
        raise ModelError(f"the key {name!r} is {shown_value(value)}; wanted {n_layers} times true or false")
    return tuple(layer for layer, has in enumerate(listed) if has)


def _listed(value: Any) -> list[Any]:
    """The elements of an array of metadata; none for anything that is not an array."""
    found = value.tolist() if isinstance(value, np.ndarray) else value
    return list(found) if isinstance(found, list | tuple) else []


# A line, and how names spell it; what is fine-tuned of one has a name of its own, or that of its line in it.
_LINES = {
    "SmolVLM": r"smolvlm",
    "SmolVLM2": r"smolvlm2",
    "Idefics3": r"idefics3",
    "Gemma 3": r"gemma-?3",
    "Gemma 3n": r"gemma-?3n",
    "Gemma 4": r"gemma-?4",
    "LFM2-VL": r"lfm-?2-?vl",
    "LFM2.5-VL": r"lfm-?2\.5-?vl",
    "Qwen2-VL": r"qwen-?2-?vl",
    "Qwen2.5-VL": r"qwen-?2\.5-?vl",
    "Qwen3-VL": r"qwen-?3-?vl",
    "Qwen3.5": r"qwen-?3\.5",
    "Qwen3.6": r"qwen-?3\.6",
    "Pixtral": r"pixtral",
    "Mistral Small": r"mistral-small",
    "Ministral 3": r"ministral-3",
}
# Words of a name end where neither a letter nor a digit follows.
_PATTERNS = {line: re.compile(rf"(?<![a-z0-9]){spelled}(?![a-z0-9.])") for line, spelled in _LINES.items()}
_KEYS = ("general.basename", "general.name")


def line_of(metadata: Mapping[str, Any]) -> str:
    """The line that a file's metadata names, empty for none or several."""
    for key in _KEYS:
        name = metadata.get(key)
        plain = re.sub(r"[\s_-]+", "-", name.lower()) if isinstance(name, str) else ""
        found = [line for line, pattern in _PATTERNS.items() if pattern.search(plain)]
        if len(found) == 1:
            return found[0]
    return ""
