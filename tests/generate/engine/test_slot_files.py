"""Prompts of slots in files: other requests go on while a file is slow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.errors import ContextError, SlotsInUseError
from camshaft.generate.engine import slot_files
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Update
from camshaft.generate.stored.prompt_cache import PromptCache
from camshaft.generate.stored.prompt_file import PromptFile
from tests.generate.conftest import SESSIONS

PROMPT = list(range(20, 56))
OPTIONS = GenerateOptions(max_tokens=4, sampling=Sampling(temperature=0.0), ignore_eos=True)


@pytest.fixture
def engine(lm: LanguageModel) -> Iterator[Engine]:
    with Engine(lm) as made:
        made.start()
        yield made
    lm.plans.cache.prefixes = None


def answer(engine: Engine, ids: list[int]) -> int:
    """Wait for an answer; returns the slot that it had."""
    ended = threading.Event()

    def listener(update: Update) -> None:
        if update.is_last:
            ended.set()

    engine.submit(ids, OPTIONS, listener)
    assert ended.wait(60)
    return next(slot for slot, prompt in engine.last_prompts.items() if prompt == ids)


@pytest.mark.parametrize("action", ["save", "restore"])
def test_another_stream_goes_on_while_a_file_is_slow(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    path, slot = tmp_path / "slot", answer(engine, PROMPT)
    assert slot_files.save(engine, slot, path) == 32
    begun, answered = threading.Event(), threading.Event()

    def slow(real: Callable[..., Any]) -> Callable[..., Any]:
        def work(*given: Any) -> Any:
            begun.set()
            assert answered.wait(60), "the other stream had to wait for the file"
            return real(*given)

        return work

    for kind, name in ((PromptCache, "write"), (PromptFile, "blocks")):
        monkeypatch.setattr(kind, name, slow(getattr(kind, name)))
    done: list[int] = []
    work = threading.Thread(target=lambda: done.append(getattr(slot_files, action)(engine, slot, path)))
    work.start()
    assert begun.wait(60)
    answer(engine, [7, 8, 9])
    answered.set()
    work.join()
    assert done == [32]


def test_a_prompt_that_changes_while_its_file_is_written_is_saved_as_it_was(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, write = answer(engine, PROMPT), PromptCache.write
    slot_files.save(engine, slot, tmp_path / "before")

    def after_others(self: PromptCache, *given: Any) -> None:
        slot_files.erase(engine, slot)
        for first in range(100, 100 + 3 * SESSIONS, 3):  # over the blocks that are free now
            answer(engine, list(range(first, first + 40)))
        write(self, *given)

    monkeypatch.setattr(PromptCache, "write", after_others)
    engine.last_prompts[slot] = PROMPT
    slot_files.save(engine, slot, tmp_path / "after")
    assert (tmp_path / "after").read_bytes() == (tmp_path / "before").read_bytes()


def test_sessions_in_use_are_told_from_a_prompt_that_is_gone(engine: Engine, tmp_path: Path) -> None:
    slot, cache = answer(engine, PROMPT), engine.lm.plans.cache
    taken = [cache.open_slot() for _ in range(SESSIONS)]
    with pytest.raises(SlotsInUseError, match="all 3 sessions"):
        slot_files.save(engine, slot, tmp_path / "slot")
    for each in taken:
        cache.close_slot(each)
    slot_files.erase(engine, slot)
    engine.last_prompts[slot] = PROMPT
    with pytest.raises(ContextError, match="is not in the cache") as caught:
        slot_files.save(engine, slot, tmp_path / "slot")
    assert not isinstance(caught.value, SlotsInUseError)
