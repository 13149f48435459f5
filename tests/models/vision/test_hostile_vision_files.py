"""Vision files that are damaged or of another model are refused in one line that names the cause."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import CamshaftError, ModelError
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate.vision.vision_model import VisionModel
from camshaft.models.config import read_config
from camshaft.models.vision.config import line_of, read_vision
from camshaft.models.vision.positions import grid_of
from camshaft.models.vision.tiles import Tile, layout_of
from camshaft.text.vocabulary import vocabulary_size
from tests.support.models.files import changed_model
from tests.support.models.images import drawn_image, tiny_vision
from tests.support.models.references.reference_models import compute_by_references

WRONG_KEYS: list[tuple[str, Any, str]] = [
    ("clip.has_vision_encoder", False, "'clip.has_vision_encoder' is False"),
    ("clip.projector_type", "mumble", "'mumble'; wanted one of idefics3, gemma3"),
    ("clip.projector_type", 7, "is 7; wanted one of"),
    ("clip.vision.projection_dim", 16, "makes embeddings of 16 numbers; .* has 32: wanted the vision file"),
    ("clip.vision.embedding_length", "wide", "'clip.vision.embedding_length' is 'wide'; wanted a number"),
    ("clip.vision.embedding_length", 33, "is 33; wanted a multiple of the 2 heads"),
    ("clip.vision.embedding_length", 2**16, "'v.patch_embd.weight' has shape"),
    ("clip.vision.feed_forward_length", 2**30, "'v.blk.0.ffn_up.weight' has shape"),
    ("clip.vision.block_count", 3, "'v.blk.2.ln1.weight'"),
    ("clip.vision.block_count", 4096, "is 4096; the file has"),
    ("clip.vision.block_count", 2**31 - 1, "wanted at most 4096"),
    ("clip.vision.attention.head_count", 0, "is 0; wanted an integer of 1 or more"),
    ("clip.vision.attention.layer_norm_epsilon", math.nan, "is nan; wanted a number"),
    ("clip.vision.image_size", 2**31 - 1, "'clip.vision.image_size' is 2147483647; wanted at most 16384"),
    ("clip.vision.image_size", 40, "is 40; wanted a multiple of 16"),
    ("clip.vision.patch_size", 64, "'clip.vision.image_size' is 32; wanted a multiple of 128"),
    ("clip.vision.preproc_image_size", 2**20, "'clip.vision.preproc_image_size' is 1048576; wanted at most 16384"),
    ("clip.vision.projector.scale_factor", 17, "is 17; wanted at most 16"),
    ("clip.vision.image_mean", [0.5, 0.5], "wanted three numbers"),
    ("clip.vision.image_std", [0.5, 0.5, 0.0], "wanted three numbers above 0"),
    ("clip.vision.image_std", "none", "'none'; wanted three numbers above 0"),
    ("clip.use_gelu", "yes", "'clip.use_gelu' is 'yes'; wanted true or false"),
    ("clip.use_gelu", False, "not one of clip.use_gelu and clip.use_silu"),
]


@pytest.mark.parametrize(("key", "value", "wanted"), WRONG_KEYS)
def test_each_wrong_key_is_named(
    key: str, value: Any, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_by_references(monkeypatch)
    text, mmproj = tiny_vision("idefics3", tmp_path)
    changed = changed_model(mmproj, tmp_path, keys={key: value})
    given = {"mmproj": changed, "threads": 1, "context": 128, "sessions": 1}
    with pytest.raises(CamshaftError, match=wanted) as error, LanguageModel(text, **given) as lm:  # type: ignore[arg-type]
        lm.prompt_ids("a", raw=True, images=[drawn_image(5, 5)])
    assert "\n" not in str(error.value)


@pytest.mark.full
@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("image_max_pixels", 2**31 - 1, "images of 134217727 patches .*image_max_pixels.* wanted at most 65536"),
        ("image_min_pixels", 10_000, "are 10000 and 900; wanted the first at most the second"),
        ("window_size", 7, "'clip.vision.window_size' is 7; wanted at least 8, a token"),
        ("window_size", 2**30, "is 1073741824; wanted at most 16384"),
        ("n_wa_pattern", 0, "is 0; wanted an integer of 1 or more"),
        ("spatial_merge_size", 3, "tensor 'mm.0.weight' has shape"),
        ("attention.head_count", 8, "is 16; wanted a multiple of 4 times the 8 heads"),
    ],
)
def test_wrong_keys_of_qwen_are_named(key: str, value: int, wanted: str, tmp_path: Path) -> None:
    text, mmproj = tiny_vision("qwen2.5vl", tmp_path)
    changed = changed_model(mmproj, tmp_path, keys={f"clip.vision.{key}": value})
    given = {"mmproj": changed, "threads": 1, "context": 128, "sessions": 1}
    with pytest.raises(ModelError, match=wanted), LanguageModel(text, **given) as lm:  # type: ignore[arg-type]
        lm.prompt_ids("a", raw=True, images=[drawn_image(5, 5)])


@pytest.mark.full
@pytest.mark.parametrize(
    ("of", "vision", "wanted"),
    [
        ("idefics3", "qwen2.5vl", "images of .* have rows and columns as positions, unlike"),
        ("qwen3vl", "qwen2.5vl", "0 layers of .* go to layers of the text; .* takes 2"),
        ("qwen2.5vl", "idefics3", "have no rows and columns as positions"),
    ],
)
def test_the_vision_file_of_another_model_is_refused(of: str, vision: str, wanted: str, tmp_path: Path) -> None:
    text, mmproj = tiny_vision(of, tmp_path)[0], tiny_vision(vision, tmp_path)[1]
    with pytest.raises(ModelError, match=wanted):
        LanguageModel(text, mmproj=mmproj, threads=1, context=64)


@pytest.mark.parametrize(
    ("text", "vision", "differ"),
    [
        ({"general.basename": "Qwen2.5-VL"}, {"general.name": "Qwen2 VL 7B Instruct"}, ("Qwen2-VL", "Qwen2.5-VL")),
        ({"general.name": "SmolVLM2 256M Video"}, {"general.name": "SmolVLM-256M"}, ("SmolVLM", "SmolVLM2")),
        ({"general.name": "gemma-3-4b-it"}, {"general.name": "Gemma 3n E2B"}, ("Gemma 3n", "Gemma 3")),
        ({"general.basename": "Tiger", "general.name": "Big Tiger Gemma"}, {"general.name": "Gemma 3 4b It"}, ()),
        ({"general.name": "medgemma-4b-it"}, {"general.name": "Gemma 3 4b It"}, ()),
        ({"general.name": "Gemma_3-27B abliterated"}, {"general.basename": "gemma-3"}, ()),
        ({"general.name": "SmolVLM 256M"}, {"general.name": ["SmolVLM2"]}, ()),
    ],
)
def test_files_that_name_other_lines_of_models_are_not_of_each_other(
    text: dict[str, Any], vision: dict[str, Any], differ: tuple[str, ...]
) -> None:
    of_vision, of_text = line_of(vision), line_of(text)
    assert ((of_vision, of_text) if of_vision and of_text and of_vision != of_text else ()) == differ


def test_a_vision_file_of_another_line_of_the_same_sizes_is_refused(tmp_path: Path) -> None:
    text, mmproj = tiny_vision("idefics3", tmp_path)
    (tmp_path / "named").mkdir()
    named = changed_model(text, tmp_path / "named", keys={"general.name": "SmolVLM2 256M"})
    other = changed_model(mmproj, tmp_path, keys={"general.name": "SmolVLM 256M"})
    with pytest.raises(ModelError, match=r"is of SmolVLM; .* is of SmolVLM2: wanted the vision file"):
        LanguageModel(named, mmproj=other, threads=1, context=64)


def test_a_vision_file_of_another_architecture_is_refused(tmp_path: Path) -> None:
    text, mmproj = tiny_vision("idefics3", tmp_path)
    keys = {"general.architecture": "smollm3"}
    with open_gguf(text) as file:
        keys |= {f"smollm3.{key[6:]}": file.metadata[key] for key in file.metadata if key.startswith("llama.")}
    (tmp_path / "other").mkdir()
    other = changed_model(text, tmp_path / "other", keys=keys)
    wanted = r"\(projector idefics3\) is for models of llama; .* is of smollm3: wanted"
    with pytest.raises(ModelError, match=wanted):
        LanguageModel(other, mmproj=mmproj, threads=1, context=64)


def test_a_text_model_is_no_vision_file_and_sees_nothing(tmp_path: Path) -> None:
    text, _ = tiny_vision("idefics3", tmp_path)
    with pytest.raises(ModelError, match="architecture is 'llama'; wanted clip"):
        LanguageModel(text, mmproj=text, threads=1, context=64)
    with LanguageModel(text, threads=1, context=64) as lm, pytest.raises(ModelError, match="sees no images: open"):
        lm.generate("a", images=[drawn_image(5, 5)])


def test_a_bias_that_one_layer_lacks_is_named(tmp_path: Path) -> None:
    text, mmproj = tiny_vision("idefics3", tmp_path)
    changed = changed_model(mmproj, tmp_path, drop_tensors=["v.blk.1.attn_k.bias"])
    with pytest.raises(ModelError, match=r"no tensor 'v\.blk\.1\.attn_k\.bias', but layer 0 has"):
        LanguageModel(text, mmproj=changed, threads=1, context=64)


def _metadata(name: str, folder: Path) -> dict[str, Any]:
    with open_gguf(tiny_vision(name, folder)[1]) as file:
        return dict(file.metadata)


@pytest.mark.parametrize(("name", "tokens"), [("qwen2vl", (1, 5)), ("qwen2vl", (30, 30)), ("lfm2vl", (1, 4))])
def test_low_limits_hold_for_images_of_any_shape(name: str, tokens: tuple[int, int], tmp_path: Path) -> None:
    given = _metadata(name, tmp_path)
    unit = read_vision(given).unit
    limits = {f"clip.vision.image_{end}_pixels": n * unit**2 for end, n in zip(("min", "max"), tokens, strict=True)}
    config = read_vision(given | limits | ({"clip.vision.image_size": unit} if name == "lfm2vl" else {}))
    for width, height in ((1, 1), (1, 200), (199, 1), (64, 64), (61, 43), (5, 900)):
        for tile in layout_of(np.zeros((height, width, 3), np.uint8), config):
            if isinstance(tile, Tile):
                rows, columns = grid_of(tile.pixels, config)
                assert rows * columns <= config.most_patches
                assert max(rows, columns) <= config.most_side
                assert (rows % config.merge, columns % config.merge) == (0, 0)


@pytest.mark.parametrize(
    ("name", "keys", "wanted"),
    [
        ("qwen2vl", {"image_min_pixels": 1, "image_max_pixels": 1}, "image_max_pixels' is 1; wanted at least .*, a token"),
        ("lfm2vl", {"image_min_pixels": 1, "image_max_pixels": 1}, "image_max_pixels' is 1; wanted at least .*, a tile"),
        ("lfm2vl", {"projector.scale_factor": 5, "image_max_pixels": 2**16}, "image_size' is .*; wanted a multiple of"),
    ],
)  # fmt: skip
def test_limits_that_hold_no_token_are_named(name: str, keys: dict[str, int], wanted: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=wanted):
        read_vision(_metadata(name, tmp_path) | {f"clip.vision.{key}": value for key, value in keys.items()})


def test_an_architecture_that_is_no_text_is_no_vision_file() -> None:
    with pytest.raises(ModelError, match="wanted clip, a vision encoder"):
        read_vision({"general.architecture": np.arange(3)})


def test_a_table_of_positions_without_rows_is_named(tmp_path: Path) -> None:
    text, mmproj = tiny_vision("gemma4v", tmp_path)
    with open_gguf(mmproj) as file:
        table = file.tensors["v.position_embd.weight"].dequantize()
    changed = changed_model(mmproj, tmp_path, tensors={"v.position_embd.weight": table[:1]})
    with open_gguf(text) as file:
        sizes = read_config(file.metadata, "gemma4", vocabulary_size(file.metadata))
    with (
        VisionModel(changed, sizes, {}, "text", threads=1, activations="f32") as model,
        pytest.raises(ModelError, match=r"'v.position_embd.weight' has shape \[1, .*; wanted \[2, "),
    ):
        assert model._positions is None
