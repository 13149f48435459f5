"""Whole plans on the CUDA backend, its driver played: tiny language models, their cache on the GPU, one graph a plan."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.backends import registry
from camshaft.backends.cuda import device as cuda
from tests.support.devices.played_cuda import played_driver
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.quick import full


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """The registry's `cuda` is a GPU that is played, which a proof in another process would not find."""
    played = played_driver(monkeypatch, tmp_path / "cache")
    device = cuda.make(0)
    row = dataclasses.replace(
        registry.backends()["cuda"], absent=lambda: None, make=lambda suffix: device, devices=lambda: (), runs=False
    )
    rows = {**registry.backends(), "cuda": row}
    monkeypatch.setattr(registry, "backends", lambda: rows)
    monkeypatch.setattr(registry, "_devices", {})
    yield played
    cuda.absent.cache_clear()


@pytest.mark.parametrize(
    ("name", "activations"), [full("llama", "f32"), full("llama", "q8"), full("qwen3", "f32"), full("qwen3", "q8")]
)
def test_tiny_models_agree_with_the_cpu_and_their_frozen_logits(name, activations, fake, tmp_path) -> None:
    ids, want = (part[:8] for part in tiny_logits(name))
    path = tiny_model(name, tmp_path)
    with LanguageModel(path, backend="cuda", context=64, activations=activations) as lm:
        got = lm.logits(ids)
    with LanguageModel(path, backend="scalar", context=64, activations=activations) as lm:
        same = lm.logits(ids)
    np.testing.assert_allclose(got, want if activations == "f32" else same, atol=1e-4 if activations == "f32" else 2e-2)
    assert "cuGraphLaunch" in fake.calls
    assert "cuLaunchKernel" not in fake.calls[fake.calls.index("cuGraphLaunch") :]


@pytest.mark.full
def test_decoding_replays_graphs_and_sets_few_nodes(fake, tmp_path) -> None:
    ids, _ = tiny_logits("llama")
    with (
        LanguageModel(tiny_model("llama", tmp_path), backend="cuda", context=64, activations="f32") as lm,
        lm.session() as s,
    ):
        logits = s.process(ids[:4])
        fake.calls.clear()
        fake.updates = 0
        for _ in range(3):
            logits = s.process([int(logits.argmax())])
        graphs = fake.calls.count("cuGraphLaunch")
        assert 3 <= graphs <= 6
        replayed = fake.calls[fake.calls.index("cuGraphLaunch") :]
        assert not {"cuMemAlloc", "cuModuleLoadDataEx", "cuGraphInstantiate"}.intersection(replayed)
        # of some dozens of launches a token, those whose grid follows the cache's length, when it passes a tile's edge
        assert fake.updates <= 6
