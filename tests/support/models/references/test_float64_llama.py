"""The float64 reference against what transformers said of tiny models, and against itself with one thing broken."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from camshaft.formats.gguf.file import open_gguf
from tests.support.fixtures import Dequantized, default_model, llama_cpp_top, tiny_logits, tiny_model
from tests.support.models.references import float64_llama as reference

TOLERANCE = 1e-4
FAMILIES = {
    "llama",
    "llama-linear",
    "llama-tied",
    "llama-yarn",
    "llama3-rope",
    "mistral",
    "qwen2",
    "qwen2-yarn",
    "qwen3",
}


def _difference(name: str, folder: Path, *, drop: str = "no such suffix", **change: object) -> float:
    """How far the reference is from transformers, with tensors ending in `drop` left out and the rope changed."""
    tokens, wanted = tiny_logits(name)
    with open_gguf(tiny_model(name, folder)) as file:
        held = Dequantized(file)
        weights = {key: held[key] for key in held if not key.endswith(drop)}
        rope = dataclasses.replace(reference.rope_of(file.metadata, weights), **change)
        return float(np.abs(reference.logits(weights, file.metadata, tokens, rope=rope) - wanted).max())


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    assert _difference(name, tmp_path) < TOLERANCE
    assert tiny_logits(name)[1].std(axis=0).mean() >= 1


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_rope_left_out_shows(name: str, tmp_path: Path) -> None:
    assert _difference(name, tmp_path, kind="off") > 0.1


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_swapped_pairing_shows(name: str, tmp_path: Path) -> None:
    other = "neighbours" if name.startswith("qwen") else "halves"
    assert _difference(name, tmp_path, pairing=other) > 0.1


@pytest.mark.parametrize("name", ["llama-linear", "llama-yarn", "qwen2-yarn"])
def test_scaling_left_out_shows(name: str, tmp_path: Path) -> None:
    assert _difference(name, tmp_path, kind="none") > 0.1


def test_llama3_divisors_left_out_show(tmp_path: Path) -> None:
    assert _difference("llama3-rope", tmp_path, divisors=None) > 0.1


@pytest.mark.parametrize("name", ["qwen2", "qwen2-yarn"])
@pytest.mark.parametrize("bias", ["attn_q.bias", "attn_k.bias", "attn_v.bias"])
def test_dropped_bias_shows(name: str, bias: str, tmp_path: Path) -> None:
    assert _difference(name, tmp_path, drop=bias) > 0.01


def test_dropped_norms_of_q_and_k_show(tmp_path: Path) -> None:
    tokens, wanted = tiny_logits("qwen3")
    with open_gguf(tiny_model("qwen3", tmp_path)) as file:
        held = Dequantized(file)
        for norm in ("attn_q_norm.weight", "attn_k_norm.weight"):
            weights = {key: np.ones_like(held[key]) if key.endswith(norm) else held[key] for key in held}
            assert np.abs(reference.logits(weights, file.metadata, tokens) - wanted).max() > 0.01


def test_ntk_stretches_the_slowest_pair_by_the_factor() -> None:
    plain = reference.Rope(dim=64, theta=10000.0, pairing="halves")
    stretched = dataclasses.replace(plain, kind="ntk", factor=4.0)
    ratio = plain.frequencies() / stretched.frequencies()
    assert ratio[0] == pytest.approx(1)
    assert ratio[-1] == pytest.approx(4)
    assert (np.diff(ratio) > 0).all()


def test_kl_divergence_of_equal_logits_is_zero_and_of_others_is_known() -> None:
    assert reference.kl_divergence([[0.0, 1.0]], [[5.0, 6.0]]) == pytest.approx([0])
    two_to_one, even = np.log([[2.0, 1.0]]), np.zeros((1, 2))
    assert reference.kl_divergence(two_to_one, even) == pytest.approx([2 / 3 * np.log(4 / 3) + 1 / 3 * np.log(2 / 3)])


def test_top_divergence_counts_the_rest_as_one() -> None:
    truth = np.log([[0.5, 0.25, 0.125, 0.125]])
    assert reference.top_divergence(truth[:, :2], np.array([[0, 1]]), truth) == pytest.approx([0])
    even = reference.top_divergence(truth[:, :2], np.array([[0, 1]]), np.zeros((1, 4)))
    assert even == pytest.approx([0.5 * np.log(2) + 0.25 * np.log(0.5)])


@pytest.mark.full
def test_llama_cpp_is_close_on_the_default_model() -> None:
    path, frozen = default_model(), {key: rows[:96] for key, rows in llama_cpp_top().items()}
    if path is None:
        pytest.skip("the default model is not there: camshaft pull")
    with open_gguf(path) as file:
        truth = reference.logits(Dequantized(file), file.metadata, frozen["tokens"].tolist())
    divergence = reference.top_divergence(frozen["log_probabilities"], frozen["ids"], truth)
    assert 0 < divergence.mean() < 0.005
    top = np.sort(truth, axis=1)
    sure = top[:, -1] - top[:, -2] > 1
    assert (truth.argmax(axis=1) == frozen["ids"][:, 0])[sure].all()
