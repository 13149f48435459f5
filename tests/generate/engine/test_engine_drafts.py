"""Speculation in the engine: the texts, log probabilities and ends of each request are those without drafts."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from camshaft import LanguageModel
from camshaft.errors import ModelError, SettingError
from camshaft.generate.engine import drafts
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Request, Update
from camshaft.generate.speculation.ngram import NgramIndex
from tests.generate.conftest import CONTEXT, SESSIONS
from tests.generate.engine.repeated_prompts import as_long_as_may_be, asked, opened, told


@pytest.mark.parametrize("knows", [True, False])
def test_drafts_change_no_answer(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, knows: bool) -> None:
    wanted, _ = told(lm, None, 9)
    longest = max(wanted, key=len)
    assert len(longest) > CONTEXT // 4
    # As many drafts as there may be: the tokens that come, or others.
    monkeypatch.setattr(drafts, "lengths", as_long_as_may_be)
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
    with pytest.raises(
        SettingError, match="speculate='model'; an engine takes 'auto', 'ngram', an open LanguageModel or None"
    ):
        Engine(lm, speculate="model")
    with pytest.raises(SettingError, match="is the model itself; wanted a smaller one"):
        Engine(lm, speculate=lm)
    with opened("mamba2", tmp_path) as recurrent:
        with pytest.raises(SettingError, match="an engine cannot check drafts of a model with recurrent layers"):
            Engine(recurrent, speculate="ngram")
        with pytest.raises(SettingError, match="in an engine a model with recurrent layers cannot draft"):
            Engine(lm, speculate=recurrent)
        vocabulary = recurrent.tokenizer.vocabulary
        recurrent.tokenizer.vocabulary = replace(vocabulary, tokens=[*vocabulary.tokens[:-1], "another"])
        with pytest.raises(ModelError, match="has another vocabulary"):
            Engine(lm, speculate=recurrent)


def test_requests_that_come_and_go_get_the_answers_without_drafts(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted, _ = told(lm, None, 12)
    monkeypatch.setattr(drafts, "lengths", as_long_as_may_be)
    drawn = random.Random(0)
    with opened("llama", tmp_path, sessions=2) as draft, Engine(lm, speculate=draft) as engine:
        open_: dict[int, Request] = {}
        got: list[list[Update]] = [[] for _ in wanted]
        for i in drawn.choices(range(12), k=60):
            if i in open_ and drawn.random() < 0.5:
                engine.cancel(open_.pop(i))
            for _ in range(drawn.randrange(3)):
                engine.step()
            if i not in open_:
                got[i].clear()
                open_[i] = engine.submit(*asked(i), got[i].append)
        while engine.n_waiting or engine.n_running:
            engine.step()
        assert engine.statistics.ended["cancelled"] > 2
        assert engine.statistics.accepted_tokens > 10
        assert [got[i] for i in open_] == [wanted[i] for i in open_]
        assert len(open_) > 6
        assert (draft.plans.cache.n_free, lm.plans.cache.n_free) == (2, SESSIONS)
        assert engine.statistics.ended["error"] == 0
    lm.plans.cache.prefixes = None
