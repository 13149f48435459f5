"""Tiny random models of every family against frozen logits of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.models.families import FAMILIES as ROWS
from tests.support.fixtures import TINY_MODELS, tiny_logits, tiny_model
from tests.support.models.references.reference_models import compute_by_references
from tests.support.models.renamed_families import RENAMED
from tests.support.models.tiny_families import TOLERANCE, context_of, difference_of, row_of
from tests.support.quick import each_value, full, quick_of

SELDOM = (
    *("falcon-mamba", "granitehybrid", "jamba", "mamba", "mamba2", "nemotron_h_moe", "qwen35moe", "qwen3next"),
    *("gemma3n", "kimi-linear", "minicpm3", "olmo", "plamo2", "rwkv6", "rwkv7"),
    *("dots1", "gemma"),
    *("arcee", "bailingmoe2", "chatglm", "dbrx", "exaone", "hunyuan-moe", "internlm2"),
    *("mellum", "exaone-moe", "afmoe", "apertus", "deepseek32", "glm-dsa", "bloom"),
    *("deci", "llama4", "phimoe", "smallthinker"),
    *("minicpm", "minimax-m2", "nemotron", "orion", "phi2"),
    *("deepseek2-lite", "ernie4_5", "ernie4_5-moe", "gemma4-moe", "glm4", "hunyuan-dense", "lfm2moe"),
)


# Models that differ most in the kernels of their layers. Of the others, whose options tests/ops tries, the graphs are evaluated.
COMPILED = (
    *(
        "falcon",
        "gemma3",
        "gpt-oss",
        "gpt2",
        "lfm2",
        "llama",
        "mixtral",
        "nemotron_h",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen2moe",
    ),
    *("qwen35", "smollm3", "stablelm"),
)


def test_there_is_a_tiny_model_of_every_family() -> None:
    assert len(TINY_MODELS) == 88
    of_images = {"qwen2vl", "qwen3vl", "qwen3vlmoe"}  # tests/models/vision/test_vision.py
    rows = {name for name, row in ROWS.items() if not row.encoder}
    renamed = {row.family or name for name, row in RENAMED.items()}
    assert {row_of(name) for name in TINY_MODELS} | of_images | renamed == rows
    assert all(tiny_logits(name)[1].std(axis=0).mean() >= 1 for name in TINY_MODELS)


@pytest.mark.parametrize("name", quick_of(TINY_MODELS, COMPILED))
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert difference_of(name, tmp_path) < TOLERANCE


@pytest.mark.parametrize("name", [name for name in TINY_MODELS if name not in (*SELDOM, *COMPILED)])
def test_graphs_compute_the_logits_of_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_by_references(monkeypatch)
    assert difference_of(name, tmp_path) < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("chunk", [7, 1])
@pytest.mark.parametrize("name", TINY_MODELS)
def test_chunks_and_single_tokens_give_the_same(name: str, chunk: int, tmp_path: Path) -> None:
    assert difference_of(name, tmp_path, chunk=chunk) < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_sequence_beside_another_says_the_same(name: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(name)
    with (
        LanguageModel(
            tiny_model(name, tmp_path), activations="f32", threads=1, context=context_of(tokens), sessions=2
        ) as lm,
        lm.session() as other,
        lm.session() as session,
    ):
        other.process(tokens[::-1])
        for i, token in enumerate(tokens):
            logits = session.process([token])
            other.process([tokens[-i]])
        assert np.abs(logits - wanted[-1]).max() < TOLERANCE


@pytest.mark.parametrize("name", ["llama", full("qwen2"), full("qwen3")])
def test_two_threads_agree_as_well(name: str, tmp_path: Path) -> None:
    assert difference_of(name, tmp_path, threads=2) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", full("qwen2"), "qwen3"])
def test_the_usual_mode_keeps_the_cache_in_16_bits_and_stays_close(name: str, tmp_path: Path) -> None:
    assert TOLERANCE / 100 < difference_of(name, tmp_path, activations="auto") < 0.05


@pytest.mark.parametrize(("name", "backend"), each_value(["llama-tied", "qwen2"], ["blas", "scalar"]))
def test_every_backend_agrees(name: str, backend: str, tmp_path: Path) -> None:
    if backend == "blas":
        pytest.importorskip("scipy_openblas32", reason="the extra blas is not installed")
    tokens, _ = tiny_logits(name)
    path, logits = tiny_model(name, tmp_path), {}
    for each in ("simd", backend):
        with LanguageModel(path, backend=each, activations="f32", threads=1, context=64) as lm:
            assert lm.backend == each
            variants = {t.variant for t in lm.plans.prompt.bound.schedule.thunks if t.op == "matmul"}
            logits[each] = lm.logits(tokens)
    assert (variants == {"blas"}) == (backend == "blas")
    assert np.abs(logits["simd"] - logits[backend]).max() < 1e-4
