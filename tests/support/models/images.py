"""Images for tests, and the tiny models that see them."""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from camshaft import LanguageModel
from tests.support.fixtures import DATA

TINY_VISION = tuple(sorted(path.stem for path in (DATA / "vision").glob("*.npz")))


def drawn_image(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """Pixels uint8 [height, width, 3]: waves of three colours and some noise."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (3.0 + c) + seed) * np.cos(y / (4.0 - c) + c) for c in range(3)]
    noise = np.random.default_rng(1000 * width + height + seed).normal(0, 20, (height, width, 3))
    return np.clip(128 + 90 * np.stack(waves, axis=2) + noise, 0, 255).astype(np.uint8)


def tiny_vision(name: str, folder: Path) -> tuple[Path, Path]:
    """The text model and the vision file of that name, unpacked into a folder."""
    paths = folder / f"{name}.gguf", folder / f"mmproj-{name}.gguf"
    for path, part in zip(paths, ("text", "mmproj"), strict=True):
        path.write_bytes(lzma.decompress((DATA / "vision" / f"{name}.{part}.gguf.xz").read_bytes()))
    return paths


# A raw text, its images, the token ids, which of them have logits, and these.
Prompt: TypeAlias = tuple[str, list[NDArray[np.uint8]], list[int], NDArray[np.int32], NDArray[np.float32]]


def prompts_of(name: str) -> list[Prompt]:
    """What the model of that name was asked, and what transformers says."""
    with np.load(DATA / "vision" / f"{name}.npz") as saved:
        return prompts_in(saved)


def prompts_in(saved: Mapping[str, Any]) -> list[Prompt]:
    """The two prompts in what `scripts.oracles.tiny.images.vision.answers` made."""
    return [
        (
            str(saved[f"text{n}"]),
            [drawn_image(*size) for size in saved[f"sizes{n}"].tolist()],
            saved[f"ids{n}"].tolist(),
            saved[f"rows{n}"],
            saved[f"logits{n}"],
        )
        for n in range(2)
    ]


def opened(name: str, folder: Path, **options: object) -> LanguageModel:
    """The tiny model of that name, open, with its vision file."""
    text, mmproj = tiny_vision(name, folder)
    given = {"activations": "f32", "threads": 1, "context": 256, "sessions": 2} | options
    return LanguageModel(text, mmproj=mmproj, **given)  # type: ignore[arg-type]


def vision_difference(name: str, lm: LanguageModel, *, chunk: int | None = None) -> float:
    """The greatest difference from the frozen logits, over all prompts, whose tokens are those of transformers' processor."""
    found = 0.0
    for text, images, wanted, rows, logits in prompts_of(name):
        ids = lm.prompt_ids(text, raw=True, images=images)
        assert [int(i) for i in ids] == wanted
        found = max(found, float(np.abs(lm.logits(ids, chunk=chunk)[rows] - logits).max()))
    return found
