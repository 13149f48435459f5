"""A server of several models that a file describes, with adapters, each loaded by its first request."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from camshaft.serve.app import make_app
from camshaft.serve.guard import Guard
from camshaft.serve.models.config import read_config
from camshaft.serve.models.entry import EMBEDDING, Card, Loaded
from camshaft.serve.models.models import Models
from camshaft.serve.models.spec import ModelSpec, cards_of
from tests.generate.conftest import CONTEXT
from tests.support.fixtures import tiny_encoder, tiny_model
from tests.support.models.adapters import drawn_adapter

pytest.importorskip("starlette")

from starlette.testclient import TestClient

CHATS = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
SMALL = {"context": CONTEXT, "sessions": 2, "threads": 1, "activations": "f32"}


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
time_limit_seconds = 60

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
    assert (poet.name, poet.base, poet.idle_s, poet.time_limit_s) == ("one:poet", "one", 900, 60)
    assert half.options["adapters"] == ((str(folder / "poet.gguf"), 0.5),)
    assert (second.name, second.options["context"], second.idle_s) == ("second", 32, 5.5)
    assert (bert.kind, bert.options) == (EMBEDDING, {"threads": 1})
    assert [card.nbytes > 1000 for card in cards_of(config.specs)] == [True] * 5


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
        for long in (10**12, "99999999h", int("9" * 400)):  # beyond all dates
            client.post("/api/generate", json={"model": "second", "keep_alive": long})
            assert (entry.idle_s, client.get("/api/ps").status_code) == (None, 200)
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
