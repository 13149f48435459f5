"""speculate='auto': prompt lookup once a text repeats, for models whose texts it leaves as they are, token by token."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from camshaft import GenerateOptions, LanguageModel
from camshaft.generate.engine.engine import Engine
from camshaft.generate.model_plans import ModelPlans
from camshaft.generate.speculation.pace import RunCosts
from camshaft.generate.speculation.speculator import NgramDrafter
from camshaft.generate.vision.tokens import ImageToken, Span
from camshaft.models.files.quantize import quantize
from tests.generate.conftest import opened_in_f32
from tests.support.fixtures import tiny_model
from tests.support.models.adapters import drawn_adapter
from tests.support.quick import full

PROMPT = [40, 7, 81, 20, 13] * 3
# One token again and again: each draft is right.
REPEATED = GenerateOptions(max_tokens=40, ignore_eos=True).merge({"temperature": 0.0, "logit_bias": {7: 100.0}})
OF_DRAFTS = {"decode.2", "decode.4", "decode.8"}


@pytest.fixture(autouse=True)
def free_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of several tokens cost as much as one: drafts that are right pay."""
    monkeypatch.setattr(RunCosts, "of", lambda self, rows: 1.0)


@pytest.fixture
def lm(tmp_path: Path) -> Iterator[LanguageModel]:
    quantize(tiny_model("llama", tmp_path), tmp_path / "quantized.gguf", "Q8_0")
    with LanguageModel(tmp_path / "quantized.gguf", threads=1, context=96, sessions=2) as opened:
        yield opened


def test_plans_are_made_beside_the_text_that_repeats_and_then_drafts_are_checked(lm: LanguageModel) -> None:
    plain = lm.generate(PROMPT, REPEATED, speculate=None)
    assert "".join(plain)
    assert plain.speculation is None
    assert not OF_DRAFTS & lm.plans.origins.keys()
    first = lm.generate(PROMPT, REPEATED)
    assert ("".join(first), first.ids) == (plain.text, plain.ids)
    lm.plans.draft_plans._ahead.thread.join()
    assert lm.plans.origins.keys() >= OF_DRAFTS
    before = lm.plans.n_runs
    second = lm.generate(PROMPT, REPEATED)
    assert ("".join(second), second.ids) == (plain.text, plain.ids)
    assert second.speculation is not None
    assert second.speculation.drafted > 24
    assert lm.plans.n_runs - before < 16


def test_a_text_that_does_not_repeat_makes_no_plan(lm: LanguageModel) -> None:
    answer = lm.generate([1, 2, 3], REPEATED, max_tokens=60, logit_bias={}, repeat_penalty=5.0, repeat_last_n=96)
    "".join(answer)
    assert answer.speculation is not None
    assert answer.speculation.drafted == 0
    assert not OF_DRAFTS & lm.plans.origins.keys()


def test_a_model_that_is_closed_makes_no_further_plan(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, free, make = Event(), Event(), ModelPlans.make

    def waits(plans: ModelPlans, name: str) -> object:
        begun.set()
        assert free.wait(60)
        return make(plans, name)

    monkeypatch.setattr(lm.plans.draft_plans, "_make", lambda name: waits(lm.plans, name))
    with caplog.at_level(logging.WARNING):
        "".join(lm.generate(PROMPT, REPEATED))
        assert begun.wait(60)
        lm.close()
        free.set()
        lm.plans.draft_plans._ahead.thread.join()
    assert lm.plans.draft_plans.most_rows == 1
    assert caplog.text == ""


def test_models_that_round_otherwise_beside_others_get_no_drafts(tiny_path: Path, lm: LanguageModel) -> None:
    with opened_in_f32(tiny_path, context=96) as of_floats, Engine(of_floats, speculate="auto") as engine:
        answer = of_floats.generate(PROMPT, REPEATED)
        "".join(answer)
        assert answer.speculation is None
        assert engine.drafts_by is None
    with Engine(lm, speculate="auto") as engine:
        assert engine.drafts_by == "ngram"


@pytest.mark.full
def test_an_engine_drafts_no_more_once_adapters_round_otherwise(lm: LanguageModel, tmp_path: Path) -> None:
    adapter = drawn_adapter(tmp_path / "quantized.gguf", tmp_path / "one.gguf", 1, targets=("attn_q",))

    def drafted(engine: Engine) -> int:
        ended = Event()
        request = engine.submit(PROMPT, REPEATED, lambda update: ended.set() if update.is_last else None)
        assert ended.wait(60)
        return request.drafted

    with Engine(lm, speculate="auto") as engine:
        engine.start()
        assert drafted(engine) > 24
        lm.use_adapters([adapter])
        assert drafted(engine) == 0


def test_texts_together_take_the_option_as_none(lm: LanguageModel) -> None:
    batch = lm.generate_batch([PROMPT, PROMPT[1:]], REPEATED, max_tokens=4)
    assert len(batch.texts()) == 2


@pytest.mark.parametrize("context", [full(5), 7])
def test_short_contexts_have_the_plans_of_all_drafts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, context: int
) -> None:
    quantize(tiny_model("llama", tmp_path), tmp_path / "quantized.gguf", "Q8_0")
    with LanguageModel(tmp_path / "quantized.gguf", threads=1, context=context, sessions=1) as lm:
        with caplog.at_level(logging.WARNING):
            answers = [list(lm.generate([3], REPEATED, max_tokens=-1, speculate=of)) for of in (None, "ngram")]
            for _ in range(8):
                lm.plans.draft_plans.count_missed()
            lm.plans.draft_plans._ahead.thread.join()
        assert answers[0] == answers[1]
        assert lm.plans.draft_plans.most_rows == 8
    assert caplog.text == ""


def test_a_text_goes_on_where_the_system_has_no_thread_for_plans(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses() -> None:
        raise RuntimeError("can't start new thread")

    plain = "".join(lm.generate(PROMPT, REPEATED, speculate=None))
    monkeypatch.setattr(lm.plans.draft_plans._ahead.thread, "start", refuses)
    with caplog.at_level(logging.WARNING):
        assert "".join(lm.generate(PROMPT, REPEATED)) == plain
    assert "plans for drafts are not made ahead: can't start new thread" in caplog.text


def test_images_are_not_drafted() -> None:
    span = Span(np.zeros((2, 4), np.float32), b"a picture", 2)
    images = [ImageToken(9, span, i) for i in range(2)]
    drafter = NgramDrafter()
    assert drafter.find([5, 6, 7, *images, 8, 5, 6], 4) == [7]
    assert drafter.find([5, 6, 7, *images, 8, 5, 6, 7], 4) == []
