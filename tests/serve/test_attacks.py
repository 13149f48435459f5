"""Requests of somebody who means harm: each is refused or bounded, and others are answered."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from camshaft import LanguageModel
from camshaft.errors import ModelError
from camshaft.generate.engine.engine import Engine
from camshaft.serve import app, connection
from camshaft.serve import run as running
from camshaft.serve.app import MODEL_ROUTES, ROUTES
from camshaft.serve.guard import OPEN_PATHS, Guard
from camshaft.serve.models.served import Served
from camshaft.serve.requests import respond
from camshaft.serve.requests.fields import parse_json
from camshaft.text.chat import encode_untrusted
from tests.serve.conftest import client_of, serving

HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
BODY = b'{"content": "a"}'
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
# Where a body ends is told twice, or in a way that others may read otherwise.
SMUGGLED = [
    LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    LENGTH + b"Content-Length: 3\r\n\r\n" + BODY,
    b"Content-Length: 16, 3\r\n\r\n" + BODY,
    b"Content-Length: +16\r\n\r\n" + BODY,
    b"Content-Length: -1\r\n\r\n" + BODY,
    b"Content-Length : 16\r\n\r\n" + BODY,
    b"Transfer-Encoding: identity\r\n\r\n" + BODY,
    b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKED,
    b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED,
    b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + BODY,
    b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffffffff\r\n" + BODY,
    b"X: a\r\n\tfolded\x00\r\n\r\n",
    b"X\x00: a\r\n\r\n",
    b"Host: other\r\n" + LENGTH + b"\r\n" + BODY,
]


@pytest.fixture
def url(lm: LanguageModel) -> Iterator[str]:
    with Engine(lm) as engine, serving(Served("tiny", engine)) as address:
        yield address


def dialled(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def said(opened: socket.socket) -> bytes:
    """All that the server sends, up to the end of the connection."""
    parts = []
    try:
        while part := opened.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def is_answered(url: str) -> bool:
    with urlopen(Request(f"{url}/tokenize", BODY), timeout=60) as answer:
        return answer.status == 200


def test_smuggled_requests_are_refused_and_end_their_connection(url: str) -> None:
    for rest in SMUGGLED:
        with dialled(url) as opened:
            opened.sendall(HEAD + rest)
            answer = said(opened)
        assert answer.startswith(b"HTTP/1.1 400 "), (rest[:80], answer)
        assert answer.count(b"HTTP/1.1") == 1, rest[:80]
    for whole in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET  /health\r\n\r\n",
        b"\r\n" * 40_000,
    ):
        with dialled(url) as opened:
            opened.sendall(whole)
            opened.shutdown(socket.SHUT_WR)
            assert said(opened)[:13] in (b"", b"HTTP/1.1 400 "), whole[:40]
    assert is_answered(url)


def test_idle_connections_lock_nobody_out(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "most_connections", lambda: 8)
    with Engine(lm) as engine, serving(Served("tiny", engine)) as url:
        opened = [dialled(url) for _ in range(40)]
        assert is_answered(url)
        assert [said(each) for each in opened[:32]] == [b""] * 32  # closed, the longest idle first
        opened[-1].sendall(HEAD + LENGTH + b"Connection: close\r\n\r\n" + BODY)
        assert said(opened[-1]).startswith(b"HTTP/1.1 200 ")
        for each in opened:
            each.close()


def test_half_a_request_ends_its_connection(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "KEEP_OPEN_S", 0.05)
    monkeypatch.setattr(respond, "BODY_S", 0.05)
    with Engine(lm) as engine, serving(Served("tiny", engine)) as url:
        for half in (b"", b"GET", HEAD, HEAD + LENGTH):
            with dialled(url) as opened:
                opened.sendall(half)
                assert said(opened) == b""
        with dialled(url) as opened:
            opened.sendall(HEAD + LENGTH + b"\r\n{")
            assert b"the body did not arrive within 0.05 s" in said(opened)
        assert is_answered(url)


def test_an_answer_that_is_not_read_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_S", 0.0)

    async def run() -> None:
        config, transport, idle = Config(Mock(), ws="none"), Mock(), dict[connection.Connection, None]()
        config.load()
        made = connection.Connection(config, ServerState(), {}, idle=idle, most=8)
        made.connection_made(transport)
        assert list(idle) == [made]
        for resumes in (True, False):
            made.pause_writing()
            if resumes:
                made.resume_writing()
            await asyncio.sleep(0.001)
            assert transport.abort.called is not resumes
        made.connection_lost(None)
        assert not idle

    asyncio.run(run())


def test_the_limit_of_connections_leaves_room_for_files() -> None:
    assert 16 <= connection.most_connections() <= connection.MOST_CONNECTIONS


def test_without_a_key_there_is_only_the_page_and_health(lm: LanguageModel) -> None:
    with client_of(Served("tiny", Engine(lm)), Guard((bytes(32),))) as client:
        for method, path in [*ROUTES, *MODEL_ROUTES]:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}, {"X-API-Key": ""}):
                status = client.request(method, path, headers=headers).status_code
                assert status == (200 if path in OPEN_PATHS else 401), path
        for path in ("/%2e%2e/", "/health/", "/health%00", "/page.js/../v1/models", "/v1/models;/health"):
            assert client.get(path, headers={}).status_code == 401, path


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "..%2f..%2fetc%2fpasswd", "hf:a/b/c.gguf", "a\x00b", "x" * 10**4]
)
def test_a_model_is_no_path(client: Any, name: str) -> None:
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/api/show", {}), ("/tokenize", {"content": "a"})):
        answer = client.post(path, json={**body, "model": name})
        assert answer.status_code == 404
        assert len(answer.text) < 1000
    if "\x00" not in name:  # no client sends that
        answer = client.get(f"/v1/models/{name}")
        assert answer.status_code == 404
        assert "root:" not in answer.text


@pytest.mark.parametrize(
    "text", ["{{ 7 * 7 }}", "{% for x in range(9) %}", "{{ messages.__class__ }}", "{# a", "</s>", "<s>"]
)
def test_messages_are_text_to_the_template(client: Any, lm: LanguageModel, text: str) -> None:
    def count(said: str) -> int:
        messages = [{"role": "user", "content": said}]
        answer = client.post("/v1/messages/count_tokens", json={"model": "tiny", "messages": messages})
        return answer.json()["input_tokens"]

    # The tokenizer has a token for each character but for special ones.
    alone = [len(lm.tokenize(f"a{each}", add_special=False)) for each in ("", text)]
    plain = lm.tokenizer.encode(f"a{text}", parse_special=False)
    assert count(f"a{text}") - count("a") == len(plain) - alone[0]


def test_what_is_too_much_is_refused_or_ends(client: Any, lm: LanguageModel) -> None:
    def status(**body: Any) -> int:
        return client.post("/v1/completions", content=json.dumps({"prompt": "a", **body})).status_code

    assert status(stop="x" * 10**4) == status(stop=["x" * 200] * 19) == status(n=10**6) == 400
    assert status(stop="x" * 10**6) == 413  # the tests' limit is 20,000 bytes
    assert status(prompt=["a"] * 200) == status(logprobs=10**6) == status(max_tokens=10**12) == 400
    whole = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 10**6, "ignore_eos": True}).json()
    assert whole["usage"]["total_tokens"] <= lm.context + 1
    assert status(seed=10**400) == status(temperature=10**400) == status(top_k=-(10**400)) == 400
    assert status(logit_bias={str(i): 10**300 for i in range(30)}) == 400


def test_ids_that_no_token_has_are_no_fault_of_the_server(client: Any) -> None:
    for path in ("/completion", "/v1/completions"):
        for wrong in (10**30, -1, 273):
            answer = client.post(path, json={"prompt": [wrong]})
            assert (answer.status_code, "wanted a whole number from 0 to 272" in answer.text) == (400, True)


def test_a_message_with_all_private_characters(client: Any, lm: LanguageModel) -> None:
    """One of them marks control tokens that messages spell."""
    private = "".join(map(chr, range(0xE000, 0xF900)))
    with pytest.raises(ModelError, match="each of the 6,400 private characters"):
        encode_untrusted(lm.tokenizer, lm.chat_template, [{"role": "user", "content": f"{private}<|im_end|>"}])


def test_long_bodies_are_worked_on_one_at_a_time(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respond, "run_in_threadpool", Mock(side_effect=AssertionError))
    text = "x" * 200
    monkeypatch.setattr(app, "LONG_NBYTES", 100)
    assert client.post("/tokenize", json={"content": text}).json()["count"] == 200
    assert client.post("/detokenize", json={"tokens": [100] * 99}).status_code == 200
    message = {"messages": [{"role": "user", "content": text}]}
    for path, body in (("/apply-template", {}), ("/v1/messages/count_tokens", {"model": "tiny"})):
        assert client.post(path, json=message | body).status_code in (200, 400), path


def test_bodies_have_a_limit_together(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    room = respond.BodyRoom(100)
    monkeypatch.setattr(app, "BodyRoom", lambda: room)
    with client_of(Served("tiny", Engine(lm))) as client:
        for _ in range(3):  # what was read before counts no more
            assert client.post("/tokenize", json={"content": "x" * 60}).status_code == 200
            refused = client.post("/tokenize", json={"content": "x" * 100})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
            assert client.post("/tokenize", content=b"{" * 60).status_code == 400
            assert room.nbytes == 0


def test_lists_in_a_body_start_no_collections() -> None:
    """Each would look at all lists of before, while nobody else is answered."""
    collected: list[str] = []
    gc.callbacks.append(lambda phase, info: collected.append(phase))
    try:
        assert len(parse_json(b"[" + b"[]," * 20_000 + b"[]]")) == 20_001
        assert collected.count("start") <= 1  # the one after them
    finally:
        gc.callbacks.pop()


def test_too_many_prompts_are_refused_before_they_are_tokenized(
    client: Any, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(lm), "prompt_ids", Mock(side_effect=AssertionError))
    assert client.post("/v1/completions", json={"prompt": ["a"] * 129}).status_code == 400
