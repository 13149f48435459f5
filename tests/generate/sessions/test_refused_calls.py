"""Prompts, tokens, options and sizes that a model cannot use are refused in one line, before anything runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import ContextError, SettingError
from tests.generate.conftest import CONTEXT, SESSIONS
from tests.generate.sessions.prompts import A, B, CountedRuns


def test_a_prompt_longer_than_the_context_is_refused_before_anything_runs(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = CountedRuns(lm, monkeypatch)
    for call in (lm.generate, lm.logits):
        with pytest.raises(ContextError, match=rf"{CONTEXT + 1} tokens.* {CONTEXT}"):
            call([5] * (CONTEXT + 1))
    with lm.session() as session:
        session.process(A)
        with pytest.raises(ContextError, match=f"after {len(A)} already in the session"):
            session.generate([5] * (CONTEXT - 5))
    assert counted.tokens == [len(A)]


def test_an_empty_prompt_is_refused(lm: LanguageModel) -> None:
    for call in (lm.generate, lm.logits, lambda prompt: lm.generate("", raw=True)):
        with pytest.raises(ContextError, match="empty"):
            call([])


@pytest.mark.parametrize("wrong", [-1, 10**6, 1.5, "7", None, True])
def test_a_token_that_the_vocabulary_does_not_have_is_named(lm: LanguageModel, wrong: object) -> None:
    for call in (lm.generate, lm.logits):
        with pytest.raises(ContextError, match=r"token id .*wanted a whole number from 0 to") as caught:
            call([5, wrong])
        assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize("chunk", [0, -1, 10**6])
def test_a_chunk_that_no_run_holds_is_refused(lm: LanguageModel, chunk: int) -> None:
    with pytest.raises(SettingError, match=f"chunk {chunk}"):
        lm.logits(A, chunk=chunk)


def test_prompts_of_a_batch_may_be_any_iterable_and_bytes_are_no_token_ids(lm: LanguageModel) -> None:
    assert len(lm.generate_batch((ids for ids in (A, B)), max_tokens=1).generations) == 2
    with pytest.raises(SettingError, match="the prompt came as bytes"):
        lm.generate(b"a message")  # type: ignore[arg-type]


def test_more_memory_than_there_is_is_refused_before_anything_as_long_is_made(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*sizes: int) -> np.ndarray:
        raise MemoryError

    def data(rope: object) -> np.ndarray:
        raise AssertionError("the rotations were made")

    monkeypatch.setattr("camshaft.generate.memory.kv_cache.late_huge_pages", none_left)
    monkeypatch.setattr("camshaft.models.rope_scaling.Rotations.data", data)
    for most in (1, 1 << 40):
        monkeypatch.setattr("camshaft.generate.memory.kv_cache.EAGER_FROM_BLOCKS", most)
        with pytest.raises(ContextError, match=f"no memory for 2 sessions of {CONTEXT} tokens"):
            LanguageModel(tiny_path, threads=2, context=CONTEXT, sessions=2)


@pytest.mark.parametrize(
    "given", [{"context": "8"}, {"context": 8.0}, {"sessions": None}, {"sessions": True}, {"context": 0}]
)
def test_numbers_that_are_none_are_refused(tiny_path: Path, given: dict[str, object]) -> None:
    with pytest.raises(SettingError, match="wanted whole numbers from 1 up"):
        LanguageModel(tiny_path, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "given", "said"),
    [
        ([5], {"max_tokens": "3"}, "max_tokens='3': wanted a whole number"),
        ([5], {"max_tokens": -2}, "max_tokens=-2: wanted a whole number"),
        ([5], {"sampling": {"greedy": True}}, "sampling={'greedy': True}: wanted a camshaft.Sampling"),
        (None, {}, "generate got neither a prompt nor messages"),
    ],
)
def test_what_generate_cannot_use_is_refused_in_a_line(
    lm: LanguageModel, prompt: object, given: dict[str, object], said: str
) -> None:
    with pytest.raises(SettingError, match=said):
        list(lm.generate(prompt, **given))  # type: ignore[arg-type]
    assert lm.plans.cache.n_free == SESSIONS
