"""LoRA on SmolLM2 follows the losses that PEFT had: frozen by scripts/oracles/peft_curve.py."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft import train
from scripts.oracles import peft_curve
from tests.support.fixtures import DATA
from tests.support.models.files import require_default_model


@pytest.mark.soak
def test_lora_on_smollm2_follows_peft_for_200_steps() -> None:
    with np.load(DATA / "peft_curve.npz") as saved:
        wanted = saved["losses"]
    rows = np.arange(peft_curve.LENGTH, dtype=np.int32)[None]
    with train.LoraModel(require_default_model()) as model:
        windows = peft_curve.pieces(model)
        step = train.Step(model.loss, model.adapters(), train.AdamW(), clip=1.0)
        losses = []
        for n in range(peft_curve.STEPS):
            x, y = windows(n)
            losses.append(step(x, rows, y, lr=peft_curve.rate(n)))
    assert wanted[-20:].mean() < wanted[:20].mean() - 1.0
    assert np.abs(np.array(losses) - wanted).max() < 1e-3
