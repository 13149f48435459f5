"""Whole plans and models on Metal: a fake of PyObjC's module runs their MSL, with unified memory, beside the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from placed_graphs import norm_block

import camshaft as cs
from camshaft import LanguageModel
from camshaft.validation.evidence import ValidationResult
from tests.support.devices.fake_metal import FakeDevice, FakeMetal, forget, install
from tests.support.devices.metal_harness import have_compiler
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.needs import require
from tests.support.quick import full


@pytest.fixture
def fake(monkeypatch):
    """A fake GPU on which all claims count as proved: metal/test_metal_ops.py proves them, children see no fake."""
    require(have_compiler(), "needs g++")
    made = FakeDevice()
    with monkeypatch.context() as patch:
        install(patch, FakeMetal(made))
        patch.setattr("camshaft.selection.select.prove", believe)
        yield made
    forget()


def believe(variant_cases, **_):
    return {c: ValidationResult(c.op, c.variant, c.backend, "proved") for c in variant_cases}


@pytest.mark.parametrize("name", [full("llama"), full("qwen2"), full("qwen3")])
def test_tiny_models_agree_with_their_frozen_logits(name, fake, tmp_path):
    ids, want = tiny_logits(name)
    with LanguageModel(tiny_model(name, tmp_path), backend="metal", context=128, activations="f32") as lm:
        np.testing.assert_allclose(lm.logits(ids), want, atol=1e-4)
    assert fake.calls["dispatch"] > 20


@pytest.mark.full
def test_a_generation_makes_one_command_buffer_a_run(fake, tmp_path):
    ids, _ = tiny_logits("llama")
    path = tiny_model("llama", tmp_path)
    with LanguageModel(path, backend="metal", context=128, activations="f32") as lm, lm.session() as session:
        session.process(ids[:7])
        session.process(ids[7:8])
        before = fake.calls.copy()
        session.process(ids[8:9])
        new = fake.calls - before
    assert new["command_buffer"] == new["commit"] == 1
    assert new["library"] == new["pipeline"] == new["buffer"] == 0


TOKENS = cs.Extent("tokens", 40)
RNG = np.random.default_rng(11)
W, M = RNG.normal(size=64).astype(np.float32), RNG.normal(size=(64, 64)).astype(np.float32)
X = RNG.normal(size=(40, 64)).astype(np.float32)


@pytest.mark.parametrize(
    "places", [full(("metal",) * 4), ("metal", "cpu", "metal", "cpu"), full(("cpu", "metal", "cpu", "metal"))]
)
def test_a_plan_over_cpu_and_metal_says_the_same(places, fake):
    with cs.compile(norm_block(("cpu",) * 4, TOKENS, W, M), threads=1) as plan:
        want = [plan.run(x=X[:n])["y"].copy() for n in (7, 40, 1)]
    with cs.compile(norm_block(places, TOKENS, W, M), threads=1) as plan:
        got = [plan.run(x=X[:n])["y"].copy() for n in (7, 40, 1)]
        copied = {t.name for t in plan.bound.schedule.thunks if t.kind == "copy"}
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert copied == set(), "the CPU sees Metal's memory"
