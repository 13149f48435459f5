"""Each step from pixels to tokens is wrong on purpose, and shows in the logits of tiny models that see pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft.generate.vision import vision_model
from camshaft.generate.vision.tokens import PictureToken
from tests.support.pictures import TINY_VISION, opened, prompts_of, vision_difference
from tests.support.quick import quick_of
from tests.support.tiny_families import BROKEN

QUICK = ("idefics3",)
LEARNED = [name for name in TINY_VISION if name not in ("pixtral", "qwen2.5vl")]


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
