"""Draft models in the engine: they change no answer, rest when they do not pay, and are shared by engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Semaphore, Thread
from typing import Any

import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.generate.engine import drafts
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Update
from camshaft.generate.speculation.pace import RunCosts
from tests.generate.conftest import SESSIONS
from tests.generate.engine.repeated_prompts import as_long_as_may_be, asked, opened, told
from tests.support.quick import full, quick_of


@pytest.mark.parametrize(("name", "knows"), quick_of([("llama", True), ("qwen2", False)], [("qwen2", False)]))
@pytest.mark.parametrize("sizes", [full({}, id="roomy"), pytest.param({"context": 30, "sessions": 1}, id="narrow")])
def test_a_draft_model_changes_no_answer(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, knows: bool, sizes: dict[str, int]
) -> None:
    wanted, _ = told(lm, None, 9)
    monkeypatch.setattr(drafts, "lengths", as_long_as_may_be)
    with opened(name, tmp_path, **sizes) as draft:
        got, statistics = told(lm, draft, 9)
        assert draft.plans.cache.n_free == draft.plans.cache.n_slots
    assert got == wanted
    assert statistics.drafted_tokens > (4 if sizes else 20)
    assert (statistics.accepted_tokens > statistics.drafted_tokens // 2) == knows
    assert statistics.drafting_s > 0


def test_a_draft_model_that_does_not_pay_rests(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = GenerateOptions(max_tokens=-1, sampling=Sampling(temperature=0.0), ignore_eos=True)
    monkeypatch.setattr(lm.plans, "costs", RunCosts())
    monkeypatch.setattr(RunCosts, "add", lambda self, rows, seconds: None)  # as expected: 0.3 of a run a token
    monkeypatch.setattr(RunCosts, "in_runs", lambda self, seconds: 1.0)
    with opened("qwen2", tmp_path) as draft, Engine(lm, speculate=draft, prefix_cache=False) as engine:
        assert engine.drafts_by == draft.name
        counts = []
        for i in range(6):
            engine.submit([30 + i, 31, 32], options, lambda update: None)
            while engine.n_waiting or engine.n_running:
                engine.step()
            counts.append(engine.statistics.drafted_tokens)
    assert counts[0] > 0
    assert counts[-1] - counts[0] <= 2 * 3  # two trials in 200 tokens
    assert engine.statistics.generated_tokens > 200


def test_a_draft_model_reads_within_the_budget_while_nobody_waits(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "lengths", as_long_as_may_be)
    options = GenerateOptions(max_tokens=-1, sampling=Sampling(temperature=0.0), ignore_eos=True)
    with (
        opened("llama", tmp_path) as draft,
        Engine(lm, speculate=draft, prompt_budget=4, prefix_cache=False) as engine,
    ):
        read: list[int] = []
        run = draft.plans.run

        def counted(ids: Any, *others: Any, **more: Any) -> Any:
            read.append(len(ids))
            return run(ids, *others, **more)

        monkeypatch.setattr(draft.plans, "run", counted)
        engine.submit([*range(20, 38)], options, lambda update: None)
        engine.step()
        engine.submit([*range(40, 56)], options, lambda update: None)
        for _ in range(4):  # the second prompt, in parts of 4 tokens
            assert not engine.statistics.drafted_tokens
            assert not read
            engine.step()
        while not engine.statistics.drafted_tokens:
            engine.step()
        assert sum(n > 1 for n in read) >= 4
        assert max(read) == 4
        engine.submit([*range(60, 76)], options, lambda update: None)
        drafted = engine.statistics.drafted_tokens
        for _ in range(4):
            engine.step()
        assert engine.statistics.drafted_tokens == drafted


def test_a_draft_model_reads_a_prompt_again_by_its_prefix(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "lengths", as_long_as_may_be)
    options = GenerateOptions(max_tokens=6, sampling=Sampling(temperature=0.0), ignore_eos=True)
    with opened("llama", tmp_path) as draft, Engine(lm, speculate=draft, prefix_cache=False) as engine:
        for _ in range(2):
            engine.submit([*range(20, 56)], options, lambda update: None)
            while engine.n_waiting or engine.n_running:
                engine.step()
        prefixes = draft.plans.cache.prefixes
        assert prefixes is not None
        assert prefixes.n_blocks == prefixes.n_idle == 2
        assert engine.statistics.accepted_tokens == engine.statistics.drafted_tokens > 4


def test_nobody_waits_for_the_draft_model_that_another_engine_uses(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, _ = told(lm, None, 9)
    monkeypatch.setattr(drafts, "lengths", as_long_as_may_be)
    with opened("llama", tmp_path) as draft, Engine(lm, speculate=draft, prefix_cache=False) as engine:
        updates: list[list[Update]] = [[] for _ in wanted]
        for i, each in enumerate(updates):
            engine.submit(*asked(i), each.append)
        while not engine.statistics.drafted_tokens:
            engine.step()
        drafted, free = engine.statistics.drafted_tokens, draft.plans.cache.n_free
        assert free < SESSIONS
        with _held_elsewhere(draft):
            while engine.n_waiting or engine.n_running:
                engine.step()
        assert updates == wanted
        assert (engine.statistics.drafted_tokens, draft.plans.cache.n_free) == (drafted, free)
        request = engine.submit([30, 31], GenerateOptions(max_tokens=8, ignore_eos=True), lambda update: None)
        while engine.n_waiting or engine.n_running:
            engine.step()
        assert request.drafted
        assert draft.plans.cache.n_free == SESSIONS


@contextmanager
def _held_elsewhere(lm: LanguageModel) -> Iterator[None]:
    """Another thread has the model's lock."""
    taken, over = Event(), Event()

    def hold() -> None:
        with lm.lock:
            taken.set()
            over.wait(60)

    thread = Thread(target=hold)
    thread.start()
    try:
        assert taken.wait(60)
        yield
    finally:
        over.set()
        thread.join()


def test_two_engines_draft_by_one_model(lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, _ = told(lm, None, 12)
    monkeypatch.setattr(drafts, "lengths", as_long_as_may_be)
    with opened("llama", tmp_path, sessions=3) as draft, opened("llama", tmp_path) as other:
        engines = [Engine(each, speculate=draft, prefix_cache=False) for each in (lm, other)]
        for _ in range(4):
            got: list[list[list[Update]]] = [[[] for _ in wanted] for _ in engines]
            done = [Semaphore(0) for _ in engines]
            for engine, updates, each_done in zip(engines, got, done, strict=True):
                engine.start()
                for i, each in enumerate(updates):
                    engine.submit(*asked(i), _listener(each, each_done))
            assert all(each.acquire(timeout=60) for each in done for _ in wanted)
            assert got == [wanted] * 2
        for engine in engines:
            engine.close()
            assert engine.statistics.accepted_tokens > 10
        with draft.lock:
            draft.plans.cache.close_left()
        prefixes = draft.plans.cache.prefixes
        assert prefixes is not None
        assert (draft.plans.cache.n_free, prefixes.n_blocks - prefixes.n_idle) == (3, 0)


def _listener(found: list[Update], done: Semaphore) -> Callable[[Update], None]:
    def listen(update: Update) -> None:
        found.append(update)
        if update.is_last:
            done.release()

    return listen
