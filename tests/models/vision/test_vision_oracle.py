"""The tiles of images of odd sizes beside those of transformers' processors, in the sizes of released models; Qwen3.5 with
images, whose tiny models are not frozen, as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate.vision.runs import AxisPositions
from camshaft.models.convert.convert import convert
from camshaft.models.vision.config import VisionConfig
from camshaft.models.vision.positions import patch_rows
from camshaft.models.vision.tiles import Tile, layout_of
from tests.models.convert.test_mmproj import write_preprocessor
from tests.support.models.images import Prompt, drawn_image, opened, prompts_in

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


def rows_of(images: Any, config: VisionConfig) -> np.ndarray:
    """Patches of normalized images [channels, height, width], in the order of `patch_rows`."""
    size = config.patch
    channels, height, width = images.shape
    x = images.reshape(channels, height // size, size, width // size, size)
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
    pixels, config = drawn_image(*size), config_of(name, tmp_path, **sizes)
    wanted = np.asarray(processor([[pixels]] if name == "idefics3" else [pixels])["pixel_values"])
    wanted = wanted[0] if name == "idefics3" else wanted
    found = tiles(pixels, config)
    assert len(found) == len(wanted)
    for tile, image in zip(found, wanted, strict=True):
        assert np.abs(patch_rows(tile.pixels, config) - rows_of(image, config)).max() < 1e-5


@pytest.mark.parametrize("size", [*SIZES, (30, 3000), (3000, 30)])
def test_patches_are_those_of_gemma_4s_processor(size: tuple[int, int], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    given = Gemma4ImageProcessorPil()([drawn_image(*size)])
    with opened("gemma4v", tmp_path) as lm:
        assert lm.vision is not None
        config = replace(lm.vision.config, patch=16, merge=3, max_pixels=280 * 48 * 48)
    (tile,) = tiles(drawn_image(*size), config)
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
    given = Qwen2VLImageProcessorPil(size=limits, patch_size=patch, merge_size=2, **HOW)([drawn_image(*size)])
    config = config_of("qwen3vl", tmp_path, patch=patch, min_pixels=56 * 56, max_pixels=400_000)
    (tile,) = tiles(drawn_image(*size), config)
    _, rows, columns = given["image_grid_thw"][0]
    assert tile.pixels.shape[:2] == (rows * patch, columns * patch)
    found = patch_rows(tile.pixels, config).reshape(rows // 2, 2, columns // 2, 2, 3, -1).swapaxes(1, 2)
    wanted = np.asarray(given["pixel_values"]).reshape(-1, 3, 2, patch * patch)[:, :, 0]
    assert np.abs(found.reshape(wanted.shape) - wanted).max() < 1e-5


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path, list[Prompt]]]:
    """A tiny Qwen3.5 by its name: text model, vision file, and what transformers says of its prompts."""
    pytest.importorskip("transformers")
    from scripts.oracles.tiny.images import files as tiny_vision_files
    from scripts.oracles.tiny.images import vision as tiny_vision
    from scripts.oracles.tiny.images.hybrids import FIRST_SEED, MODELS

    @cache
    def made(name: str) -> tuple[Path, Path, list[Prompt]]:
        seed, tiny = next((i, model) for i, model in enumerate(MODELS, FIRST_SEED) if model.name == name)
        network, folder = tiny_vision.build(tiny, seed), tmp_path_factory.mktemp(name)
        tiny_vision_files.write_text(tiny, network, folder / "text.gguf")
        tiny_vision_files.write_vision(tiny, network, folder / "mmproj.gguf")
        return folder / "text.gguf", folder / "mmproj.gguf", prompts_in(tiny_vision.answers(tiny, network))

    return made


def differences(text: Path, mmproj: Path, prompts: list[Prompt], chunk: int | None) -> float:
    """The greatest difference from transformers' logits, over all prompts."""
    found = 0.0
    with LanguageModel(text, mmproj=mmproj, activations="f32", threads=1, context=256, sessions=2) as lm:
        for raw, images, wanted, rows, logits in prompts:
            ids = lm.prompt_ids(raw, raw=True, images=images)
            assert [int(i) for i in ids] == wanted
            found = max(found, float(np.abs(lm.logits(ids, chunk=chunk)[rows] - logits).max()))
    return found


RECURRENT = ("qwen35", "qwen35moe")


@pytest.mark.parametrize("chunk", [None, 7, 1])
@pytest.mark.parametrize("name", RECURRENT)
def test_qwen35_says_of_images_what_transformers_says(name: str, chunk: int | None, seeing: Any) -> None:
    text, mmproj, prompts = seeing(name)
    assert all(logits.std(axis=0).mean() >= 1 for *_, logits in prompts)
    assert differences(text, mmproj, prompts, chunk) < 1e-3


@pytest.mark.parametrize("name", RECURRENT)
def test_a_qwen35_that_goes_back_over_an_image_says_the_same(name: str, seeing: Any) -> None:
    text, mmproj, prompts = seeing(name)
    with LanguageModel(text, mmproj=mmproj, activations="f32", threads=1, context=256, sessions=2) as lm:
        ids = [lm.prompt_ids(raw, raw=True, images=images) for raw, images, *_ in prompts]
        with lm.session() as session, lm.session() as other:
            other.process(ids[1])
            session.process(ids[0])
            session.process([5, 6, 7])
            session.rewind(len(ids[0]) // 2)
            found = session.process(ids[0][len(ids[0]) // 2 :])
            assert np.abs(found - prompts[0][4][-1]).max() < 1e-3


def test_other_rows_and_columns_of_a_qwen35s_images_show(seeing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = AxisPositions._next

    def turned(self: AxisPositions, token: int, position: int, slot: int) -> tuple[int, int, int]:
        time, row, column = right(self, token, position, slot)
        return time, column, row

    monkeypatch.setattr(AxisPositions, "_next", turned)
    assert differences(*seeing("qwen35"), None) > 0.01


@pytest.mark.parametrize("name", RECURRENT)
def test_the_encoder_of_a_saved_qwen35_becomes_its_file(name: str, seeing: Any, tmp_path: Path) -> None:
    _, mmproj, _ = seeing(name)
    from scripts.oracles.tiny.images import vision as tiny_vision
    from scripts.oracles.tiny.images.hybrids import FIRST_SEED, MODELS

    seed, tiny = next((i, model) for i, model in enumerate(MODELS, FIRST_SEED) if model.name == name)
    tiny_vision.build(tiny, seed).save_pretrained(tmp_path / "hub")
    write_preprocessor(tmp_path / "hub", tiny.projector)
    convert(tmp_path / "hub", tmp_path / "made.gguf", "F32", mmproj=True)
    with open_gguf(mmproj) as wanted, open_gguf(tmp_path / "made.gguf") as file:
        for key in wanted.metadata:
            np.testing.assert_array_equal(file.metadata[key], wanted.metadata[key], err_msg=key)
        assert {*file.tensors} == {*wanted.tensors}
        for key, tensor in wanted.tensors.items():
            np.testing.assert_array_equal(file.tensors[key].dequantize(), tensor.dequantize(), err_msg=key)
