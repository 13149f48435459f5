"""What the server refuses, each with its status and the field's name: fields, keys, hosts, sizes, a full queue; disconnects."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from camshaft import LanguageModel
from camshaft.errors import ModelError, SettingError
from camshaft.generate.engine.engine import Engine
from camshaft.serve.app import make_app
from camshaft.serve.guard import Guard, read_keys, read_origins
from camshaft.serve.models.served import Served, served_name
from camshaft.serve.run import listen, url_of
from tests.serve.conftest import SESSIONS, client_of, models_of

USER = [{"role": "user", "content": "hi"}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
CHATS = "/v1/chat/completions"
TEXTS = "/v1/completions"
# Path, body, status, param
REFUSED: list[tuple[str, Any, int, str | None]] = [
    (CHATS, {"messages": USER, "response_format": {}}, 400, "response_format.type"),
    (CHATS, {"messages": USER, "response_format": {"type": "xml"}}, 400, "response_format.type"),
    (CHATS, {"messages": USER, "response_format": {"type": "json_schema"}}, 400, "response_format.json_schema"),
    (CHATS, {"messages": USER, "response_format": FORMAT | {"type": "text"}}, 400, "response_format.json_schema"),
    (CHATS, {"messages": USER, "response_format": FORMAT, "grammar": "root ::= [a]"}, 400, "grammar"),
    (CHATS, {"messages": USER, "json_schema": {"not": {}}}, 400, "json_schema"),
    (CHATS, {"messages": USER, "json_schema": 5}, 400, "json_schema"),
    (CHATS, {"messages": USER, "grammar": "root = x"}, 400, "grammar"),
    (CHATS, {"messages": USER, "structured_outputs": {"regex": "(", "choice": ["a"]}}, 400, "structured_outputs"),
    (CHATS, {"messages": USER, "structured_outputs": {"regex": "("}}, 400, "structured_outputs"),
    (CHATS, {"messages": USER, "structured_outputs": {"choice": []}}, 400, "structured_outputs"),
    (CHATS, {"messages": USER, "nonsense": 1}, 400, "nonsense"),
    (CHATS, {"messages": USER, "model": "other"}, 404, "model"),
    (CHATS, {"messages": USER, "temperature": "hot"}, 400, "temperature"),
    (CHATS, {"messages": USER, "top_p": 0}, 400, "top_p"),
    (CHATS, {"messages": USER, "max_tokens": 1.5}, 400, "max_tokens"),
    (CHATS, {"messages": USER, "n": 10**6}, 400, "n"),
    (CHATS, {"messages": USER, "stop": "x" * 10**4}, 400, "stop"),
    (CHATS, {"messages": USER, "stop": ["x"] * 17}, 400, "stop"),
    (CHATS, {"messages": USER, "seed": 2**64}, 400, "seed"),
    (CHATS, {"messages": USER, "logit_bias": {"273": 1}}, 400, "logit_bias"),
    (CHATS, {"messages": USER, "top_logprobs": 2}, 400, "top_logprobs"),
    (CHATS, {"messages": USER, "stream_options": {}}, 400, "stream_options"),
    (CHATS, {"messages": USER, "stream": True, "stream_options": {"x": 1}}, 400, "stream_options.x"),
    (CHATS, {"messages": []}, 400, "messages"),
    (CHATS, {}, 400, "messages"),
    (CHATS, {"messages": "hi"}, 400, "messages"),
    (CHATS, {"messages": [{"role": "function", "content": "x"}]}, 400, "messages[0].role"),
    (CHATS, {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    (CHATS, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content[0]"),
    (CHATS, {"messages": [{"role": "user", "content": "x" * 100}]}, 400, None),
    (CHATS, {"messages": [{"role": "user", "content": "x" * 15_000}]}, 400, "messages"),
    (TEXTS, {"prompt": "x" * 15_000}, 400, "prompt"),
    (TEXTS, {}, 400, "prompt"),
    (TEXTS, {"prompt": [1.5]}, 400, "prompt"),
    (TEXTS, {"prompt": [273]}, 400, "prompt"),
    (TEXTS, {"prompt": []}, 400, "prompt"),
    (TEXTS, {"prompt": "a", "suffix": "b"}, 400, "model"),
    (TEXTS, {"prompt": "a", "suffix": "b", "echo": True}, 400, "suffix"),
    (TEXTS, {"prompt": "a", "best_of": 2, "n": 3}, 400, "best_of"),
    (TEXTS, {"prompt": "a", "best_of": 2, "stream": True}, 400, "best_of"),
    (TEXTS, {"prompt": "a", "best_of": 2, "echo": True, "logprobs": 0}, 400, "best_of"),
    (TEXTS, {"prompt": "a", "priority": "high"}, 400, "priority"),
    (TEXTS, {"prompt": "a", "echo": True, "logprobs": 1, "stream": True}, 400, "logprobs"),
    (TEXTS, {"prompt": "a", "\ud800": 1}, 400, "?"),
    ("/v1/responses", {"input": "a", "previous_response_id": "resp_1"}, 400, "previous_response_id"),
    ("/v1/responses", {"input": "a", "store": True}, 400, "store"),
    ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema"}}}, 400, "text.format.schema"),
    (
        "/v1/responses",
        {"input": "a", "text": {"format": {"type": "json_schema", "schema": {"enum": []}}}},
        400,
        "text.format",
    ),
    ("/v1/responses", {"input": "a", "text": {"format": 5}}, 400, "text.format"),
    ("/v1/responses", {"input": []}, 400, "input"),
    ("/v1/responses", {"input": [{"type": "function_call_output"}]}, 400, "input[0].output"),
    ("/v1/responses", {"input": [{"role": "user"}], "instructions": "a"}, 400, "input[0].content"),
    ("/tokenize", {"content": 5}, 400, "content"),
    ("/tokenize", {"content": "a", "prompt": "a"}, 400, "content"),
    ("/tokenize", {"prompt": "a", "with_pieces": True}, 400, "with_pieces"),
    ("/detokenize", {"tokens": [5, 999]}, 400, "tokens"),
    ("/detokenize", {"tokens": [[]]}, 400, "tokens"),
    ("/v1/nothing", {}, 404, None),
    ("/health", {}, 405, None),
]


def test_each_wrong_request_has_its_status_and_field(client: Any) -> None:
    for path, body, status, param in REFUSED:
        answer = client.post(path, content=json.dumps(body))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (status, param), (path, body, error)
        assert error["message"]
        assert error["type"]
        assert error["code"]


def test_a_prompt_that_is_too_long_has_a_code_of_its_own(client: Any) -> None:
    for prompt, code, said in (
        ("x" * 100, "context_length_exceeded", "shorten it"),
        ([5, 273], "invalid_value", "token id 273; wanted a whole number from 0 to 272"),
        ("", "invalid_value", "the prompt is empty: it has no tokens to start from"),
    ):
        error = client.post(TEXTS, json={"prompt": prompt}).json()["error"]
        assert error["code"] == code
        assert error["message"].endswith(said)


def test_bodies_that_are_no_json_or_too_large(client: Any) -> None:
    for data in (b"", b"{", b"[1]", b'{"prompt": NaN}', b"[" * 10_000, b"\xff", b'{"seed": ' + b"1" * 5000 + b"}"):
        assert client.post(TEXTS, content=data).status_code == 400, data[:20]
    assert client.post(TEXTS, content=b" " * 20_001).json()["error"]["code"] == "request_too_large"
    accepted = {"prompt": "a", "max_tokens": 1, "user": "u", "presence_penalty": 0, "logit_bias": {}, "suffix": None}
    assert client.post(TEXTS, json=accepted).status_code == 200


def test_a_template_that_refuses_a_chat(client: Any, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    class Template:
        source = ""

        def render(self, messages: Any) -> str:
            raise ModelError("roles must alternate")

    monkeypatch.setitem(vars(lm), "chat_template", Template())
    answer = client.post(CHATS, json={"messages": USER})
    assert (answer.status_code, answer.json()["error"]["message"]) == (422, "roles must alternate")


def test_keys_are_checked_and_pages_of_other_origins_refused(served: Served, lm: LanguageModel, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# keys\nfirst\nsha256:{sha256(b'second').hexdigest()}\n", "utf-8")
    with client_of(served, Guard(read_keys(file))) as client:
        assert client.get("/health").status_code == 200
        for key, status in (("first", 200), ("second", 200), ("third", 401), ("", 401), ("f\u00fcrst", 401)):
            headers = {"Authorization": f"Bearer {key}".encode()}
            answer = client.get("/v1/models", headers=headers)
            assert answer.status_code == status
            assert status == 200 or answer.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/v1/models", headers={"X-API-Key": "first"}).status_code == 200
    for text in ("", "sha256:12"):
        file.write_text(text, "utf-8")
        with pytest.raises(SettingError, match="keys"):
            read_keys(file)
    with client_of(Served("tiny", Engine(lm))) as client:
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Host": "[::1"}, {"Host": ""}):
            assert client.get("/v1/models", headers=headers).status_code == 403, headers
        for headers in ({"Origin": "http://localhost"}, {"Host": "127.0.0.1:80"}, {"Host": "[::1]:80"}):
            assert client.get("/v1/models", headers=headers).status_code == 200, headers


def test_pages_of_chosen_origins_may_ask(served: Served, lm: LanguageModel) -> None:
    page, other = "https://page.example", "https://evil.example"
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    with client_of(served, Guard(origins=read_origins(["https://Page.example"]))) as client:
        for origin, status in ((page, 200), (other, 403)):
            answer = client.get("/v1/models", headers={"Origin": origin})
            assert answer.status_code == status
            assert answer.headers.get("access-control-allow-origin") == (origin if origin == page else None)
    with client_of(Served("tiny", Engine(lm)), Guard((bytes(32),), origins=read_origins(["*"]))) as client:
        before = client.options(
            "/v1/chat/completions", headers={"Origin": page, **asks}
        )  # browsers send no key with it
        assert (before.status_code, before.headers["access-control-allow-origin"]) == (200, "*")
        assert before.headers["access-control-allow-headers"] == asks["Access-Control-Request-Headers"]
        refused = client.get("/v1/models", headers={"Origin": page})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "*")
    for text in ("page.example", "https://page.example/", "https://", ""):
        with pytest.raises(SettingError, match="wanted an origin such as https://"):
            read_origins([text])


def test_a_full_queue_and_an_engine_that_ended(served: Served) -> None:
    with client_of(served) as client:
        body = {"prompt": "a", "max_tokens": 1, "n": 9}
        answer = client.post(TEXTS, json=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")
        assert answer.headers["retry-after"] == "1"
        served.engine.close()
        assert client.get("/health").status_code == 503
        assert client.post(TEXTS, json={"prompt": "a"}).status_code == 503


def test_a_fault_in_a_stream_is_its_last_event(client: Any, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = lm.samplers.draw

    def damaged(samplers: Any, histories: Any) -> list[int]:
        return [-1 if len(ids) > 3 else t for ids, t in zip(histories, draw(samplers, histories), strict=True)]

    monkeypatch.setattr(lm.samplers, "draw", damaged)
    body = {"prompt": [5, 6], "max_tokens": 9, "ignore_eos": True}
    last, done = client.post(TEXTS, json=body | {"stream": True}).text.strip().split("\n\n")[-2:]
    assert "NaN logits" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert done == "data: [DONE]"
    answer = client.post(TEXTS, json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_ends_its_answer(lm: LanguageModel, stream: bool) -> None:
    """The engine has no thread here: the test runs its steps."""
    served = Served("tiny", Engine(lm))
    app = make_app(models_of(served), Guard())
    data = json.dumps({"prompt": "a", "max_tokens": 40, "ignore_eos": True, "stream": stream}).encode()
    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "method": "POST", "path": TEXTS, "headers": headers}
    scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http", "raw_path": TEXTS.encode()}

    async def ask() -> None:
        gone = asyncio.Event()
        messages = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        asking = asyncio.ensure_future(app(dict(scope), receive, send))
        while not served.engine.n_waiting:
            await asyncio.sleep(0)
        served.engine.step()
        assert served.engine.n_running == 1
        gone.set()
        await asking
        served.engine.step()
        assert served.engine.n_running == 0
        assert served.engine.statistics.ended == {"cancelled": 1}

    asyncio.run(ask())
    assert lm.plans.cache.n_free == SESSIONS


def test_names_and_addresses() -> None:
    assert [served_name(name) for name in ("smollm2", "/a/b.Q4_0.gguf", "hf:o/r/c.gguf")] == ["smollm2", "b.Q4_0", "c"]
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert url_of(first) == f"http://127.0.0.1:{port}"
        with pytest.raises(SettingError, match=f"cannot listen at host '127.0.0.1', port {port}"):
            listen("127.0.0.1", port)
    with pytest.raises(SettingError, match=r"^host 'no such host', port \d+: [a-z]"):
        listen("no such host", 80)
