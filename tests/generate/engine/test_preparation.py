"""An engine makes its plans before requests need them, while others run."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.errors import ModelError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.preparation import ahead, plan_names, prepare_draft
from camshaft.generate.engine.request import Update
from camshaft.generate.model_plans import ModelPlans
from camshaft.generate.stored.plan_cache import PlanCache
from tests.support.fixtures import tiny_model

OPTIONS = GenerateOptions(max_tokens=3, sampling=Sampling(greedy=True), ignore_eos=True)
PROMPTS = [[40 + i, 7, 81] for i in range(8)]


@pytest.fixture
def lm(tmp_path: Path) -> Iterator[LanguageModel]:
    """A model of 8 slots that has the plan for prompts alone."""
    path = tiny_model("llama", tmp_path)
    with LanguageModel(path, threads=1, context=48, activations="f32", sessions=8) as opened:
        assert {*opened.plans.origins} == {"prompt"}
        yield opened


def submitted(engine: Engine, prompts: list[list[int]]) -> list[Event]:
    """The ends of a request for each prompt."""
    ends = []
    for prompt in prompts:
        ends.append(end := Event())

        def listen(update: Update, end: Event = end) -> None:
            assert update.error is None
            if update.is_last:
                end.set()

        engine.submit(prompt, OPTIONS, listen)
    return ends


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_batch_makes_no_plan(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    made: list[str] = []
    with Engine(lm, prepares=True) as engine:
        assert engine.preparation is not None
        engine.start()
        engine.preparation.thread.join()
        assert {*lm.plans.origins} == {"prompt", "single", "rows", "decode.2", "decode.4", "decode.8"}
        make, sampler = ModelPlans.make, PlanCache.get
        monkeypatch.setattr(ModelPlans, "make", lambda plans, name: (made.append(name), make(plans, name))[1])
        monkeypatch.setattr(PlanCache, "get", lambda of, name, where: (made.append(name), sampler(of, name, where))[1])
        assert all(end.wait(60) for end in submitted(engine, PROMPTS[:n]))
    assert made == []


def test_without_preparation_a_batch_makes_its_plans(lm: LanguageModel) -> None:
    with Engine(lm) as engine:
        assert engine.preparation is None
        submitted(engine, PROMPTS[:2])
        while engine.n_waiting or engine.n_running:
            engine.step()
    assert {*lm.plans.origins} == {"prompt", "rows", "decode.2"}


def held(monkeypatch: pytest.MonkeyPatch, held_name: str) -> tuple[Event, Event]:
    """Two events: the plan of that name is begun, and it may be finished."""
    begun, free, cached = Event(), Event(), ModelPlans._cached_plan

    def waits(plans: ModelPlans, name: str) -> object:
        if name == held_name:
            begun.set()
            assert free.wait(60)
        return cached(plans, name)

    monkeypatch.setattr(ModelPlans, "_cached_plan", waits)
    return begun, free


def test_requests_go_on_while_a_plan_is_made(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, free = held(monkeypatch, "decode.8")
    with Engine(lm, prepares=True) as engine:
        engine.start()
        assert begun.wait(60)
        for n in (1, 2, 4):
            assert all(end.wait(60) for end in submitted(engine, PROMPTS[:n]))
        assert not free.is_set()
        (waiting,) = {*submitted(engine, PROMPTS[:6])[-1:]}
        assert not waiting.wait(0.1)  # for the plan in the making, and makes no second one
        free.set()
        assert waiting.wait(60)
    assert len({id(lm.plans._plan("decode.8")), id(lm.plans.make("decode.8"))}) == 1


def test_an_engine_that_is_closed_makes_no_further_plan(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, free = held(monkeypatch, "single")
    engine = Engine(lm, prepares=True)
    engine.start()
    assert begun.wait(60)
    closing = Thread(target=engine.close)
    closing.start()
    while engine.preparation is not None and not engine.preparation.is_closing:
        time.sleep(0.001)
    free.set()
    closing.join(60)
    assert not closing.is_alive()
    assert {*lm.plans.origins} == {"prompt", "single", "rows"}


def test_a_closed_model_gets_no_plan(lm: LanguageModel, caplog: pytest.LogCaptureFixture) -> None:
    lm.close()
    with pytest.raises(ModelError, match="the model is closed"):
        lm.plans.make("single")
    preparation = ahead(lm, speculates=False)
    with caplog.at_level(logging.WARNING):
        preparation.start()
        preparation.thread.join()
    assert "plans for several requests are not made ahead: the model" in caplog.text


def test_the_names_of_plans(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [*plan_names(lm, 1)] == ["rows", "single"]  # each prompt by the plan of several, which rounds otherwise
    monkeypatch.setattr(lm.plans, "is_uneven", False)
    assert [*plan_names(lm, 1)] == ["single"]
    assert [*plan_names(lm, 5)] == ["single", "rows", "decode.2", "decode.4", "decode.8"]
    assert [*plan_names(lm, 100)][-1] == "decode.16"
    prepare_draft(lm)
    assert {*lm.plans.origins} == {"prompt", "single", "decode.2", "decode.4", "decode.8"}
