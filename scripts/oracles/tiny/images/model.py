"""TinyVision: a tiny model that sees images: sizes, metadata and transformers' processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scripts.oracles.tiny.model import NUMBERS_OF_8_BITS, TinyModel

MEAN, STD = [0.5, 0.4, 0.6], [0.5, 0.25, 0.3]
ASCII = 131  # tokens: the control tokens, the bytes of ASCII, one merge
ASCII_TEXT: dict[str, Any] = {"values": NUMBERS_OF_8_BITS, "n_vocab": ASCII}


@dataclass(frozen=True)
class TinyVision:
    """One model to make. `sizes` are those of vision_config in transformers' words, `keys` the metadata of the second file.

    `text` is the text model; `more` are the control tokens of images, of which `marker` stands for each token of one.
    `ids` are the control tokens that its config names.
    `prompts` have `written` for each image, whose width and height are in `images`."""

    name: str
    family: str
    projector: str
    text: TinyModel
    sizes: Mapping[str, Any]
    keys: Mapping[str, Any]
    more: tuple[str, ...]
    marker: str
    written: str
    processor: Callable[[Any], Any]
    images: tuple[tuple[int, int], ...] = ((37, 23), (61, 90))
    options: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""
    ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def prompts(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Texts, and the numbers of their images."""
        seen = f"the {self.written}in and"
        return (seen, (0,)), (f"Say{self.written} and {self.written} the ring", (1, 0))
