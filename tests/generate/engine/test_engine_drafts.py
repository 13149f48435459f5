"""Speculation in the engine: the texts, log probabilities and ends of each request are those without drafts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.errors import SettingError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Update
from camshaft.generate.engine.statistics import Statistics
from camshaft.generate.speculation.ngram import NgramIndex
from camshaft.generate.speculation.pace import Pace
from tests.generate.conftest import CONTEXT, SESSIONS
from tests.support.fixtures import tiny_model


def asked(seed: int) -> tuple[list[int], GenerateOptions]:
    """A prompt that repeats itself, and how to go on."""
    drawn = random.Random(seed)
    ids = [drawn.randrange(30, 40) for _ in range(4)] * 4
    sampling = Sampling(temperature=drawn.choice((0, 0.7)), seed=seed, repeat_penalty=drawn.choice((1.0, 1.1)))
    logprobs, most, stop = drawn.choice((None, 2)), drawn.choice((0, 1, 7, -1)), drawn.choice(((), ("e",)))
    return ids, GenerateOptions(max_tokens=most, sampling=sampling, logprobs=logprobs, stop=stop)


def told(lm: LanguageModel, speculate: str | None, n: int) -> tuple[list[list[Update]], Statistics]:
    with Engine(lm, speculate=speculate, prefix_cache=False) as engine:
        updates: list[list[Update]] = [[] for _ in range(n)]
        for i, each in enumerate(updates):
            engine.submit(*asked(i), each.append)
        while engine.n_waiting or engine.n_running:
            engine.step()
        assert lm.plans.cache.n_free == SESSIONS
        return updates, engine.statistics


@pytest.mark.parametrize("knows", [True, False])
def test_drafts_change_no_answer(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, knows: bool) -> None:
    wanted, _ = told(lm, None, 9)
    longest = max(wanted, key=len)
    assert len(longest) > CONTEXT // 4
    # As many drafts as there may be: the tokens that come, or others.
    monkeypatch.setattr(Pace, "length", lambda self, kind, most, known, others: most)
    texts = [asked(i)[0] for i in range(9)]
    with Engine(lm) as engine:
        requests = [engine.submit(*asked(i), lambda update: None) for i in range(9)]
        while engine.n_waiting or engine.n_running:
            engine.step()
        texts = [request.ids for request in requests]

    def draft(index: NgramIndex, most: int) -> tuple[list[int], int]:
        so_far = index._tokens
        text = next(each for each in texts if each[: len(so_far)] == so_far)
        found = text[len(so_far) : len(so_far) + most] if knows else [7] * most
        return found, 2 if found else 0

    monkeypatch.setattr(NgramIndex, "draft", draft)
    got, statistics = told(lm, "ngram", 9)
    assert got == wanted
    assert statistics.drafted_tokens > 20
    assert (statistics.accepted_tokens > statistics.drafted_tokens // 2) == knows


def test_what_cannot_draft_is_refused(lm: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="speculate='model'; an engine takes 'ngram' or None"):
        Engine(lm, speculate="model")
    with (
        LanguageModel(tiny_model("mamba2", tmp_path), threads=1, context=32) as recurrent,
        pytest.raises(SettingError, match="an engine cannot check drafts of a model with recurrent layers"),
    ):
        Engine(recurrent, speculate="ngram")
