"""Sessions, generations and models that are closed, dropped or abandoned give back places and memory, and say so when used."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import ContextError, ModelError
from tests.generate.conftest import CONTEXT, SESSIONS
from tests.generate.sessions.prompts import GREEDY, A, B, generated


def test_more_sessions_than_places_are_refused_and_a_closed_one_makes_room(lm: LanguageModel) -> None:
    held = [lm.session() for _ in range(SESSIONS)]
    for refused in (lm.session, lambda: next(lm.generate(A)), lambda: lm.logits(A)):
        with pytest.raises(ContextError, match=f"all {SESSIONS} sessions"):
            refused()
    held.pop().close()
    assert len(generated(lm, A, 2)) == 2
    for session in held:
        session.close()
        session.close()


def test_full_contexts_come_back_when_sessions_close(lm: LanguageModel) -> None:
    ids = (A * 5)[:CONTEXT]
    wanted = lm.logits(ids)
    for _ in range(4):
        sessions = [lm.session() for _ in range(SESSIONS)]
        for session in reversed(sessions):
            np.testing.assert_allclose(session.process(ids)[0], wanted[-1], atol=2e-5)
        for session in sessions:
            session.close()


def test_a_session_that_is_dropped_gives_its_place_back(lm: LanguageModel) -> None:
    gc.disable()
    try:
        for _ in range(2 * SESSIONS):
            lm.session().process(A)
    finally:
        gc.enable()


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_generation_that_is_abandoned_gives_its_place_back(lm: LanguageModel, taken: int) -> None:
    gc.disable()
    try:
        for _ in range(2 * SESSIONS):
            generation = lm.generate(A, max_tokens=8, sampling=GREEDY, ignore_eos=True)
            for _ in range(taken):
                next(generation)
            del generation
    finally:
        gc.enable()


@pytest.mark.parametrize("taken", [0, 2])
def test_a_generation_that_is_closed_has_no_finish_reason_and_says_no_more(lm: LanguageModel, taken: int) -> None:
    generations = [lm.generate(A, max_tokens=8, sampling=GREEDY, ignore_eos=True) for _ in range(SESSIONS)]
    for generation in generations:
        for _ in range(taken):
            next(generation)
        generation.close()
        generation.close()
        assert list(generation) == []
        assert generation.finish_reason is None
    assert len(generated(lm, A, 2)) == 2


def test_a_closed_session_says_so(lm: LanguageModel) -> None:
    with lm.session() as session:
        generation = session.generate(A, max_tokens=4, sampling=GREEDY, ignore_eos=True)
        next(generation)
    other = lm.session()  # has the same place now
    for use in (lambda: next(generation), lambda: session.generate(B), lambda: session.process(B)):
        with pytest.raises(ContextError, match="the session is closed"):
            use()
    assert other.position == 0
    other.close()


def test_a_closed_model_says_so(tiny_path: Path) -> None:
    lm = LanguageModel(tiny_path, threads=1, context=CONTEXT)
    session = lm.session()
    generation = lm.generate(A, max_tokens=4, ignore_eos=True)
    next(generation)
    lm.close()
    lm.close()
    for use in (
        lambda: lm.generate(A),
        lambda: lm.logits(A),
        lm.session,
        lambda: session.generate(A),
        lambda: next(generation),
    ):
        with pytest.raises(ModelError, match=r"the model .*llama\.gguf is closed"):
            use()
    session.close()


def test_a_session_that_closes_while_another_takes_a_block_keeps_both_apart(lm: LanguageModel) -> None:
    cache = lm.plans.cache

    class Closing(list[int]):
        """Free blocks; a session is closed, as the garbage collector might, whenever the last one is looked at."""

        def __getitem__(self, index: object) -> object:
            block = super().__getitem__(index)  # type: ignore[call-overload]
            other.close()
            return block

    with lm.session() as session:
        other = lm.session()
        other.process(B)
        cache._free_blocks, before = Closing(cache._free_blocks), cache._free_blocks
        session.process(A)
        assert cache.states["block_table"][session._slot, 0] == cache._blocks[session._slot][0]
        assert cache._blocks[session._slot][0] not in list(cache._free_blocks)
        cache._free_blocks = list(cache._free_blocks)
        other.close()
    assert sorted(cache._free_blocks) == sorted({*before, *cache._free_blocks})


def test_a_closed_model_holds_no_weights_and_no_cache(tiny_path: Path) -> None:
    lm = LanguageModel(tiny_path, threads=1, context=CONTEXT)
    session = lm.session()
    session.process(A)
    memory = [
        weakref.ref(lm.plans.cache.states["keys.0"].base),
        weakref.ref(next(iter(lm.plans.weights._loaded.values())).base),
    ]
    lm.close()
    session.close()
    assert [kept() for kept in memory] == [None, None]


def test_room_asked_for_in_a_closed_slot_is_refused(lm: LanguageModel) -> None:
    cache = lm.plans.cache
    slot = cache.open_slot()
    cache.close_slot(slot)
    with pytest.raises(ContextError, match="the session is closed"):
        cache.reserve(slot, 1)


def test_a_closed_model_whose_template_was_never_read_says_that_it_is_closed(tiny_path: Path) -> None:
    model = LanguageModel(tiny_path, threads=1, context=CONTEXT)
    model.close()
    for call in (lambda: model.generate("a message"), model.describe_plan):
        with pytest.raises(ModelError, match="is closed"):
            call()
