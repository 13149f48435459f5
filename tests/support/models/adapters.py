"""LoRA adapters of tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from camshaft import train


def drawn_adapter(base: Path, path: Path, seed: int, **options: Any) -> Path:
    """An adapter whose matrices are drawn."""
    rng = np.random.default_rng(seed)
    with train.LoraModel(base, train.LoraConfig(**options)) as model:
        pairs = {
            name: {part: rng.normal(0, 0.2, array.shape).astype(np.float32) for part, array in pair.items()}
            for name, pair in model.adapters().items()
        }
        train.save_adapter(path, model, pairs)
    return path
