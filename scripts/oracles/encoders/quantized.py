"""How far vectors of quantized files of widened tiny encoders are from the f32 of what was quantized, beside llama.cpp.

As quantized_families.py, whose functions these are, with vectors of texts in the place of logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from camshaft import EmbeddingModel
from scripts.oracles import llama
from scripts.oracles.encoders import tiny as tiny_encoders
from scripts.oracles.encoders.rows import ENCODERS, WORDS, TinyEncoder

DIM, HEAD, N_WORDS = 256, 64, 16
N_TEXTS, N_TEXTS_OF_EXPERTS, N_TOGETHER = 64, 512, 16
MEASURE = "cosine error"
_SIZES = {
    **dict.fromkeys(("d_model", "dense_2_feat_in", "dense_3_feat_out"), DIM),
    **dict.fromkeys(("dense_2_feat_out", "dense_3_feat_in"), 3 * DIM // 2),
    **dict.fromkeys(("d_kv", "head_dim", "query_pre_attn_scalar"), HEAD),
    **dict.fromkeys(("attention.key_length", "attention.value_length"), HEAD),
    "d_ff": 2 * DIM,
    "num_heads": DIM // HEAD,
}


def _rows() -> dict[str, tuple[int, TinyEncoder]]:
    """The encoders with the seeds of their parameters; XLM-R is there as a reranker alone, and here without its head."""
    found = {tiny.name: (seed, tiny) for seed, tiny in enumerate(ENCODERS)}
    seed, reranker = found["xlm-r-rerank"]
    options = {name: value for name, value in reranker.options.items() if name != "num_labels"}
    kept = {name: row for name, row in found.items() if not row[1].is_reranker}
    return kept | {"xlm-r": (seed, replace(reranker, name="xlm-r", pooling="mean", options=options))}


_ROWS = _rows()
FAMILIES = tuple(sorted(_ROWS))


def types_of(name: str, types: Sequence[str]) -> list[str]:
    """The types: no encoder has a usual one beside them."""
    return [*types]


def has_experts(name: str) -> bool:
    return "expert_count" in _ROWS[name][1].keys


def texts(n: int) -> list[str]:
    """Texts of words of the vocabulary."""
    return [" ".join(np.random.default_rng(i).choice(WORDS, N_WORDS)) for i in range(n)]


def write_source(name: str, path: Path) -> None:
    """The widened encoder as a file in f32."""
    seed, tiny = _ROWS[name]
    wide = replace(tiny, dim=DIM, head=HEAD, options=_sized(tiny.options), keys=_sized(tiny.keys))
    tiny_encoders.write_gguf(wide, tiny_encoders.build(wide, seed), path)


def _sized(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _SIZES.get(name, value) for name, value in given.items()}


def ours(path: Path, texts: Sequence[str], activations: str) -> np.ndarray:
    """camshaft's vectors, float32 [texts, dim]."""
    with EmbeddingModel(path, activations=activations, threads=2) as model:
        return model.embed([*texts])


def theirs(path: Path, texts: Sequence[str], *, exact: bool) -> np.ndarray:
    """llama.cpp's, which keeps no keys and values of an encoder and so has nothing to be `exact` in."""
    return llama.vectors(path, [*texts])[1]


def errors(wanted: np.ndarray, came: np.ndarray) -> list[float]:
    """1 - the cosine of texts' vectors, in the mean of each N_TOGETHER texts."""
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (wanted.astype(np.float64), came.astype(np.float64)))
    each = ((a - b) ** 2).sum(axis=1) / 2
    return [float(part.mean()) for part in np.array_split(each, max(1, len(each) // N_TOGETHER))]
