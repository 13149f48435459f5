"""More generations than sessions: those that wait are served in order, nobody waits for ever, a closed model wakes all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from camshaft import LanguageModel, Sampling
from camshaft.errors import ContextError, ModelError
from camshaft.generate.memory.slots import Slots
from tests.generate.conftest import CONTEXT, SESSIONS

HOW: Any = {"sampling": Sampling(greedy=True), "ignore_eos": True, "max_tokens": 6}


def until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread does; a test that fails ends after a minute."""
    for _ in range(60_000):
        if holds():
            return
        time.sleep(0.001)
    raise AssertionError("it did not happen")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def waiting(slots: Slots, pool: ThreadPoolExecutor, n: int) -> list[Future[int | None]]:
    """n threads that wait, in this order."""
    futures = []
    for i in range(n):
        futures.append(pool.submit(slots.take, wait=True))
        until(lambda i=i: len(slots._waiting) == i + 1)  # type: ignore[misc]
    return futures


def test_those_that_wait_are_served_in_order_and_nobody_goes_before_them(pool: ThreadPoolExecutor) -> None:
    slots = Slots(1)
    slot = slots.take(wait=False)
    assert slot == 0
    slots.use(slot)
    futures = waiting(slots, pool, 3)
    for i, future in enumerate(futures):
        assert slots.take(wait=False) is None
        assert [f.done() for f in futures] == [True] * i + [False] * (3 - i)
        slots.release(0)
        assert future.result(60) == 0
        slots.use(0)
    slots.release(0)
    assert slots.n_free == 1


def test_a_slot_that_changes_hands_is_waited_for(pool: ThreadPoolExecutor) -> None:
    slots, taken, ends = Slots(1), threading.Event(), threading.Event()
    slots.use(slots.take(wait=False) or 0)

    def second() -> None:
        slots.take(wait=True)
        taken.set()  # and does not use it yet
        ends.wait(60)
        slots.release(0)

    pool.submit(second)
    until(lambda: len(slots._waiting) == 1)
    slots.release(0)
    assert taken.wait(60)
    third = pool.submit(slots.take, wait=True)
    until(lambda: len(slots._waiting) == 1 or third.done())
    ends.set()
    assert third.result(60) == 0


def test_a_thread_does_not_wait_for_itself_nor_for_one_that_waits_or_is_gone(pool: ThreadPoolExecutor) -> None:
    slots = Slots(2)
    for _ in range(2):
        slots.use(slots.take(wait=True) or 0)
    slots._users = {0: threading.get_ident(), 1: threading.get_ident()}
    assert slots.take(wait=True) is None  # both are this thread's

    def use_one_and_wait() -> int | None:
        slots.use(1)
        return slots.take(wait=True)

    future = pool.submit(use_one_and_wait)
    until(lambda: len(slots._waiting) == 1)
    assert slots.take(wait=True) is None, "the other thread waits for this one"
    slots.release(0)
    assert future.result(60) == 0
    gone = threading.Thread(target=lambda: [slots.use(0), slots.use(1)])
    gone.start()
    gone.join()
    assert slots.take(wait=True) is None


def test_one_that_waits_for_a_thread_that_ends_gets_an_answer(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("camshaft.generate.memory.slots.LOOK_AGAIN_S", 0.01)
    slots = Slots(1)
    ends = threading.Event()
    user = threading.Thread(target=lambda: (slots.use(slots.take(wait=False) or 0), ends.wait()))
    user.start()
    until(lambda: slots.n_free == 0)
    [future] = waiting(slots, pool, 1)
    ends.set()
    assert future.result(60) is None
    assert not slots._waiting


def test_an_interrupted_wait_leaves_the_queue_and_loses_no_slot(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(1)
    slots.use(slots.take(wait=False) or 0)
    for served in (False, True):

        def interrupted(waiter: Any, served: bool = served) -> bool:
            if served:
                slots.release(0)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(slots, "_will_free", interrupted)
            with pytest.raises(KeyboardInterrupt):
                slots.take(wait=True)
        assert not slots._waiting
        assert slots.n_free == served


def test_many_threads_with_few_sessions_all_get_their_text(lm: LanguageModel) -> None:
    wanted = [lm.generate([5, i], **HOW) for i in range(12)]
    for generation in wanted:
        list(generation)
    barrier, got = threading.Barrier(12), dict[int, list[int]]()

    def work(i: int) -> None:
        barrier.wait()
        generation = lm.generate([5, i], **HOW)
        list(generation)
        got[i] = generation.ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [got.get(i) for i in range(12)] == [generation.ids for generation in wanted]
    assert lm.plans.cache.n_free == SESSIONS


@pytest.mark.full
def test_a_storm_of_threads_gets_the_same_texts_as_one_thread(lm: LanguageModel) -> None:
    """Generations, some closed early, conversations and batches, 20 threads for 3 sessions."""
    want, talked = "".join(lm.generate([5, 1], **HOW)), "".join(lm.generate("a", **HOW))

    def generate() -> bool:
        return "".join(lm.generate([5, 1], **HOW)) == want

    def leave() -> bool:
        return want.startswith(next(lm.generate([5, 1], **HOW)))

    def talk() -> bool:
        with lm.conversation(**HOW) as conversation:
            return "".join(conversation.say("a")) == talked and not conversation.say("b").tokens

    def batch() -> bool:
        return lm.generate_batch([[5, 1]] * 4, **HOW).texts() == [want] * 4

    with ThreadPoolExecutor(20) as executor:
        futures = [executor.submit(call) for _ in range(40) for call in (generate, leave, talk, batch)]
        assert [future.result(60) for future in futures] == [True] * len(futures)
    assert lm.plans.cache.n_free == SESSIONS


def test_batches_conversations_and_logits_wait_too(lm: LanguageModel, pool: ThreadPoolExecutor) -> None:
    held = [lm.generate([5, i], **HOW) for i in range(SESSIONS)]
    for generation in held:
        next(generation)
    slots = lm.plans.cache.slots
    calls: list[Callable[[], Any]] = [
        lambda: lm.generate_batch([[5, 0], [5, 1]], **HOW).texts(),
        lambda: "".join(lm.conversation(**HOW).say("hi")),
        lambda: lm.logits([5, 0]).shape[0],
    ]
    futures = [pool.submit(call) for call in calls]
    until(lambda: len(slots._waiting) == len(calls))
    for generation in held:
        list(generation)
    texts, said, rows = [future.result(60) for future in futures]
    assert texts == [generation.text for generation in held[:2]]
    assert (len(said) > 0, rows) == (True, 2)


def test_in_one_thread_too_many_at_once_is_an_error_and_one_after_the_other_is_not(lm: LanguageModel) -> None:
    generations = [lm.generate([5, i], **HOW) for i in range(2 * SESSIONS)]
    for generation in generations[:SESSIONS]:
        next(generation)
    with pytest.raises(ContextError, match=f"all {SESSIONS} sessions of this model are open"):
        next(generations[SESSIONS])
    for generation in generations[:SESSIONS] + generations[SESSIONS + 1 :]:
        list(generation)
        assert generation.finish_reason == "length"


def test_a_model_that_closes_wakes_those_that_wait(tiny_path: Path, pool: ThreadPoolExecutor) -> None:
    lm = LanguageModel(tiny_path, threads=1, context=CONTEXT, sessions=1)
    held = lm.generate([5], **HOW)
    next(held)
    futures = [pool.submit(lambda: list(lm.generate([5, 6], **HOW))) for _ in range(3)]
    until(lambda: len(lm.plans.cache.slots._waiting) == 3)
    lm.close()
    for future in futures:
        with pytest.raises(ModelError, match="is closed"):
            future.result(60)
    with pytest.raises(ModelError, match="is closed"):
        list(held)


def test_a_generation_that_is_closed_while_it_waits_takes_no_place(lm: LanguageModel, pool: ThreadPoolExecutor) -> None:
    held = [lm.generate([5, i], **HOW) for i in range(SESSIONS)]
    for generation in held:
        next(generation)
    waits = lm.generate([5, 6], **HOW)
    future = pool.submit(lambda: list(waits))
    until(lambda: len(lm.plans.cache.slots._waiting) == 1)
    waits.close()
    for generation in held:
        generation.close()
    with pytest.raises(ContextError, match="the session is closed"):
        future.result(60)
    assert lm.plans.cache.n_free == SESSIONS
