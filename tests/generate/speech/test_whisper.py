"""A tiny random Whisper against transformers: features, logits, languages, and the segments of recordings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from camshaft import SpeechModel
from camshaft.dtypes import f32
from camshaft.generate.speech import speech_model
from camshaft.generate.speech.plans import SpeechPlans
from camshaft.generate.speech.rules import Rules
from camshaft.graph import functions as F
from camshaft.models.speech import whisper
from tests.support.models.speech import GREEDY, RECORDINGS, of_transformers, sound, tiny_whisper
from tests.support.quick import quick_of

TOLERANCE, BROKEN = 1e-3, 1e-2
THEIRS = of_transformers()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpeechModel]:
    with SpeechModel(tiny_whisper(tmp_path_factory.mktemp("speech")), threads=1, activations="f32") as opened:
        yield opened


def fresh_plans(model: SpeechModel) -> SpeechPlans:
    """Plans that are compiled now, not found in the cache."""
    plans = SpeechPlans(model._file, model.config, activations="f32", form=f32, threads=1)
    plans.cache._use = False
    return plans


def difference(plans: SpeechPlans, chunk: int = 16) -> float:
    """The greatest difference of logits from those of transformers."""
    plans.encode(THEIRS["features"])
    ids, found = THEIRS["tokens"].tolist(), []
    for first in range(0, len(ids), chunk):
        part = ids[first : first + chunk]
        found.append(plans.prompt(part, range(len(part)), start=first).copy())
    return float(np.abs(np.concatenate(found) - THEIRS["logits"]).max())


def test_features_are_those_of_transformers(model: SpeechModel) -> None:
    assert np.abs(model._plans.features(sound(1.0)) - THEIRS["features"]).max() < 1e-4


def test_features_of_80_bands_too(model: SpeechModel) -> None:
    config = replace(model.config, n_mels=80)
    plans = SpeechPlans(model._file, config, activations="f32", form=f32, threads=1)
    found = plans.features(sound(3.0, 8))
    assert found.shape == (80, 300)
    assert np.abs(found[:, ::9] - THEIRS["features_80"]).max() < 1e-4


def test_logits_are_those_of_transformers(model: SpeechModel) -> None:
    assert THEIRS["logits"].std(axis=0).mean() >= 1
    assert difference(model._plans) < TOLERANCE


def test_chunks_and_single_tokens_give_the_same(model: SpeechModel) -> None:
    plans, ids = model._plans, THEIRS["tokens"].tolist()
    assert difference(plans, chunk=7) < TOLERANCE
    plans.prompt(ids[:5], (4,))
    for position in range(5, 20):
        logits = plans.step({0: ids[position]}, position)
        assert np.abs(logits - THEIRS["logits"][position]).max() < TOLERANCE


def test_texts_beside_each_other_do_not_mix(model: SpeechModel) -> None:
    plans, ids = model._plans, THEIRS["tokens"].tolist()
    difference(plans)
    plans.prompt(ids[:18], (17,))
    plans.share(18, 3)
    for position in range(18, 24):
        logits = plans.step({0: ids[0], 2: ids[position]}, position)
        assert np.abs(logits[1] - THEIRS["logits"][position]).max() < TOLERANCE
        assert np.abs(logits[0] - THEIRS["logits"][position]).max() > BROKEN


def test_languages_have_the_probabilities_of_transformers(model: SpeechModel) -> None:
    found = model.detect_language(sound(1.0))
    assert [found[code] for code in ("en", "de", "fr")] == pytest.approx(THEIRS["languages"], abs=1e-4)


@pytest.mark.parametrize("number", range(len(RECORDINGS)))
def test_segments_are_those_of_transformers(model: SpeechModel, number: int) -> None:
    seconds, seed, language, conditioned = RECORDINGS[number]
    # transformers wants room for the text before and as many tokens as it may have.
    most = 29 if conditioned else None
    given = {"language": language, "condition_on_previous_text": conditioned, "max_tokens": most, **GREEDY}
    made = model.transcribe(sound(seconds, seed), **given)
    theirs = THEIRS["segments"][number]
    first = model._tokens.first_timestamp
    assert [list(s.tokens) for s in made.segments] == [_without_pair(s["tokens"], first) for s in theirs]
    for mine, wanted in zip(made.segments, theirs, strict=True):
        if mine.tokens[-1] >= first:  # transformers ends others at the one time that they have, at which they begin
            assert (mine.start, mine.end) == pytest.approx((wanted["start"], wanted["end"]), abs=0.011)
        assert made.language == (language or "en")


def _without_pair(tokens: list[int], first: int) -> list[int]:
    """transformers adds the time with which the next window begins to the last segment."""
    return tokens[:-1] if len(tokens) > 1 and min(tokens[-2:]) >= first else tokens


# --- mistakes -----------------------------------------------------------------------------------------------------------
@pytest.mark.full
def test_no_cross_attention_shows(model: SpeechModel, monkeypatch: pytest.MonkeyPatch) -> None:
    attend = whisper.attend

    def deaf(memory: Any, q: Any, heads: Any, name: str, *args: Any) -> Any:
        found = attend(memory, q, heads, name, *args)
        return F.multiply(found, 0.0) if "cross" in name else found

    monkeypatch.setattr(whisper, "attend", deaf)
    assert difference(fresh_plans(model)) > BROKEN


def test_keys_of_another_window_show(model: SpeechModel) -> None:
    plans = model._plans
    difference(plans)
    plans.encode(THEIRS["features"][:, ::-1])
    ids = THEIRS["tokens"].tolist()[:16]
    assert np.abs(plans.prompt(ids, range(16)) - THEIRS["logits"][:16]).max() > BROKEN


def test_a_position_off_by_one_shows(model: SpeechModel) -> None:
    plans, ids = model._plans, THEIRS["tokens"].tolist()[:8]
    plans.encode(THEIRS["features"])
    assert np.abs(plans.prompt(ids, range(8), start=1) - THEIRS["logits"][:8]).max() > BROKEN


@pytest.mark.parametrize("change", quick_of([{"mel": "htk"}, {"norm": None}], [{"mel": "htk"}]))
def test_another_mel_scale_shows(model: SpeechModel, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    scale = F.mel_scale

    class Wrong:
        def __getattr__(self, name: str) -> Any:
            return (lambda x, **given: scale(x, **{**given, **change})) if name == "mel_scale" else getattr(F, name)

    monkeypatch.setattr(whisper, "F", Wrong())
    assert np.abs(fresh_plans(model).features(sound(1.0)) - THEIRS["features"]).max() > 0.05


def test_the_order_of_times_counts(model: SpeechModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rules, "_keep_order", lambda *_: None)
    made = model.transcribe(sound(5.3, 7), language="de", condition_on_previous_text=False, **GREEDY)
    first = model._tokens.first_timestamp
    assert [list(s.tokens) for s in made.segments] != [_without_pair(s["tokens"], first) for s in THEIRS["segments"][1]]


def test_windows_that_do_not_move_to_the_last_time_show(model: SpeechModel, monkeypatch: pytest.MonkeyPatch) -> None:
    split = speech_model.split_window
    monkeypatch.setattr(speech_model, "split_window", lambda ids, tokens, n: (split(ids, tokens, n)[0], n))
    made = model.transcribe(sound(5.3, 7), language="de", condition_on_previous_text=False, **GREEDY)
    assert len(made.segments) != len(THEIRS["segments"][1])


def test_the_text_before_counts(model: SpeechModel) -> None:
    given = {"language": "de", **GREEDY}
    with_text = model.transcribe(sound(5.3, 7), **given)
    without = model.transcribe(sound(5.3, 7), condition_on_previous_text=False, **given)
    assert [s.tokens for s in with_text.segments] != [s.tokens for s in without.segments]
