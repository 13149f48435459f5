"""The server with engines in other processes answers as the one with its engine, without Ray: replicas are called directly."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from starlette.testclient import TestClient

from camshaft import Grammar, LanguageModel
from camshaft.cluster.front import Front, Fronted
from camshaft.cluster.replica import News, Replica, portable
from camshaft.errors import ContextError, MissingExtraError, ModelError, SettingError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request_queue import QueueFullError
from camshaft.generate.options import GenerateOptions
from camshaft.serve.guard import Guard
from camshaft.serve.models.served import Served
from camshaft.serve.models.spec import ModelSpec
from camshaft.serve.request_log import LogPlace
from tests.serve.conftest import Kept, client_of
from tests.support.fixtures import tiny_model

CONTEXT, SLOTS, QUEUE = 96, 2, 3
DRAWN = {"temperature": 1.2, "seed": 5, "max_tokens": 6, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "b"}], **DRAWN}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {**CHAT, "n": 2}),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": ["ab", [5, 6, 7]], **DRAWN, "echo": True}),
    ("/v1/messages", {**CHAT, "model": "tiny", "ignore_eos": False}),
    ("/api/generate", {"model": "tiny", "prompt": "a", "options": {"seed": 1, "num_predict": 4}}),
    ("/tokenize", {"content": "abc"}),
    ("/apply-template", {"messages": CHAT["messages"]}),
    ("/v1/completions", {"prompt": [5] * 200}),
    ("/v1/completions", {"prompt": [5] * 90, "logit_bias": {"1": "x"}}),
    ("/v1/chat/completions", {"model": "other", **CHAT}),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def lm(path: Path) -> Iterator[LanguageModel]:
    with LanguageModel(path, threads=1, context=CONTEXT, activations="f32", sessions=SLOTS) as model:
        yield model


class Handle:
    """A deployment handle whose calls go to a replica in this process, through pickle as between processes."""

    def __init__(self, replica: Any) -> None:
        self._replica, self.keys = replica, list[list[bytes]]()
        self.answer = self

    def options(self, *, stream: bool) -> Handle:
        assert stream
        return self

    async def remote(self, **given: Any) -> AsyncIterator[list[News]]:
        given = pickle.loads(pickle.dumps(given))
        self.keys.append(given["keys"])
        async for news in self._replica.answer(**given):
            yield pickle.loads(pickle.dumps(news))


class _Spec(ModelSpec):
    """A model that is open already."""

    def open(self) -> Served:
        return Kept("tiny", Engine(self.options["lm"], max_queue=self.queue))


def _front(path: Path, replica: Any, log: LogPlace | None = None) -> tuple[TestClient, Handle]:
    spec = ModelSpec(str(path), "tiny", options={"context": CONTEXT, "sessions": SLOTS}, queue=QUEUE)
    handle = Handle(replica)
    front = Front([Fronted(spec, 1)], Guard(), [handle], log)
    return TestClient(front.__serve_build_asgi_app__(), base_url="http://localhost"), handle


@pytest.fixture
def replica(lm: LanguageModel) -> Iterator[Replica]:
    made = Replica(_Spec("", "tiny", options={"lm": lm}, queue=QUEUE))
    yield made
    made._served.close()
    assert lm.plans.cache.n_free == SLOTS


def _plain(text: str) -> str:
    """Without ids and times."""
    text = re.sub(r'"(chatcmpl-|cmpl-|resp_|msg_)[0-9a-f]+"', r'"\1"', text)
    return re.sub(r'"(created|created_at|\w+_duration|\w+_per_second|\w+_ms)":("[^"]*"|[\d.]+|null)', r'"\1":0', text)


def _counts(metrics: str) -> Counter[str]:
    """The sum of each metric over its labels."""
    counts: Counter[str] = Counter()
    for name, value in re.findall(r"^camshaft_(\w+){.*} (\d+)$", metrics, re.MULTILINE):
        counts[name] += int(value)
    return counts


def test_answers_and_errors_are_those_of_one_process(path: Path, lm: LanguageModel, replica: Replica) -> None:
    with client_of(Served("tiny", Engine(lm, max_queue=QUEUE))) as alone, _front(path, replica)[0] as client:
        for url, body in ASKED:
            # The first of them puts the prompt into the prefix cache, which the two have in common.
            _, wanted, found = (each.post(url, content=json.dumps(body)) for each in (alone, alone, client))
            assert found.status_code == wanted.status_code
            assert found.headers["content-type"] == wanted.headers["content-type"]
            assert _plain(found.text) == _plain(wanted.text), url
        counted, of_alone = (_counts(each.get("/metrics").text) for each in (client, alone))
        for name in ("requests_total", "generated_tokens_total", "prompt_tokens_total"):
            assert 2 * counted[name] == of_alone[name] > 0
        assert counted["requests_running"] == counted["requests_waiting"] == 0
        assert not any(slot["is_processing"] for slot in client.get("/slots").json())
        assert "is on a cluster" in client.post("/slots/0?action=erase").json()["error"]["message"]


def test_the_front_writes_the_log(path: Path, replica: Replica, tmp_path: Path) -> None:
    body = {"prompt": "ab", **DRAWN, "n": 2}
    with _front(path, replica, LogPlace(tmp_path / "log", with_texts=True))[0] as client:
        answers = [choice["text"] for choice in client.post("/v1/completions", json=body).json()["choices"]]
        client.post("/v1/completions", json={"prompt": "ab", "best": 1})
    found, refused = map(json.loads, (tmp_path / "log").read_text("utf-8").splitlines())
    assert (found["status"], found["ended"], found["answers"]) == (200, ["length"] * 2, answers)
    assert (found["generated_tokens"], found["prompts"]) == (12, ["ab"])
    assert (refused["status"], refused["error"]) == (400, "unsupported_parameter")
    with pytest.raises(SettingError, match=f"--log {tmp_path}: "):
        _front(path, replica, LogPlace(tmp_path))


def test_the_router_gets_the_keys_by_which_the_engine_shares_blocks(path: Path, replica: Replica) -> None:
    client, handle = _front(path, replica)
    prompt = [5 + i % 7 for i in range(40)]
    with client:
        answers = [client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).json() for _ in range(2)]
        client.post("/v1/completions", json={"prompt": [5] * 15, "max_tokens": 1})
    assert [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers] == [0, 32]
    prefixes = replica._served.engine.prefixes
    assert prefixes is not None
    assert [prefixes.find(key) is not None for key in handle.keys[0]] == [True, True]
    assert handle.keys == [handle.keys[0], handle.keys[0], []]


class _Fails:
    """A replica that ends after its first words."""

    def __init__(self, replica: Replica, after: int) -> None:
        self._replica, self._after = replica, after

    async def answer(self, **given: Any) -> AsyncIterator[list[News]]:
        if self._after:
            news = [news async for several in self._replica.answer(**given) for news in several]
            yield [replace(news[0], update=replace(news[0].update, text="first"))]
        raise ConnectionError("the actor died")


def test_the_end_of_a_replica_is_an_error_at_once(path: Path, replica: Replica) -> None:
    with _front(path, _Fails(replica, 0))[0] as client:
        answer = client.post("/v1/completions", json={"prompt": "a"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert answer.headers["retry-after"] == "1"
    with _front(path, _Fails(replica, 1))[0] as client:
        events = client.post("/v1/completions", json={"prompt": "a", "stream": True, "max_tokens": 3}).text.split(
            "\n\n"
        )
        assert "first" in events[0]
        assert "the replica that answered has ended" in events[1]
        assert events[2:] == ["data: [DONE]", ""]
        assert 'end="error"} 1' in client.get("/metrics").text


class _Waits:
    """A replica that never answers, and says when a call is cancelled."""

    def __init__(self) -> None:
        self.n_cancelled = 0

    async def answer(self, **given: Any) -> AsyncIterator[list[News]]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        yield []


def test_a_full_queue_is_refused_and_what_is_cancelled_ends_at_the_replica(path: Path) -> None:
    waits = _Waits()
    spec = ModelSpec(str(path), "tiny", options={"context": CONTEXT, "sessions": SLOTS}, queue=QUEUE)

    async def ask() -> None:
        engine = Fronted(spec, 1).open(Handle(waits)).engine
        wanted = [([5, 6], GenerateOptions(), lambda update: None)]
        sent = [engine.submit_all(wanted * 2) for _ in range(2)] + [engine.submit_all(wanted)]
        with pytest.raises(QueueFullError, match="5 requests wait; the limit is 3"):
            engine.submit_all(wanted)
        await asyncio.sleep(0)
        engine.cancel(sent[0][0])
        await asyncio.sleep(0.01)
        assert (waits.n_cancelled, engine.n_waiting) == (0, 5)
        for request in (*sent[0], *sent[1]):
            engine.cancel(request)
        await asyncio.sleep(0.01)
        assert (waits.n_cancelled, engine.n_waiting, engine.statistics.ended["cancelled"]) == (2, 1, 4)
        engine.close()
        assert (engine.n_waiting, engine.is_alive) == (0, False)
        with pytest.raises(ModelError, match="closed"):
            engine.submit_all(wanted)

    asyncio.run(ask())


def test_a_cancelled_call_ends_its_requests_and_a_refused_one_says_why(lm: LanguageModel, replica: Replica) -> None:
    long = ([5, 6], GenerateOptions(ignore_eos=True))
    engine = replica._served.engine

    async def ask() -> None:
        calls = [replica.answer(keys=[], wanted=[long], is_scored=False) for _ in range(2)]
        assert [len(await anext(call)) > 0 for call in calls] == [True, True]
        with lm.lock:  # or a request may end by itself
            for call in calls:
                await call.aclose()
        refused = [news async for news in replica.answer(keys=[], wanted=[([], long[1])] * 2, is_scored=False)]
        assert [type(news.update.error) for news in refused[0]] == [ContextError] * 2
        while engine.n_running:
            await asyncio.sleep(0.01)

    asyncio.run(ask())
    assert engine.statistics.ended["cancelled"] == 2


def test_errors_that_cannot_be_sent_become_others_of_the_same_meaning() -> None:
    wanted = (QueueFullError("a"), MissingExtraError("a", "b", "c"), ZeroDivisionError("d"))
    found = [portable(error) for error in wanted]
    assert [type(error).__name__ for error in found] == ["QueueFullError", "CamshaftError", "RuntimeError"]
    assert [str(error) for error in found][1:] == [
        "c needs the package 'a': pip install 'camshaft[b]'",
        "ZeroDivisionError: d",
    ]
    assert [str(pickle.loads(pickle.dumps(error))) for error in found] == [str(error) for error in found]


@pytest.mark.full
def test_an_answer_of_a_form_is_compiled_again_where_it_runs(path: Path, replica: Replica) -> None:
    pytest.importorskip("llguidance")
    with _front(path, replica)[0] as client:
        given = {**CHAT, "response_format": {"type": "json_object"}, "ignore_eos": False, "max_tokens": 40}
        answer = client.post("/v1/chat/completions", json=given)
        assert answer.json()["choices"][0]["message"]["content"].startswith("{")
        refused = client.post("/v1/chat/completions", json={**given, "response_format": {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"type": "nothing"}}}})  # fmt: skip
        assert refused.status_code == 400
    assert Grammar.json().kind == "json_schema"
