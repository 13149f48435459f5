"""The tiles of pictures of odd sizes beside those of transformers' processors, in the sizes of released models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft.models.vision.config import VisionConfig
from camshaft.models.vision.patches import patch_rows
from camshaft.models.vision.tiles import Tile, layout_of
from tests.support.models.pictures import drawn_picture, opened

pytestmark = pytest.mark.oracle
SIZES = [(37, 23), (513, 480), (301, 1207)]
MEAN, STD = (0.5, 0.4, 0.6), (0.5, 0.25, 0.3)
HOW = {"image_mean": [*MEAN], "image_std": [*STD]}


def config_of(name: str, folder: Path, **sizes: Any) -> VisionConfig:
    with opened(name, folder) as lm:
        assert lm.vision is not None
        return replace(lm.vision.config, mean=MEAN, std=STD, **sizes)


def tiles(pixels: np.ndarray, config: VisionConfig) -> list[Tile]:
    return [piece for piece in layout_of(pixels, config) if isinstance(piece, Tile)]


def rows_of(pictures: Any, config: VisionConfig) -> np.ndarray:
    """Patches of normalized pictures [channels, height, width], in the order of `patch_rows`."""
    size = config.patch
    channels, height, width = pictures.shape
    x = pictures.reshape(channels, height // size, size, width // size, size)
    return x.transpose(1, 3, 0, 2, 4).reshape(-1, channels * size * size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["idefics3", "gemma3", "pixtral"])
def test_tiles_are_those_of_transformers(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    processors: dict[str, tuple[Any, dict[str, int]]] = {
        "idefics3": (
            Idefics3ImageProcessorPil(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512}, **HOW),
            {"side": 512, "patch": 16, "longest_edge": 2048},
        ),
        "gemma3": (Gemma3ImageProcessorPil(size={"height": 896, "width": 896}, **HOW), {"side": 896, "patch": 14}),
        "pixtral": (
            PixtralImageProcessorPil(size={"longest_edge": 1540}, patch_size=28, **HOW),
            {"side": 1540, "patch": 14},
        ),
    }
    processor, sizes = processors[name]
    pixels, config = drawn_picture(*size), config_of(name, tmp_path, **sizes)
    wanted = np.asarray(processor([[pixels]] if name == "idefics3" else [pixels])["pixel_values"])
    wanted = wanted[0] if name == "idefics3" else wanted
    found = tiles(pixels, config)
    assert len(found) == len(wanted)
    for tile, picture in zip(found, wanted, strict=True):
        assert np.abs(patch_rows(tile.pixels, config) - rows_of(picture, config)).max() < 1e-5


@pytest.mark.parametrize("size", [*SIZES, (30, 3000), (3000, 30)])
def test_patches_are_those_of_gemma_4s_processor(size: tuple[int, int], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    given = Gemma4ImageProcessorPil()([drawn_picture(*size)])
    with opened("gemma4v", tmp_path) as lm:
        assert lm.vision is not None
        config = replace(lm.vision.config, patch=16, merge=3, max_pixels=280 * 48 * 48)
    (tile,) = tiles(drawn_picture(*size), config)
    n = tile.pixels.shape[0] * tile.pixels.shape[1] // 256
    assert n == 9 * given["num_soft_tokens_per_image"][0]
    wanted = np.asarray(given["pixel_values"])[0][:n].reshape(n, 256, 3).swapaxes(1, 2).reshape(n, -1)
    assert np.abs(patch_rows(tile.pixels, config) - (2 * wanted - 1)).max() < 1e-5


@pytest.mark.parametrize("patch", [14, 16])
@pytest.mark.parametrize("size", SIZES)
def test_patches_are_those_of_qwens_processor(size: tuple[int, int], patch: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    limits = {"shortest_edge": 56 * 56, "longest_edge": 400_000}
    given = Qwen2VLImageProcessorPil(size=limits, patch_size=patch, merge_size=2, **HOW)([drawn_picture(*size)])
    config = config_of("qwen3vl", tmp_path, patch=patch, min_pixels=56 * 56, max_pixels=400_000)
    (tile,) = tiles(drawn_picture(*size), config)
    _, rows, columns = given["image_grid_thw"][0]
    assert tile.pixels.shape[:2] == (rows * patch, columns * patch)
    found = patch_rows(tile.pixels, config).reshape(rows // 2, 2, columns // 2, 2, 3, -1).swapaxes(1, 2)
    wanted = np.asarray(given["pixel_values"]).reshape(-1, 3, 2, patch * patch)[:, :, 0]
    assert np.abs(found.reshape(wanted.shape) - wanted).max() < 1e-5
