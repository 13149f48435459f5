"""Several models: loaded when they are named, unloaded when idle or when memory is short, and read from a TOML file."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from camshaft.errors import ModelError, SettingError
from camshaft.serve.app import make_app
from camshaft.serve.guard import Guard
from camshaft.serve.models.config import ModelSpec, cards_of, read_config
from camshaft.serve.models.models import CHAT, EMBEDDING, Card, Loaded, Models
from camshaft.serve.requests.errors import HttpError
from tests.generate.conftest import CONTEXT
from tests.support.adapters import drawn_adapter
from tests.support.fixtures import tiny_encoder, tiny_model

pytest.importorskip("starlette")

from starlette.testclient import TestClient

CHATS = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
SMALL = {"context": CONTEXT, "sessions": 2, "threads": 1, "activations": "f32"}


@dataclass
class Fake:
    """A model of some size that says whether it is open."""

    nbytes: int = 10
    is_alive: bool = True
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    one = tiny_model("llama", folder)
    one.rename(folder / "one.gguf")
    tiny_model("llama", folder).rename(folder / "two.gguf")
    tiny_encoder("bert", folder).rename(folder / "bert.gguf")
    drawn_adapter(folder / "one.gguf", folder / "poet.gguf", 1, rank=4, targets=("attn_*",))
    (folder / "server.toml").write_text(CONFIG, "utf-8")
    return folder


CONFIG = f"""
memory_limit = "1 GiB"
context = {CONTEXT}
slots = 2
idle_unload_seconds = 900

[[models]]
model = "one.gguf"
alias = ["gpt-4o", "first"]
[models.adapters]
poet = "poet.gguf"
half = {{ path = "poet.gguf", strength = 0.5, alias = "quiet" }}

[[models]]
model = "two.gguf"
name = "second"
context = 32
idle_unload_seconds = 5.5

[[models]]
model = "bert.gguf"
embed = true
"""


def test_the_file(folder: Path) -> None:
    config = read_config(folder / "server.toml", ModelSpec("", "", options=SMALL | {"context": 99}, queue=7))
    assert config.memory_limit_nbytes == 1 << 30
    one, poet, half, second, bert = config.specs
    assert (one.name, one.aliases, one.options["context"], one.queue) == ("one", {"gpt-4o", "first"}, CONTEXT, 7)
    assert (poet.name, poet.base, poet.idle_s) == ("one:poet", "one", 900)
    assert half.options["adapters"] == ((str(folder / "poet.gguf"), 0.5),)
    assert (second.name, second.options["context"], second.idle_s) == ("second", 32, 5.5)
    assert (bert.kind, bert.options) == (EMBEDDING, {"threads": 1})
    assert [card.nbytes > 1000 for card in cards_of(config.specs)] == [True] * 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = 1", "'models' is 1; wanted a list"),
        ("models = []", "'models' is empty"),
        ("x", "is no TOML"),
        ("colour = 1\n[[models]]\nmodel='one.gguf'", "the field 'colour' is not supported"),
        ("[[models]]\nmodel='one.gguf'\ntreads=1", r"the field 'models\[0\].treads' is not supported"),
        ("[[models]]\nname='a'", r"the field 'models\[0\].model' is missing"),
        ("[[models]]\nmodel='one.gguf'\nslots=0", r"'models\[0\].slots' is 0; wanted a whole number"),
        ("memory_limit='1 ZB'\n[[models]]\nmodel='one.gguf'", "'memory_limit' is \"1 ZB\"; wanted a size"),
        ("[[models]]\nmodel='bert.gguf'\nrerank=true\npooling='cls'", r"'models\[0\].pooling' with rerank = true"),
        ("[[models]]\nmodel='bert.gguf'\nembed=true\nslots=1", r"'models\[0\].slots' with embed = true"),
        ("[[models]]\nmodel='one.gguf'\npooling='cls'", r"'models\[0\].pooling' without embed"),
        ("[[models]]\nmodel='one.gguf'\nadapters={a=1}", r"models\[0\].adapters.a is 1; wanted an object"),
        ("[[models]]\nmodel='one.gguf'\n[[models]]\nmodel='one.gguf'", "two models are named 'one'"),
        ("[[models]]\nmodel='none.gguf'", "no such file: none.gguf"),
        ("[[models]]\nmodel='one.gguf'\nadapters={a='none'}", "no such adapter: .*none"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(folder: Path, text: str, message: str) -> None:
    path = folder / "wrong.toml"
    path.write_text(text, "utf-8")
    with pytest.raises((SettingError, ModelError), match=message):
        cards_of(read_config(path, ModelSpec("", "")).specs)


def test_a_server_of_several_models(folder: Path) -> None:
    config = read_config(folder / "server.toml", ModelSpec("", "", options=SMALL))
    models = Models(cards_of(config.specs), limit_nbytes=config.memory_limit_nbytes)
    with TestClient(make_app(models, Guard()), base_url="http://localhost") as client:
        listed = client.get("/v1/models").json()["data"]
        assert [card["id"] for card in listed] == ["one", "one:poet", "one:half", "second", "bert"]
        assert [card["status"]["value"] for card in listed] == ["unloaded"] * 5
        assert (listed[0]["aliases"], listed[1]["parent"]) == (["first", "gpt-4o"], "one")
        texts = {}
        for name in ("first", "one:poet", "quiet", "second"):
            body = {"model": name, "messages": USER, "max_tokens": 6, "temperature": 0}
            answer = client.post(CHATS, json=body).json()
            texts[answer["model"]] = answer["choices"][0]["message"]["content"]
        assert texts.keys() == {"one", "one:poet", "one:half", "second"}
        assert texts["one"] == texts["second"] != texts["one:poet"]
        running = client.get("/api/ps").json()["models"]
        assert [model["name"] for model in running] == ["one", "one:poet", "one:half", "second"]
        assert running[0]["context_length"] == CONTEXT
        assert client.post("/v1/embeddings", json={"input": "a"}).json()["model"] == "bert"
        tags = client.get("/api/tags").json()["models"]
        assert [tag["model"] for tag in tags] == [card["id"] for card in listed]
        assert all(tag["size"] > 1000 for tag in tags)
        shown = client.post("/api/show", json={"model": "second:latest"}).json()
        assert shown["model_info"]["llama.context_length"] == 32
        assert client.get("/v1/models/gpt-4o").json()["status"] == {"value": "loaded"}
        answer = client.post(CHATS, json={"model": "secnd", "messages": USER})
        assert (answer.status_code, "the nearest is 'second'" in answer.json()["error"]["message"]) == (404, True)
        assert client.post(CHATS, json={"model": 3}).json()["error"]["param"] == "model"
        assert 'camshaft_generated_tokens_total{model="one:poet"} 6' in client.get("/metrics").text
    assert models.in_memory() == []


def test_ollama_loads_and_unloads(folder: Path) -> None:
    config = read_config(folder / "server.toml", ModelSpec("", "", options=SMALL))
    models = Models(cards_of(config.specs[3:]))
    entry = models.entries["second"]
    with TestClient(make_app(models, Guard()), base_url="http://localhost") as client:
        answer = client.post("/api/generate", json={"model": "second", "keep_alive": "2m"}).json()
        assert (answer["done_reason"], entry.state, entry.idle_s) == ("load", "loaded", 120.0)
        client.post("/api/embed", json={"model": "bert", "input": "a", "keep_alive": -1})
        assert models.entries["bert"].idle_s is None
        client.post("/api/chat", json={"model": "second", "messages": USER, "options": {"num_predict": 1}})
        assert entry.idle_s == 5.5
        answer = client.post("/api/chat", json={"model": "second", "messages": [], "keep_alive": 0}).json()
        assert (answer["done_reason"], entry.idle_s) == ("unload", 0.0)
        asyncio.run(models.unload_idle())
        assert entry.state == "unloaded"


def test_loading_does_not_stop_other_streams(folder: Path) -> None:
    """One model streams to its end while another one is not loaded yet."""
    config = read_config(folder / "server.toml", ModelSpec("", "", options=SMALL))
    one, *_, second, _ = cards_of(config.specs)
    may_open, is_opening = threading.Event(), threading.Event()

    def slow() -> Loaded:
        is_opening.set()
        assert may_open.wait(60)
        return second.open()

    models = Models([one, Card("second", slow)])
    with TestClient(make_app(models, Guard()), base_url="http://localhost") as client:
        body = {"messages": USER, "max_tokens": 6, "ignore_eos": True}
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(client.post(CHATS, json=body | {"model": "second"})))
        asking.start()
        assert is_opening.wait(60)
        # `one` waits for its turn to be loaded only if it is not loaded yet.
        models.put("one", one.open())
        models.start()
        streamed = client.post(CHATS, json=body | {"stream": True}).text
        assert json.loads(streamed.split("\n\n")[-3].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert client.get("/v1/models/second").json()["status"] == {"value": "loading"}
        assert not answers
        may_open.set()
        asking.join()
        assert answers[0].status_code == 200
