"""Each step from pixels to tokens is wrong on purpose, and shows in the logits of tiny models that see pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft.generate.vision import vision_model
from camshaft.generate.vision.places import AxisPositions
from camshaft.generate.vision.tokens import PictureToken
from camshaft.models.vision import encoder
from camshaft.models.vision.projectors import PROJECTORS
from tests.support.pictures import TINY_VISION, opened, prompts_of, vision_difference
from tests.support.quick import quick_of
from tests.support.tiny_families import BROKEN

QUICK = ("idefics3",)
LEARNED = [name for name in TINY_VISION if name not in ("pixtral", "qwen2vl", "qwen2.5vl")]
ROTATING = [name for name in TINY_VISION if name in ("pixtral", "qwen2vl", "qwen2.5vl", "qwen3vl", "qwen3vlmoe")]


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


@pytest.mark.parametrize("name", quick_of([n for n in TINY_VISION if n != "gemma3"], QUICK))
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
def test_tokens_of_a_picture_that_do_not_see_each_other_show(tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    breaking.setitem(PROJECTORS, "gemma3", replace(PROJECTORS["gemma3"], bidirectional=False))
    with opened("gemma3", tmp_path) as lm:
        assert vision_difference("gemma3", lm) > BROKEN


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
def test_pictures_in_another_order_show(name: str, tmp_path: Path) -> None:
    text, pictures, _, rows, logits = prompts_of(name)[1]
    with opened(name, tmp_path) as lm:
        ids = lm.prompt_ids(text, raw=True, images=pictures)
        spans = list(dict.fromkeys(i.span for i in ids if isinstance(i, PictureToken)))
        other = dict(zip(spans, spans[::-1], strict=True))
        swapped = [
            PictureToken(int(i), other[i.span], i.index % len(other[i.span].rows)) if isinstance(i, PictureToken) else i
            for i in ids
        ]
        assert np.abs(lm.logits(swapped)[rows] - logits).max() > BROKEN
