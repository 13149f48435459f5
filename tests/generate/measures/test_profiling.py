"""Profiles of a language model: both plans, their extents, no effect on a running conversation; validated."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft import LanguageModel, Sampling
from camshaft.errors import SettingError
from camshaft.generate.measures.benchmark import profile_model
from camshaft.observe.machine_peak import MachinePeak
from tests.support.fixtures import tiny_model
from tests.support.quick import full

PEAK = MachinePeak(2, 1e10, 4e11, 5e10, 1e11)
GREEDY = Sampling(greedy=True)
PROMPT = [40, 7, 81, 200, 13, 99, 3, 150, 61, 44]


@pytest.fixture(autouse=True)
def known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("camshaft.observe.profile.machine_peak", lambda threads: PEAK)
    monkeypatch.setattr("camshaft.generate.measures.benchmark.english", lambda lm, n: (PROMPT * 10)[:n])


def said(lm: LanguageModel) -> list[int]:
    generation = lm.generate(PROMPT, max_tokens=8, sampling=GREEDY, ignore_eos=True)
    list(generation)
    return generation.ids


def test_both_plans_are_profiled_at_their_place_and_nothing_else_changes(lm: LanguageModel) -> None:
    before = said(lm)
    found = profile_model(lm, 7, "both", 3)
    assert list(found) == ["prompt of 7 tokens", "the token after 7"]
    prompt, token = found.values()
    assert (prompt.extents["tokens"], prompt.extents["length"]) == (7, 7)
    assert token.extents["length"] == 8
    assert [t.name for t in lm.plans.prompt.bound.schedule.thunks] == [row.name for row in prompt.thunks]
    assert {"blk.0", "blk.1"} <= {row.name for row in prompt.by("layer")}
    assert {"attn_q", "ffn_down", "attention"} <= {row.name for row in token.by("part")}
    ratio = sum(r.flops for r in prompt.thunks if r.part == "attn_q") / sum(
        r.flops for r in token.thunks if r.part == "attn_q"
    )
    assert ratio == pytest.approx(7)
    assert said(lm) == before


@pytest.mark.parametrize(("phase", "titles"), [("prompt", ["prompt of 1 token"]), ("generate", ["the token after 1"])])
def test_a_phase_alone_and_a_prompt_of_one_token(phase: str, titles: list[str], lm: LanguageModel) -> None:
    assert list(profile_model(lm, 1, phase, 1)) == titles


def test_an_unknown_phase_is_refused(lm: LanguageModel) -> None:
    with pytest.raises(SettingError, match="phase=reading: wanted prompt, generate, both"):
        profile_model(lm, 1, "reading", 1)


@pytest.mark.parametrize("activations", ["q8", full("f32")])
def test_a_whole_model_validates_node_by_node(
    activations: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embedding, norms, rope, cache, attention, quantized products and sampling, at the data of a real run."""
    path = tiny_model("llama", tmp_path)
    with LanguageModel(path, context=64, threads=2, activations=activations) as plain:
        wanted = said(plain)
    monkeypatch.setenv("CAMSHAFT_VALIDATE", "1")
    with LanguageModel(path, context=64, threads=2, activations=activations) as instrumented:
        assert said(instrumented) == wanted
