"""Models of all kinds work in a forked child, though other threads of its parent held their locks."""

from __future__ import annotations

import lzma
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import EmbeddingModel, GenerateOptions, LanguageModel, Sampling, SpeechModel, TextToTextModel
from camshaft.backends import registry
from camshaft.backends.cpu.compile import llvm_lock
from camshaft.backends.cpu.loaded import lock as kernels_lock
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Update
from camshaft.generate.speculation.draft_plans import DraftPlans
from camshaft.process import ForkLock
from camshaft.serve.models.served import Listener
from tests.support.fixtures import DATA, tiny_encoder
from tests.support.models.speech import sound, tiny_whisper
from tests.support.quick import quick_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
HOW: dict[str, Any] = {"threads": 1, "activations": "f32"}


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """Have another thread hold a lock."""
    taken, free = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            free.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        free.set()
        thread.join()


def in_a_child(work: Callable[[], bool]) -> int:
    """0 where `work` is true in a forked child, 1 where it is not or fails, else the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def _t5(folder: Path) -> TextToTextModel:
    path = folder / "t5.gguf"
    path.write_bytes(lzma.decompress((DATA / "t5" / "t5-gated.gguf.xz").read_bytes()))
    return TextToTextModel(path, **HOW)


# Kind -> how such a model is opened, and what it answers.
KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Any], Any]]] = {
    "speech": (
        lambda folder: SpeechModel(tiny_whisper(folder), **HOW),
        lambda model: model.transcribe(sound(1.0), language="en", temperature=0.0).text,
    ),
    "t5": (_t5, lambda model: model.encode([5, 6, 7]).tolist()),
    "pooled": (
        lambda folder: EmbeddingModel(tiny_encoder("bert", folder), **HOW),
        lambda model: model.embed("Hello world!").tolist(),
    ),
}


@pytest.mark.parametrize("kind", quick_of(KINDS, ["speech"]))
def test_a_model_that_another_thread_held_answers_in_a_child(kind: str, tmp_path: Path) -> None:
    opened, answered = KINDS[kind]
    with opened(tmp_path) as model:
        wanted = answered(model)
        with held(model._lock):
            assert in_a_child(lambda: bool(answered(model) == wanted)) == 0
        assert answered(model) == wanted


def test_an_engine_of_the_parent_begins_again_in_a_child(lm: LanguageModel) -> None:
    options = GenerateOptions(max_tokens=6, sampling=Sampling(temperature=0.0), ignore_eos=True)

    def answer(engine: Engine) -> str:
        ended, pieces = threading.Event(), list[str]()

        def listener(update: Update) -> None:
            pieces.append(update.text)
            if update.is_last:
                ended.set()

        engine.submit([40, 7, 81], options, listener)
        assert ended.wait(15)
        return "".join(pieces)

    def in_child(engine: Engine) -> bool:
        assert engine.n_running == engine.n_waiting == 0
        engine.start()
        found = answer(engine)
        engine.close()
        return found == wanted

    with Engine(lm) as engine:
        engine.start()
        wanted = answer(engine)
        for lock in (lm.lock, engine._changed):
            with held(lock):
                assert in_a_child(lambda: in_child(engine)) == 0
        assert answer(engine) == wanted
    lm.plans.cache.prefixes = None


def test_recordings_have_a_thread_in_a_child() -> None:
    class Silent:
        def close(self) -> None: ...

    listener = Listener("silent", Silent())  # type: ignore[arg-type]
    assert listener.submit(lambda: 1).result() == 1
    assert in_a_child(lambda: listener.submit(lambda: 2).result(15) == 2) == 0
    listener.close()


def test_the_thread_that_forks_keeps_its_locks() -> None:
    lock, mine = ForkLock(), ForkLock()

    def both() -> bool:
        with lock, mine:
            return True

    with held(lock), mine, mine:
        assert in_a_child(both) == 0
    assert np.all([in_a_child(both) == 0, both()])


def test_a_fork_waits_while_another_thread_compiles() -> None:
    begun = threading.Event()

    def compiles() -> None:
        with kernels_lock, llvm_lock:
            begun.set()
            time.sleep(0.2)

    def both() -> bool:
        with kernels_lock, llvm_lock:
            return True

    thread = threading.Thread(target=compiles)
    thread.start()
    begun.wait()
    assert in_a_child(both) == 0
    assert both()
    thread.join()


def test_devices_are_found_in_a_child_while_the_parent_looks_for_them() -> None:
    with held(registry._lock):
        assert in_a_child(lambda: registry.device("cpu").name == "cpu") == 0


def test_a_child_makes_the_plans_of_drafts_that_its_parents_thread_had_begun() -> None:
    free, names = threading.Event(), list[str]()
    parent = os.getpid()

    def make(name: str) -> None:
        assert os.getpid() != parent or free.wait(60)
        names.append(name)

    def made(plans: DraftPlans) -> bool:
        for _ in range(8):
            plans.count_missed()
        plans._ahead.thread.join(10)
        return plans.most_rows == 8 and names == ["decode.2", "decode.4", "decode.8"]

    plans, stopped = DraftPlans(make), DraftPlans(make)
    for _ in range(8):
        plans.count_missed()
    stopped.stop()
    assert in_a_child(lambda: made(plans)) == 0
    assert in_a_child(lambda: not made(stopped) and not names) == 0
    free.set()
    plans._ahead.thread.join()
    assert plans.most_rows == 8
