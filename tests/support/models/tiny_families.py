"""Tiny models of every family: the rows of their files, and how far their logits are from those of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from camshaft import LanguageModel
from tests.support.fixtures import tiny_logits, tiny_model

TOLERANCE = 1e-3
BROKEN = 1e-2


# A tiny model's row, where it is not its own name up to the first dash.
ROW_OF = {
    "llama3": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "falcon-mamba": "mamba",
    "olmo3": "olmo2",
    "seed": "seed_oss",
    "gpt": "gpt-oss",
    "command": "command-r",
    "hunyuan": "hunyuan-dense",
    "falcon-h1": "falcon-h1",
    "ernie4_5-moe": "ernie4_5-moe",
    "kimi-linear": "kimi-linear",
    "hunyuan-moe": "hunyuan-moe",
    "minimax-m2": "minimax-m2",
    "exaone-moe": "exaone-moe",
    "glm-dsa": "glm-dsa",
}


def row_of(name: str) -> str:
    first = name.split("-")[0]
    return ROW_OF.get(name, ROW_OF.get(first, first))


def context_of(tokens: list[int]) -> int:
    """Room for two sequences one after the other."""
    return 64 if len(tokens) <= 32 else 160


def difference_of(name: str, folder: Path, *, chunk: int | None = None, **options: object) -> float:
    """The greatest difference from transformers, over all logits of the frozen tokens."""
    tokens, wanted = tiny_logits(name)
    given = {"activations": "f32", "threads": 1, "context": context_of(tokens), "sessions": 1} | options
    with LanguageModel(tiny_model(name, folder), **given) as lm:  # type: ignore[arg-type]
        logits = lm.logits(tokens, chunk=chunk)
    assert logits.shape == wanted.shape
    return float(np.abs(logits - wanted).max())
