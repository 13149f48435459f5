"""The supported projectors: a row of options of one vision encoder each, by clip.projector_type of an `mmproj` file.

All are transformers over the patches of an image (Dosovitskiy et al., 2021), whose results become tokens of a text model. A row
says what the file's metadata does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Projector:
    """How an encoder and its projector differ from SigLIP and one linear layer.

    Text
        texts: the architectures of text models that its files are made for.
        marker: stands for an image in the text of a chat template. written: the marker with the text around it, for templates
        without images. token: the vocabulary's token for each token of an image, if not the marker's.
        bidirectional: the tokens of an image all attend to each other in the text model ('all'; 'windows': only in its layers
        with a window, if it has no per-layer embeddings).
        axes: the tokens of an image have rows and columns as positions.
        deepstack: some layers give the text model's layers embeddings of their own.

    Tiles
        split: how an image becomes tiles and the text around them (models/vision/tiles.py).
        any_size: tiles may have any size that is a multiple of a token's.
        tokens: the default minimum and maximum of tokens of an image.
        signed: pixels are from -1 to 1 after `mean` and `std`.

    Encoder
        norm, gated, fused: as in Family. sandwiched: there are also norms after attention and feed-forward, and of the heads of
        q, k and v, and scores have no scale.
        positions: embeddings of positions in a grid, from a table that is resized to the image's with its ends kept ('learned')
        or as images are ('resized'), or of rows and of columns ('axes').
        rope: how patches rotate, by `theta`. windows: side in pixels of the window that most layers attend to.
        activation: the default. exact_gelu: gelu of gates is by erf.

    Projector
        connect: how patches become tokens (models/vision/connectors.py), `merge` by `merge` of them.
        merge_key: the metadata key of `merge`, which is the default.
    """

    texts: tuple[str, ...]
    split: str
    marker: str
    connect: str
    merge: int
    merge_key: str = "projector.scale_factor"
    written: str = ""
    token: str = ""
    bidirectional: Literal["", "all", "windows"] = ""
    any_size: bool = False
    tokens: tuple[int, int] = (1, 1)
    norm: Literal["layer", "rms"] = "layer"
    gated: bool = False
    fused: bool = False
    positions: Literal["learned", "resized", "axes", ""] = "learned"
    rope: Literal["", "vision", "by_turns", "halves"] = ""
    theta: float = 10000.0
    sandwiched: bool = False
    signed: bool = False
    exact_gelu: bool = True
    windows: int = 0
    deepstack: bool = False
    axes: bool = False
    activation: str = ""


_QWEN = Projector(
    texts=("qwen2vl",),
    split="one_of_its_size",
    marker="<|image_pad|>",
    written="<|vision_start|><|image_pad|><|vision_end|>",
    connect="two_layers",
    merge_key="spatial_merge_size",
    merge=2,
    any_size=True,
    tokens=(8, 4096),
    rope="vision",
    axes=True,
)
PROJECTORS: dict[str, Projector] = {
    "idefics3": Projector(
        texts=("llama",),
        split="rows_and_whole",
        marker="<image>",
        connect="linear",
        merge=2,
    ),
    "gemma3": Projector(
        texts=("gemma3",),
        split="one_square",
        marker="<start_of_image>",
        token="<image_soft_token>",
        bidirectional="all",
        connect="mean_norm_linear",
        merge=4,
    ),
    "gemma4v": Projector(
        texts=("gemma4",),
        split="as_many_as_fit",
        marker="<|image|>",
        connect="pooled",
        merge=3,
        bidirectional="windows",
        any_size=True,
        tokens=(1, 280),
        norm="rms",
        gated=True,
        positions="axes",
        rope="halves",
        theta=100.0,
        sandwiched=True,
        signed=True,
        exact_gelu=False,
        activation="gelu",
    ),
    "lfm2": Projector(
        texts=("lfm2", "lfm2moe"),
        split="tiles_and_whole",
        marker="<image>",
        connect="normed_two_layers",
        merge=2,
        any_size=True,
        tokens=(64, 256),
        positions="resized",
    ),
    "qwen2vl_merger": replace(_QWEN, positions="", activation="gelu_quick"),
    "qwen2.5vl_merger": replace(_QWEN, norm="rms", gated=True, positions="", windows=112),
    "qwen3vl_merger": replace(
        _QWEN, texts=("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"), fused=True, deepstack=True
    ),
    "pixtral": Projector(
        texts=("llama", "mistral3"),
        split="rows_of_its_size",
        marker="[IMG]",
        connect="merged_two_layers",
        merge_key="spatial_merge_size",
        merge=1,
        norm="rms",
        gated=True,
        positions="",
        rope="by_turns",
    ),
}
