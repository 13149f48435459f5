"""Sessions keep their own tokens, process only new ones and release their slots."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel, Sampling
from camshaft.errors import ContextError, ModelError, SettingError
from tests.generate.conftest import CONTEXT, SESSIONS

GREEDY = Sampling(greedy=True)
A = [40, 7, 81, 200, 13, 99, 3, 150, 61, 44]
B = [9, 9, 120, 33, 250, 18, 77, 5, 6, 31, 222, 101, 64]


def _generated(lm: LanguageModel, prompt: Sequence[int], n: int, sampling: Sampling = GREEDY) -> list[int]:
    generation = lm.generate(prompt, max_tokens=n, sampling=sampling, ignore_eos=True)
    list(generation)
    return generation.ids


class CountedRuns:
    """How many tokens each run of a model was given."""

    def __init__(self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens: list[int] = []
        run = lm.plans.run

        def counted(ids: Sequence[int], *rest: Sequence[int], **how: bool) -> np.ndarray:
            self.tokens.append(len(ids))
            return run(ids, *rest, **how)

        monkeypatch.setattr(lm.plans, "run", counted)


def test_interleaved_sessions_say_what_each_says_alone(lm: LanguageModel) -> None:
    alone = [_generated(lm, prompt, 12) for prompt in (A, B)]
    with lm.session() as first, lm.session() as second:
        both = [
            first.generate(A, max_tokens=12, sampling=GREEDY, ignore_eos=True),
            second.generate(B, max_tokens=12, sampling=GREEDY, ignore_eos=True),
        ]
        running = True
        while running:
            running = [next(generation, None) for generation in both] != [None, None]
    assert [generation.ids for generation in both] == alone


def test_a_session_goes_back_and_is_copied(lm: LanguageModel) -> None:
    with lm.session() as session:
        session.process(A)
        session.rewind(4)
        with session.copy() as other:
            assert other.tokens == session.tokens == A[:4]
            np.testing.assert_allclose(other.process(B), lm.logits([*A[:4], *B])[-1:], atol=2e-5)
            with lm.session(), pytest.raises(ContextError, match="all 3 sessions"):
                session.copy()
        np.testing.assert_allclose(session.process(A[4:]), lm.logits(A)[-1:], atol=2e-5)


def test_a_batch_of_two_sequences_gives_what_each_gives_alone(lm: LanguageModel) -> None:
    wanted = np.concatenate([lm.logits(A), lm.logits(B)])
    cache = lm.plans.cache
    slots = cache.open_slot(), cache.open_slot()
    tokens = [(i, p, slot) for slot, ids in zip(slots, (A, B), strict=True) for p, i in enumerate(ids)]
    # Taken by turns, so that neighbours are of different sequences.
    order = sorted(range(len(tokens)), key=lambda at: (tokens[at][1], tokens[at][2]))
    for slot, ids in zip(slots, (A, B), strict=True):
        cache.reserve(slot, len(ids))
    ids, positions, owners = zip(*(tokens[at] for at in order), strict=True)
    logits = lm.plans.run(ids, positions, owners, range(len(ids))).copy()
    for slot in slots:
        cache.close_slot(slot)
    np.testing.assert_allclose(logits, wanted[order], atol=2e-5)


def test_rows_that_nobody_wants_are_not_computed(lm: LanguageModel) -> None:
    wanted = lm.logits(A)
    slot = lm.plans.cache.open_slot()
    lm.plans.cache.reserve(slot, len(A))
    some = lm.plans.run(A, range(len(A)), [slot] * len(A), [9, 2]).copy()
    lm.plans.cache.close_slot(slot)
    assert some.shape == (2, lm.config.vocab_size)
    np.testing.assert_allclose(some, wanted[[9, 2]], atol=2e-5)


def test_a_turn_processes_only_what_is_new(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = CountedRuns(lm, monkeypatch)
    with lm.session() as session:
        first = session.generate(A, max_tokens=3, sampling=GREEDY, ignore_eos=True)
        list(first)
        assert counted.tokens == [len(A), 1, 1]
        second = session.generate(B, max_tokens=2, sampling=GREEDY, ignore_eos=True)
        list(second)
        # The third token was sampled and shown, and is processed with the next turn.
        assert counted.tokens == [len(A), 1, 1, 1 + len(B), 1]
        assert session.position == len(A) + 3 + len(B) + 1
        assert session.history == [*A, *first.ids, *B, *second.ids[:1]]
    assert second.ids == _generated(lm, [*A, *first.ids, *B], 2)
    assert second.prompt_tokens == len(B)


def test_a_prompt_that_generates_nothing_is_kept_for_the_next_turn(lm: LanguageModel) -> None:
    with lm.session() as session:
        silent = session.generate(A, max_tokens=0, sampling=GREEDY)
        assert (list(silent), silent.finish_reason, silent.tokens) == ([], "length", 0)
        loud = session.generate(B, max_tokens=4, sampling=GREEDY, ignore_eos=True)
        list(loud)
    assert loud.ids == _generated(lm, [*A, *B], 4)


def test_an_earlier_generation_ends_when_its_session_begins_another(lm: LanguageModel) -> None:
    with lm.session() as session:
        first = session.generate(A, max_tokens=4, sampling=GREEDY, ignore_eos=True)
        next(first)
        second = session.generate(B, max_tokens=2, sampling=GREEDY, ignore_eos=True)
        with pytest.raises(ContextError, match="started another"):
            list(first)
        list(second)
    assert second.ids == _generated(lm, [*A, *first.ids, *B], 2)


def test_more_sessions_than_places_are_refused_and_a_closed_one_makes_room(lm: LanguageModel) -> None:
    held = [lm.session() for _ in range(SESSIONS)]
    for refused in (lm.session, lambda: next(lm.generate(A)), lambda: lm.logits(A)):
        with pytest.raises(ContextError, match=f"all {SESSIONS} sessions"):
            refused()
    held.pop().close()
    assert len(_generated(lm, A, 2)) == 2
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
    assert len(_generated(lm, A, 2)) == 2


def test_the_context_is_filled_to_the_last_token_and_no_further(lm: LanguageModel) -> None:
    for most in (1000, -1):
        generation = lm.generate(A, max_tokens=most, sampling=GREEDY, ignore_eos=True)
        list(generation)
        assert generation.finish_reason == "length"
    assert len(A) + generation.tokens == CONTEXT + 1  # the last one was sampled and never processed


def test_a_prompt_as_long_as_the_context_gives_one_token(lm: LanguageModel) -> None:
    assert len(_generated(lm, (A * 5)[:CONTEXT], 1)) == 1


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


def test_numpy_tokens_are_tokens(lm: LanguageModel) -> None:
    np.testing.assert_array_equal(lm.logits(np.array(A, np.int32)), lm.logits(A))  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [0, -1, 10**6])
def test_a_chunk_that_no_run_holds_is_refused(lm: LanguageModel, chunk: int) -> None:
    with pytest.raises(SettingError, match=f"chunk {chunk}"):
        lm.logits(A, chunk=chunk)


@pytest.mark.parametrize("chunk", [1, 3, 10, 48])
def test_chunks_of_any_size_agree(lm: LanguageModel, chunk: int) -> None:
    np.testing.assert_allclose(lm.logits(A, chunk=chunk), lm.logits(A), atol=2e-5)


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


def test_two_python_threads_say_what_each_says_alone(lm: LanguageModel) -> None:
    samplings = Sampling(temperature=1.5, top_k=0, seed=1), Sampling(temperature=0.2, top_p=0.5, seed=2)
    prompts = A, B
    wanted = [[_generated(lm, p, 16, s) for _ in range(6)] for p, s in zip(prompts, samplings, strict=True)]
    got: list[list[list[int]]] = [[], []]

    def work(index: int) -> None:
        for _ in range(6):
            got[index].append(_generated(lm, prompts[index], 16, samplings[index]))

    runners = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    assert got == wanted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_another_thread_holds_the_model_leaves_the_child_a_working_one(lm: LanguageModel) -> None:
    before = lm.logits(A)
    with lm.lock:  # of this thread: the child's is another
        code: list[int] = []
        thread = threading.Thread(target=lambda: code.append(_logits_in_a_child(lm, before)))
        thread.start()
        thread.join()
    assert code == [0]


def _logits_in_a_child(lm: LanguageModel, wanted: np.ndarray) -> int:
    """0 where a forked child gets the same logits, 1 where it gets others, else the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        os._exit(0 if np.array_equal(lm.logits(A), wanted) else 1)
    return os.waitpid(pid, 0)[1]


def test_tokens_put_in_by_hand_come_after_those_that_wait(lm: LanguageModel) -> None:
    with lm.session() as session:
        first = session.generate(A, max_tokens=3, sampling=GREEDY, ignore_eos=True)
        list(first)
        logits = session.process(B)[-1]
        assert session.history == [*A, *first.ids, *B]
    np.testing.assert_allclose(logits, lm.logits([*A, *first.ids, *B])[-1], atol=2e-4)


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
