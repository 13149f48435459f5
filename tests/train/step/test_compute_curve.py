"""The character GPT of docs/training.md learns in bf16 and f16 as in f32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft import train
from tests.train.test_docs import MODEL


@pytest.mark.soak
def test_the_character_gpt_learns_as_in_f32_for_200_steps() -> None:
    page: dict[str, Any] = {}
    exec(compile(MODEL.partition("step = train.Step")[0], "docs/training.md", "exec"), page)
    windows, rate, curves = train.Windows(page["ids"], page["length"], page["batch"]), train.cosine(1e-2, 200), {}
    for compute in ("f32", "bf16", "f16"):
        step = train.Step(page["loss"], page["start"], train.AdamW(weight_decay=0.1), clip=1.0, compute=compute)
        curves[compute] = np.array([step(*windows(n), lr=rate(n)) for n in range(200)])
    for compute in ("bf16", "f16"):
        tenths = [np.abs(part).mean() for part in np.split(curves[compute] - curves["f32"], 10)]
        assert max(tenths) < 0.02
        assert abs(curves[compute][-20:].mean() - curves["f32"][-20:].mean()) < 0.01
