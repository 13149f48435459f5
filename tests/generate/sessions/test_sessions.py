"""Sessions keep their own tokens and process only new ones, beside others and in batches."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from camshaft import LanguageModel, Sampling
from camshaft.errors import ContextError
from tests.generate.conftest import CONTEXT
from tests.generate.sessions.prompts import GREEDY, A, B, CountedRuns, generated


def test_interleaved_sessions_say_what_each_says_alone(lm: LanguageModel) -> None:
    alone = [generated(lm, prompt, 12) for prompt in (A, B)]
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
    assert second.ids == generated(lm, [*A, *first.ids, *B], 2)
    assert second.prompt_tokens == len(B)


def test_a_prompt_that_generates_nothing_is_kept_for_the_next_turn(lm: LanguageModel) -> None:
    with lm.session() as session:
        silent = session.generate(A, max_tokens=0, sampling=GREEDY)
        assert (list(silent), silent.finish_reason, silent.tokens) == ([], "length", 0)
        loud = session.generate(B, max_tokens=4, sampling=GREEDY, ignore_eos=True)
        list(loud)
    assert loud.ids == generated(lm, [*A, *B], 4)


def test_an_earlier_generation_ends_when_its_session_begins_another(lm: LanguageModel) -> None:
    with lm.session() as session:
        first = session.generate(A, max_tokens=4, sampling=GREEDY, ignore_eos=True)
        next(first)
        second = session.generate(B, max_tokens=2, sampling=GREEDY, ignore_eos=True)
        with pytest.raises(ContextError, match="started another"):
            list(first)
        list(second)
    assert second.ids == generated(lm, [*A, *first.ids, *B], 2)


def test_the_context_is_filled_to_the_last_token_and_no_further(lm: LanguageModel) -> None:
    for most in (1000, -1):
        generation = lm.generate(A, max_tokens=most, sampling=GREEDY, ignore_eos=True)
        list(generation)
        assert generation.finish_reason == "length"
    assert len(A) + generation.tokens == CONTEXT + 1  # the last one was sampled and never processed


def test_a_prompt_as_long_as_the_context_gives_one_token(lm: LanguageModel) -> None:
    assert len(generated(lm, (A * 5)[:CONTEXT], 1)) == 1


def test_numpy_tokens_are_tokens(lm: LanguageModel) -> None:
    np.testing.assert_array_equal(lm.logits(np.array(A, np.int32)), lm.logits(A))  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [1, 3, 10, 48])
def test_chunks_of_any_size_agree(lm: LanguageModel, chunk: int) -> None:
    np.testing.assert_allclose(lm.logits(A, chunk=chunk), lm.logits(A), atol=2e-5)


def test_two_python_threads_say_what_each_says_alone(lm: LanguageModel) -> None:
    samplings = Sampling(temperature=1.5, top_k=0, seed=1), Sampling(temperature=0.2, top_p=0.5, seed=2)
    prompts = A, B
    wanted = [[generated(lm, p, 16, s) for _ in range(6)] for p, s in zip(prompts, samplings, strict=True)]
    got: list[list[list[int]]] = [[], []]

    def work(index: int) -> None:
        for _ in range(6):
            got[index].append(generated(lm, prompts[index], 16, samplings[index]))

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
