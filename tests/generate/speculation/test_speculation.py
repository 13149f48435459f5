"""Speculation: the text, its tokens and their distribution are those without it, whatever is drafted."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import Grammar, LanguageModel
from camshaft.errors import ModelError, SettingError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.generation import Generation
from camshaft.generate.options import GenerateOptions
from camshaft.generate.speculation.pace import RunCosts
from tests.generate.conftest import PlainTemplate, opened_in_f32
from tests.support.fixtures import tiny_model
from tests.support.quick import quick_of

PROMPT = [40, 7, 81, 20, 13, 40, 7, 81, 20, 13, 40, 7]
RECURRENT = quick_of(("lfm2", "mamba", "qwen35", "mamba2", "granitehybrid", "qwen3next"), ("mamba",))
CONTEXT = 96


@pytest.fixture(autouse=True)
def free_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of several tokens cost as much as one, and drafting costs nothing: each draft is checked."""
    monkeypatch.setattr(RunCosts, "of", lambda self, rows: 1.0)
    monkeypatch.setattr(RunCosts, "in_runs", lambda self, seconds: 0.0)


_opened = functools.partial(opened_in_f32, context=CONTEXT, sessions=3)


@pytest.fixture(scope="module")
def lm(tiny_folder: Path) -> Iterator[LanguageModel]:
    with _opened(tiny_model("llama", tiny_folder)) as opened:
        yield opened


@pytest.fixture(scope="module")
def twin(tiny_folder: Path) -> Iterator[LanguageModel]:
    """A draft model whose drafts are right."""
    with _opened(tiny_model("llama", tiny_folder), sessions=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def other(tiny_folder: Path) -> Iterator[LanguageModel]:
    """A draft model whose drafts are mostly wrong."""
    with _opened(tiny_model("qwen2", tiny_folder), sessions=1) as opened:
        yield opened


@pytest.fixture(params=["ngram", "twin", "other"])
def speculate(request: pytest.FixtureRequest) -> Any:
    return request.param if request.param == "ngram" else request.getfixturevalue(request.param)


def _all(generation: Generation) -> tuple[str, list[int], str | None, list[Any]]:
    text = "".join(generation)
    return text, generation.ids, generation.finish_reason, generation.logprobs


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seed": {"seed": 3, "temperature": 0.7},
    "few": {"seed": 3, "max_tokens": 5},
    "one": {"seed": 3, "max_tokens": 1},
    "penalties": {"temperature": 0.0, "repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "dry": {"seed": 1, "dry_multiplier": 0.8},
    "mirostat": {"seed": 2, "mirostat": 2},
    "xtc": {"seed": 2, "xtc_probability": 0.5, "xtc_threshold": 0.01},
    "logprobs": {"seed": 4, "top_k": 2, "logprobs": 3},
    "full": {"temperature": 0.0, "max_tokens": -1, "ignore_eos": True},
}


@pytest.mark.parametrize("name", quick_of(OPTIONS, ("greedy", "seed", "one", "penalties", "logprobs")))
def test_equal_options_give_equal_tokens(lm: LanguageModel, speculate: Any, name: str) -> None:
    options = {"max_tokens": 40} | OPTIONS[name]
    plain = _all(lm.generate(PROMPT, **options))
    generation = lm.generate(PROMPT, **options, speculate=speculate)
    assert _all(generation) == plain
    counts = generation.speculation
    assert counts is not None
    assert 0 <= counts.accepted <= counts.drafted
    assert counts.runs <= counts.drafted


def test_right_drafts_are_all_accepted(lm: LanguageModel, twin: LanguageModel) -> None:
    for options in ({"temperature": 0.0}, {"seed": 5, "temperature": 1.5, "top_k": 0}):
        generation = lm.generate(PROMPT, max_tokens=33, ignore_eos=True, **options, speculate=twin)
        _all(generation)
        assert generation.speculation is not None
        assert generation.speculation.kind == twin.name
        assert generation.speculation.drafted == generation.speculation.accepted >= 27  # 32 in runs of up to 1 + 7
        assert generation.speculation.runs <= 5
        assert generation.speculation.acceptance == 1.0


def test_a_stop_string_inside_accepted_drafts_ends_the_text(lm: LanguageModel, speculate: Any) -> None:
    text, ids, *_ = _all(lm.generate(PROMPT, temperature=0.0, max_tokens=40))
    stop = text[len(text) // 2 :][:3]
    plain = _all(lm.generate(PROMPT, temperature=0.0, max_tokens=40, stop=stop))
    assert _all(lm.generate(PROMPT, temperature=0.0, max_tokens=40, stop=stop, speculate=speculate)) == plain
    assert len(plain[1]) < len(ids)


def test_a_grammar_holds(lm: LanguageModel, speculate: Any) -> None:
    pytest.importorskip("llguidance")
    grammar = Grammar.regex("(abc|de ){3,9}")
    for seed in range(3):
        plain = _all(lm.generate(PROMPT, grammar=grammar, seed=seed))
        assert _all(lm.generate(PROMPT, grammar=grammar, seed=seed, speculate=speculate)) == plain


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_states_go_back_to_rejected_drafts(tiny_folder: Path, name: str) -> None:
    with _opened(tiny_model(name, tiny_folder)) as lm, _opened(tiny_model(name, tiny_folder)) as twin:
        for options in ({"temperature": 0.0, "repeat_penalty": 1.1}, {"seed": 1, "top_k": 3}, {"seed": 2}):
            few = {"logit_bias": dict.fromkeys(PROMPT, 50), "max_tokens": 60, "ignore_eos": True} | options
            plain = _all(lm.generate(PROMPT, **few))
            for drafts in ("ngram", twin):
                generation = lm.generate(PROMPT, **few, speculate=drafts)
                assert _all(generation) == plain
                assert generation.speculation is not None
                assert generation.speculation.drafted
        with lm.session() as session, lm.session() as wanted:
            _all(session.generate(PROMPT, seed=2, max_tokens=9, speculate="ngram"))
            _all(wanted.generate(PROMPT, seed=2, max_tokens=9))
            assert session.tokens == wanted.tokens
            np.testing.assert_allclose(session.process([3, 4]), wanted.process([3, 4]), atol=1e-3)


@pytest.mark.full
def test_a_recurrent_session_goes_back_to_its_copies_after_speculation(tiny_folder: Path) -> None:
    with _opened(tiny_model("lfm2", tiny_folder)) as lm, lm.session() as session:
        _all(session.generate(PROMPT, seed=2, max_tokens=20, speculate="ngram"))
        session.rewind(len(PROMPT))
        assert session.position == len(PROMPT)  # the end of the prompt, not its beginning
        tokens = session.tokens
        np.testing.assert_allclose(session.process([5])[0], lm.logits([*tokens, 5])[-1], atol=1e-3)


def test_other_sessions_may_run_between_the_tokens(lm: LanguageModel, speculate: Any) -> None:
    plain = _all(lm.generate(PROMPT, temperature=0.0, max_tokens=24))
    generation = lm.generate(PROMPT, temperature=0.0, max_tokens=24, speculate=speculate)
    for i, _ in enumerate(generation):
        if i % 3 == 0:
            lm.logits([9, 8, 7])
    assert (generation.text, generation.ids) == plain[:2]


def test_a_session_is_as_without_speculation_after_each_token(lm: LanguageModel, twin: LanguageModel) -> None:
    with lm.session() as session, lm.session() as wanted:
        generation = session.generate(PROMPT, seed=1, max_tokens=20, speculate=twin)
        plain = wanted.generate(PROMPT, seed=1, max_tokens=20)
        for _ in range(6):
            assert (generation.advance(), session.tokens) == (plain.advance(), wanted.tokens)
            assert session.position == wanted.position
        assert np.array_equal(session.process([1, 2]), wanted.process([1, 2]))
        session.rewind(8)
        wanted.rewind(8)
        again = session.generate([3], seed=2, max_tokens=8, speculate=twin)
        assert _all(again) == _all(wanted.generate([3], seed=2, max_tokens=8))
        assert session.tokens == wanted.tokens


def test_tokens_follow_the_models_distribution(lm: LanguageModel, other: LanguageModel) -> None:
    """Chi-squared of the third token, among the four that top_k keeps, after a prompt that both kinds of drafts go on with."""
    prompt = [40, 7, 81, 20, 13, 40, 7]
    drawn: dict[Any, list[int]] = {"ngram": [], other: []}
    logits = lm.logits([*prompt])[-1].astype(np.float64)
    best = np.argsort(-logits)[:4]
    first = np.exp(logits[best] - logits[best].max())
    wanted: dict[int, float] = {}
    for token, share in zip(best, first / first.sum(), strict=True):
        following = lm.logits([*prompt, int(token)])[-1].astype(np.float64)
        kept = np.argsort(-following)[:4]
        shares = np.exp(following[kept] - following[kept].max())
        for i, p in zip(kept, shares / shares.sum(), strict=True):
            wanted[int(i)] = wanted.get(int(i), 0.0) + share * p
    n = 400
    for drafts, found in drawn.items():
        for seed in range(n):
            generation = lm.generate(prompt, seed=seed, top_k=4, top_p=1.0, temperature=1.0, max_tokens=2,
                                     ignore_eos=True, speculate=drafts)  # fmt: skip
            found.append(_all(generation)[1][1])
        counts = {i: found.count(i) for i in wanted}
        assert sum(counts.values()) == n
        statistic = sum((counts[i] - n * p) ** 2 / (n * p) for i, p in wanted.items())
        degrees = len(wanted) - 1
        assert statistic < degrees + 4 * np.sqrt(2 * degrees), (drafts, counts, wanted)


def test_a_conversation_drafts_over_its_turns(tiny_folder: Path, twin: LanguageModel) -> None:
    with _opened(tiny_model("llama", tiny_folder), context=64) as lm:
        lm.chat_template = PlainTemplate()  # type: ignore[misc, assignment]
        talks = [lm.conversation(seed=1, max_tokens=12, speculate=kind) for kind in (None, "ngram", twin)]
        for said in ("ab ab ab", "cd", "ab ab"):
            answers = [_all(talk.say(said))[:3] for talk in talks]
            assert answers[1:] == answers[:1] * 2
        assert talks[1].dropped == talks[0].dropped
        for talk in talks:
            talk.close()


def test_threads_share_a_draft_model_with_one_slot(lm: LanguageModel, twin: LanguageModel) -> None:
    plain = _all(lm.generate(PROMPT, seed=1, max_tokens=20))
    found: list[Any] = []

    def run() -> None:
        found.append(_all(lm.generate(PROMPT, seed=1, max_tokens=20, speculate=twin)))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [plain] * 3


def test_two_models_draft_for_each_other(lm: LanguageModel, twin: LanguageModel) -> None:
    wanted = _all(lm.generate(PROMPT, seed=1, max_tokens=20))
    found: list[Any] = []

    def run(of: LanguageModel, draft: LanguageModel) -> None:
        for _ in range(6):
            found.append(_all(of.generate(PROMPT, seed=1, max_tokens=20, speculate=draft)))

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in ((lm, twin), (twin, lm))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [wanted] * 12


@pytest.mark.full
def test_what_cannot_draft_is_refused(lm: LanguageModel, tiny_folder: Path) -> None:
    with pytest.raises(
        SettingError, match=r"speculate='twice': wanted 'auto', 'ngram', an open camshaft.LanguageModel or None"
    ):
        lm.generate(PROMPT, speculate="twice")
    with pytest.raises(SettingError, match="a batch got speculate='ngram'; wanted None"):
        lm.generate_batch([PROMPT], speculate="ngram")
    with Engine(lm) as engine, pytest.raises(SettingError, match="the engine got speculate='ngram'"):
        engine.submit(PROMPT, GenerateOptions(speculate="ngram"), lambda update: None)
    with _opened(tiny_model("gpt2", tiny_folder)) as foreign:
        vocabulary = foreign.tokenizer.vocabulary
        foreign.tokenizer.vocabulary = replace(vocabulary, tokens=[*vocabulary.tokens[:-1], "another"])
        with pytest.raises(ModelError, match="has another vocabulary"):
            lm.generate(PROMPT, speculate=foreign)
    closed = _opened(tiny_model("llama", tiny_folder))
    closed.close()
    with pytest.raises(ModelError, match="is closed"):
        _all(lm.generate(PROMPT, speculate=closed))
