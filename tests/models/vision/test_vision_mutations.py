"""Each step from pixels to tokens is wrong on purpose, and shows in the logits of tiny models that see images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate.vision import vision_model
from camshaft.generate.vision.runs import AxisPositions
from camshaft.generate.vision.tokens import ImageToken
from camshaft.models import decoder
from camshaft.models.vision import encoder, tiles
from camshaft.models.vision.projectors import PROJECTORS
from tests.support.models.files import changed_model
from tests.support.models.images import TINY_VISION, opened, prompts_of, tiny_vision, vision_difference
from tests.support.models.tiny_families import BROKEN
from tests.support.quick import quick_of

QUICK = ("idefics3",)
GEMMA4 = ("gemma4v", "gemma4v-layers")
LEARNED = [name for name in TINY_VISION if name not in ("pixtral", "qwen2vl", "qwen2.5vl", *GEMMA4)]
ROTATING = [
    name for name in TINY_VISION if name in ("pixtral", "qwen2vl", "qwen2.5vl", "qwen3vl", "qwen3vlmoe", *GEMMA4)
]


def _changed(breaking: pytest.MonkeyPatch, name: str, change: Callable[..., Any]) -> None:
    right = getattr(vision_model, name)
    breaking.setattr(vision_model, name, lambda *given: change(right(*given), *given))


@pytest.mark.parametrize("name", quick_of(TINY_VISION, QUICK))
def test_another_order_of_patches_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    _changed(breaking, "patch_rows", lambda rows, *_: rows[::-1])
    with opened(name, tmp_path) as lm:
        assert vision_difference(name, lm) > BROKEN


@pytest.mark.parametrize("name", quick_of(TINY_VISION, QUICK))
def test_swapped_rows_and_columns_of_a_patch_show(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def swapped(rows: np.ndarray, pixels: np.ndarray, config: Any) -> np.ndarray:
        return rows.reshape(len(rows), 3, config.patch, config.patch).swapaxes(2, 3).reshape(len(rows), -1)

    _changed(breaking, "patch_rows", swapped)
    with opened(name, tmp_path) as lm:
        assert vision_difference(name, lm) > BROKEN


@pytest.mark.parametrize("name", quick_of(LEARNED, QUICK))
def test_positions_off_by_one_show(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    _changed(breaking, "position_rows", lambda rows, *_: np.roll(rows, 1, axis=0))
    with opened(name, tmp_path) as lm:
        assert vision_difference(name, lm) > BROKEN


@pytest.mark.parametrize("name", quick_of([n for n in TINY_VISION if not n.startswith("gemma")], QUICK))
def test_another_order_of_merged_patches_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def by_columns(index: np.ndarray, rows: int, columns: int, merge: int) -> np.ndarray:
        return index.reshape(merge, merge, -1).swapaxes(0, 1).reshape(index.shape)

    _changed(breaking, "merged", by_columns)
    with opened(name, tmp_path) as lm:
        assert vision_difference(name, lm) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize("name", ROTATING)
def test_rows_as_columns_of_rotations_show(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    _changed(breaking, "axes_of", lambda axes, *_: axes[:, ::-1])
    with opened(name, tmp_path) as lm:
        assert vision_difference(name, lm) > BROKEN


@pytest.mark.full
def test_other_windows_show(tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    with opened("qwen2.5vl", tmp_path) as lm:
        assert lm.vision is not None
        sizes = replace(lm.vision.config, full_every=1)
    breaking.setattr(vision_model, "read_vision", lambda _: sizes)
    with opened("qwen2.5vl", tmp_path) as lm:
        assert vision_difference("qwen2.5vl", lm) > BROKEN


@pytest.mark.full
def test_another_constant_of_quick_gelu_shows(tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    breaking.setattr(encoder, "QUICK", 1.0)
    with opened("qwen2vl", tmp_path) as lm:
        assert vision_difference("qwen2vl", lm) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize("layer", [0, 1])
def test_each_layer_that_goes_to_layers_of_the_text_counts(
    layer: int, tmp_path: Path, breaking: pytest.MonkeyPatch
) -> None:
    right = encoder.connected_layer

    def without(patches: Any, name: str, *given: Any) -> Any:
        made = right(patches, name, *given)
        return made * 0.0 if name.endswith(f".{layer}") else made

    breaking.setattr(encoder, "connected_layer", without)
    with opened("qwen3vl", tmp_path) as lm:
        assert vision_difference("qwen3vl", lm) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "field", "wrong"),
    [
        ("gemma3", "bidirectional", ""),
        ("gemma3", "bidirectional", "windows"),
        ("gemma4v", "bidirectional", ""),
        ("gemma4v", "bidirectional", "all"),
        ("gemma4v", "theta", 1e4),
        ("gemma4v", "signed", False),
        ("gemma4v", "sandwiched", False),
        ("gemma4v", "rope", "vision"),
        ("lfm2vl", "positions", "learned"),
    ],
)
def test_a_wrong_row_shows(name: str, field: str, wrong: object, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    row = {"lfm2vl": "lfm2"}.get(name, name)
    breaking.setitem(PROJECTORS, row, replace(PROJECTORS[row], **{field: wrong}))  # type: ignore[arg-type]
    with opened(name, tmp_path) as lm:
        assert vision_difference(name, lm) > BROKEN


@pytest.mark.full
def test_another_grid_of_tiles_shows(tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    breaking.setattr(tiles, "_closest_grid", lambda width, height, side: (3, 2))
    text, images, wanted, *_ = prompts_of("lfm2vl")[1]
    with opened("lfm2vl", tmp_path) as lm:
        assert [int(i) for i in lm.prompt_ids(text, raw=True, images=images)] != wanted


@pytest.mark.full
def test_ignored_limits_of_linear_layers_show(tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    breaking.setattr(encoder, "clipped_linear", lambda x, name, n, file: file.linear(x, name, n))
    with opened("gemma4v-layers", tmp_path) as lm:
        assert vision_difference("gemma4v-layers", lm) > BROKEN


@pytest.mark.full
def test_swapped_tables_of_rows_and_columns_show(tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    right = vision_model.axis_rows
    breaking.setattr(vision_model, "axis_rows", lambda table, *sizes: right(table[::-1], *sizes))
    with opened("gemma4v", tmp_path) as lm:
        assert vision_difference("gemma4v", lm) > BROKEN


@pytest.mark.full
def test_other_embeddings_of_layers_in_the_place_of_images_show(tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    right = decoder.layer_embeddings
    breaking.setattr(
        decoder,
        "layer_embeddings",
        lambda x, config, file, batch: right(x, config, file, replace(batch, is_image=None)),
    )
    with opened("gemma4v-layers", tmp_path) as lm:
        assert vision_difference("gemma4v-layers", lm) > BROKEN


@pytest.mark.full
def test_ignored_numbers_that_results_are_shifted_and_scaled_by_show(tmp_path: Path) -> None:
    text, mmproj = tiny_vision("gemma4v", tmp_path)
    with open_gguf(mmproj) as file:
        shape = file.tensors["v.std_scale"].shape
    changed = changed_model(mmproj, tmp_path, tensors={"v.std_scale": np.ones(shape, np.float32)})
    with LanguageModel(text, mmproj=changed, activations="f32", threads=1, context=256) as lm:
        assert vision_difference("gemma4v", lm) > BROKEN


def _one_after_the_other(self: AxisPositions, token: int, position: int, slot: int) -> tuple[int, int, int]:
    return (position,) * 3


def _rows_of_the_last(self: AxisPositions, token: int, position: int, slot: int) -> tuple[int, int, int]:
    time, row, column = _RIGHT(self, token, position, slot)
    return time, column, row


_RIGHT = AxisPositions._next


@pytest.mark.full
@pytest.mark.parametrize("wrong", [_one_after_the_other, _rows_of_the_last])
@pytest.mark.parametrize("name", ["qwen2vl", "qwen2.5vl", "qwen3vl", "qwen3vlmoe"])
def test_other_positions_in_the_text_show(
    name: str, wrong: Callable[..., Any], tmp_path: Path, breaking: pytest.MonkeyPatch
) -> None:
    breaking.setattr(AxisPositions, "_next", wrong)
    with opened(name, tmp_path) as lm:
        assert vision_difference(name, lm) > BROKEN


@pytest.mark.parametrize("name", quick_of(TINY_VISION, QUICK))
def test_images_in_another_order_show(name: str, tmp_path: Path) -> None:
    text, images, _, rows, logits = prompts_of(name)[1]
    with opened(name, tmp_path) as lm:
        ids = lm.prompt_ids(text, raw=True, images=images)
        spans = list(dict.fromkeys(i.span for i in ids if isinstance(i, ImageToken)))
        other = dict(zip(spans, spans[::-1], strict=True))
        swapped = [
            ImageToken(int(i), other[i.span], i.index % len(other[i.span].rows)) if isinstance(i, ImageToken) else i
            for i in ids
        ]
        assert np.abs(lm.logits(swapped)[rows] - logits).max() > BROKEN
