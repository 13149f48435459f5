"""Models of all kinds work in a forked child, though other threads of its parent held their locks."""

from __future__ import annotations

import lzma
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import EmbeddingModel, GenerateOptions, LanguageModel, Sampling, SpeechModel, TextToTextModel
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Update
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
