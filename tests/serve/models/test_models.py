"""Several models: loaded when they are named, unloaded when idle or when memory is short, and read from a TOML file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from camshaft.errors import ModelError, SettingError
from camshaft.serve.models.entry import CHAT, EMBEDDING, Card, Loaded
from camshaft.serve.models.models import Models
from camshaft.serve.requests.errors import HttpError
from tests.generate.conftest import CONTEXT

pytest.importorskip("starlette")

CHATS = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
SMALL = {"context": CONTEXT, "sessions": 2, "threads": 1, "activations": "f32"}


@dataclass
class Fake:
    """A model of some size that says whether it is open."""

    nbytes: int = 10
    is_alive: bool = True
    shared_nbytes: dict[str, int] = field(default_factory=dict)
    n_starts: int = 0
    n_closes: int = 0

    def start(self) -> None:
        self.n_starts += 1

    def close(self) -> None:
        self.n_closes += 1


@dataclass
class Fakes:
    """Models of 10 bytes by name, a limit of 25, and a clock that the test sets."""

    names: tuple[str, ...] = ("a", "b", "c")
    opened: dict[str, list[Fake]] = field(default_factory=dict)
    now: float = 0.0

    def open(self, name: str) -> Callable[[], Loaded]:
        def opened() -> Fake:
            fake = Fake()
            self.opened.setdefault(name, []).append(fake)
            return fake

        return opened

    def models(self, **options: Any) -> Models:
        cards = [Card(name, self.open(name), nbytes=10, idle_s=5.0) for name in self.names]
        return Models(cards, **{"limit_nbytes": 25, "wait_s": 0.0, "clock": lambda: self.now} | options)


def loaded(models: Models) -> list[str]:
    return [entry.card.name for entry, _ in models.in_memory()]


def test_the_least_recently_used_model_without_requests_leaves() -> None:
    fakes = Fakes()

    async def run() -> None:
        models = fakes.models()
        a = await models.lease("a")
        b = await models.lease(None)
        assert b.model is a.model
        other = await models.lease("b")
        for fakes.now, lease in enumerate((a, other, b)):  # b is the last one of a
            lease.release()
        a.release()  # the second time: nothing
        c = await models.lease("c")
        assert loaded(models) == ["a", "c"]
        held = await models.lease("a")
        with pytest.raises(HttpError, match="no memory for 'b' while other models have requests") as error:
            await models.lease("b")
        assert error.value.status == 503
        held.release()
        c.release()
        (await models.lease("b")).release()
        assert models.counts == {"loaded": 4, "unloaded": 2, "failed": 1}
        models.close()

    asyncio.run(run())
    assert [(each.n_starts, each.n_closes) for all_of in fakes.opened.values() for each in all_of] == [(1, 1)] * 4


def test_a_request_waits_until_others_leave_memory() -> None:
    async def run() -> None:
        models = Fakes().models(wait_s=60.0, limit_nbytes=10)
        first = await models.lease("a")
        waiting = [asyncio.ensure_future(models.lease("b")) for _ in range(2)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        assert models.entries["b"].state == "loading"
        waiting.pop().cancel()  # its client left; the other one still wants it
        first.release()
        (await waiting[0]).release()
        assert loaded(models) == ["b"]
        assert models.entries["b"].n_requests == 0

    asyncio.run(run())


def test_few_requests_may_wait_for_a_model() -> None:
    async def run() -> None:
        models = Models([Card("a", Fake, nbytes=10, queue=2), Card("b", Fake, nbytes=10)], limit_nbytes=10)
        b = await models.lease("b")
        waiting = [asyncio.ensure_future(models.lease("a")) for _ in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(HttpError, match="2 requests wait until the model is loaded; the limit is 2") as error:
            await waiting.pop()
        assert error.value.status == 429
        b.release()
        for each in waiting:
            (await each).release()

    asyncio.run(run())


def test_idle_models_are_unloaded_but_none_with_requests() -> None:
    fakes = Fakes()

    async def run() -> None:
        models = fakes.models()
        (await models.lease("a")).release()
        b = await models.lease("b")
        fakes.now = 4.9
        await models.unload_idle()
        assert (loaded(models), models.left_s(models.entries["a"])) == (["a", "b"], pytest.approx(0.1))
        fakes.now = 50
        await models.unload_idle()
        assert loaded(models) == ["b"]
        b.release()
        await models.unload_idle()
        assert loaded(models) == ["b"]
        fakes.now = 55
        await models.unload_idle()
        assert loaded(models) == []

    asyncio.run(run())


def test_a_model_that_cannot_be_loaded_fails_its_request_only() -> None:
    wrong: dict[str, Callable[[], Loaded]] = {
        "torn": lambda: (_ for _ in ()).throw(ModelError("the file is torn")),
        "full": lambda: (_ for _ in ()).throw(MemoryError()),
        "bug": lambda: (_ for _ in ()).throw(ZeroDivisionError("secret")),
        "large": lambda: Fake(nbytes=100),
    }
    expected = {
        "torn": (500, "the model 'torn' cannot be loaded: the file is torn"),
        "full": (503, "the model 'full' cannot be loaded: there is no memory"),
        "bug": (500, "the model 'bug' cannot be loaded; the server's log says why"),
        "large": (503, "the model 'large' needs 0 MB; the limit is 0 MB"),
    }

    async def run() -> None:
        models = Models([*(Card(name, each) for name, each in wrong.items()), Card("a", Fake)], limit_nbytes=50)
        for name, (status, message) in expected.items():
            for _ in range(2):
                with pytest.raises(HttpError) as error:
                    await models.lease(name)
                assert (error.value.status, str(error.value)) == (status, message)
        (await models.lease("a")).release()
        assert models.counts == {"failed": 8, "loaded": 1}

    asyncio.run(run())


def test_a_model_whose_engine_failed_is_loaded_again() -> None:
    fakes = Fakes()

    async def run() -> None:
        models = fakes.models()
        (await models.lease("a")).release()
        fakes.opened["a"][0].is_alive = False
        lease = await models.lease("a")
        assert lease.model is fakes.opened["a"][1]
        assert fakes.opened["a"][0].n_closes == 1

    asyncio.run(run())


def test_two_models_that_are_larger_than_their_files_load_one_after_the_other() -> None:
    """Each would wait for the memory of the other one, which is not open yet."""

    async def run() -> None:
        cards = [Card(name, partial(Fake, 15), nbytes=10) for name in "ab"]
        models = Models(cards, limit_nbytes=20, wait_s=60.0)

        async def use(name: str) -> None:
            lease = await models.lease(name)
            await asyncio.sleep(0)
            lease.release()

        async with asyncio.timeout(30):
            await asyncio.gather(use("a"), use("b"))
        assert models.counts == {"loaded": 2, "unloaded": 1}

    asyncio.run(run())


def test_a_model_whose_end_fails_keeps_no_memory() -> None:
    class Failing(Fake):
        def close(self) -> None:
            raise ZeroDivisionError

    async def run() -> None:
        models = Models([Card("a", Failing, nbytes=10), Card("b", Fake, nbytes=10)], limit_nbytes=10, wait_s=0.0)
        (await models.lease("a")).release()
        (await models.lease("b")).release()
        assert loaded(models) == ["b"]

    asyncio.run(run())


def test_models_of_the_start_obey_the_limit() -> None:
    models, second = Fakes().models(limit_nbytes=15), Fake()
    models.put("a", Fake())
    with pytest.raises(SettingError, match="the models to load at the start, up to 'b', need 0 MB; the limit is 0 MB"):
        models.put("b", second)
    assert (loaded(models), second.n_closes) == (["a"], 1)


def test_what_models_share_counts_once_and_leaves_with_the_last() -> None:
    async def run() -> None:
        cards = [
            Card(name, partial(Fake, shared_nbytes={draft: 6}), nbytes=10, shared_nbytes={draft: 1})
            for name, draft in zip("abc", "xxy", strict=True)
        ]
        models = Models(cards, limit_nbytes=26, wait_s=0.0)
        a = await models.lease("a")
        (await models.lease("b")).release()
        assert loaded(models) == ["a", "b"]
        with pytest.raises(HttpError, match="no memory for 'c'"):  # 10 beside a and its draft model, and 6 for its own
            await models.lease("c")
        a.release()
        (await models.lease("c")).release()
        assert loaded(models) == ["c"]

    asyncio.run(run())


def test_names() -> None:
    cards = [Card("qwen", Fake, aliases=frozenset({"gpt-4o"})), Card("smol", Fake), Card("bert", Fake, kind=EMBEDDING)]
    models = Models(cards)
    assert models.find("gpt-4o") is models.entries["qwen"]
    wrong = {
        ("qwem", CHAT): "there is no model 'qwem'; the nearest is 'qwen'; this server has 'qwen', 'smol'",
        ("zzz", CHAT): "there is no model 'zzz'; this server has 'qwen', 'smol'",
        ("bert", CHAT): "there is no model 'bert'; this server has 'qwen', 'smol'",
        ("smol", EMBEDDING): "there is no model 'smol' for vectors; this server has 'bert'",
    }
    for (name, kind), message in wrong.items():
        with pytest.raises(HttpError) as error:
            models.find(name, kind)
        assert (error.value.status, str(error.value)) == (404, message)
    with pytest.raises(HttpError, match="no model that writes text"):
        Models(cards[2:]).find(None)
