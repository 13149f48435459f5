"""Tiny random models of every family against frozen logits of transformers, and the effect of removing parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.generate.plan_cache import PlanCache
from camshaft.graph.graph import Tensor
from camshaft.models import checkpoint, config, rope_scaling
from camshaft.models.architectures import ARCHITECTURES
from tests.support.fixtures import TINY_MODELS, tiny_logits, tiny_model

TOLERANCE = 1e-3
BROKEN = 1e-2
FAMILIES = {"llama": "llama", "llama3": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
OTHER_PAIRING = {"interleaved": "neox", "neox": "interleaved"}


def _difference(name: str, folder: Path, **options: object) -> float:
    """The greatest difference from transformers, over all logits of the frozen tokens."""
    tokens, wanted = tiny_logits(name)
    given = {"activations": "f32", "threads": 1, "context": 64, "sessions": 1} | options
    with LanguageModel(tiny_model(name, folder), **given) as lm:  # type: ignore[arg-type]
        logits = lm.logits(tokens)
    assert logits.shape == wanted.shape
    return float(np.abs(logits - wanted).max())


def test_there_is_a_tiny_model_of_every_family() -> None:
    assert len(TINY_MODELS) == 9
    assert {FAMILIES[name.split("-")[0]] for name in TINY_MODELS} == {*ARCHITECTURES} == {*config.ARCHITECTURES}
    assert all(tiny_logits(name)[1].std(axis=0).mean() >= 1 for name in TINY_MODELS)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert _difference(name, tmp_path) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_two_threads_agree_as_well(name: str, tmp_path: Path) -> None:
    assert _difference(name, tmp_path, threads=2) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_the_usual_mode_keeps_the_cache_in_16_bits_and_stays_close(name: str, tmp_path: Path) -> None:
    assert TOLERANCE / 100 < _difference(name, tmp_path, activations="auto") < 0.05


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """For what is broken on purpose: such plans are not cached, since the key of a cached plan does not cover patches."""
    for name in ("get", "add"):
        monkeypatch.setattr(PlanCache, name, lambda *_: None)
    return monkeypatch


@pytest.mark.parametrize("name", TINY_MODELS)
def test_no_rotation_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def still(context: int, dim: int, *_: object) -> np.ndarray:
        return np.repeat(np.array([[1.0, 0.0]], np.float32), dim // 2, axis=1).repeat(context, axis=0)

    breaking.setattr(rope_scaling, "rope_table", still)
    assert _difference(name, tmp_path) > BROKEN


@pytest.mark.parametrize("name", TINY_MODELS)
def test_swapped_pairing_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    family = FAMILIES[name.split("-")[0]]
    swapped = replace(ARCHITECTURES[family], pairing=OTHER_PAIRING[ARCHITECTURES[family].pairing])
    breaking.setitem(ARCHITECTURES, family, swapped)
    assert _difference(name, tmp_path) > BROKEN


@pytest.mark.parametrize("name", ["qwen2", "qwen2-yarn"])
@pytest.mark.parametrize("dropped", ["attn_q", "attn_k", "attn_v"])
def test_dropped_biases_show(name: str, dropped: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    linear = checkpoint.Checkpoint.linear

    def without(self: checkpoint.Checkpoint, x: Tensor, key: str, n: int, *, bias: bool = False) -> Tensor:
        return linear(self, x, key, n, bias=bias and not key.endswith(dropped))

    breaking.setattr(checkpoint.Checkpoint, "linear", without)
    assert _difference(name, tmp_path) > BROKEN


@pytest.mark.parametrize("norm", ["attn_q_norm", "attn_k_norm"])
def test_dropped_head_norms_show(norm: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def of_ones(self: checkpoint.Checkpoint, name: str, n: int) -> Tensor:
        return self.graph.constant(name, np.ones(n, np.float32)) if norm in name else vector(self, name, n)

    vector = checkpoint.Checkpoint.vector
    breaking.setattr(checkpoint.Checkpoint, "vector", of_ones)
    assert _difference("qwen3", tmp_path) > BROKEN


@pytest.mark.parametrize("name", ["llama-linear", "llama-yarn", "qwen2-yarn", "llama3-rope"])
def test_ignored_rope_scaling_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    breaking.setattr(rope_scaling, "read_scaling", lambda *_: rope_scaling.RopeScaling())
    assert _difference(name, tmp_path) > BROKEN


@pytest.mark.parametrize("backend", ["scalar", "blas"])
@pytest.mark.parametrize("name", ["llama-tied", "qwen2"])
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
