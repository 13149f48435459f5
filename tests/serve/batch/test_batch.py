"""A batch has the server's answers to a file of requests, in the order and number that its engine can take."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from camshaft import EmbeddingModel, LanguageModel
from camshaft.errors import LogitsError, ModelError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Request, Update
from camshaft.serve.batch import flight
from camshaft.serve.batch.run import Tally, run_batch
from camshaft.serve.models.served import Embedder, Served
from camshaft.serve.requests.respond import compact
from tests.serve.batch.small_batches import (
    CHAT,
    COMPLETION,
    DRAWN,
    EMBEDDING,
    RESPONSE,
    SAID,
    SCHEMA,
    TOOL,
    line_of,
    results_of,
    run,
    write_lines,
)
from tests.serve.conftest import client_of
from tests.support.fixtures import tiny_encoder

BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"model": "tiny", "messages": SAID, **DRAWN, "n": 2, "logprobs": True, "top_logprobs": 2, "stream": False}),
    (CHAT, {"messages": SAID, **DRAWN, "stop": ["a", "e"]}),
    (COMPLETION, {"prompt": ["ab", "ba\ud800"], **DRAWN, "echo": True}),
    (COMPLETION, {"prompt": [5, 6, 7], **DRAWN, "logprobs": 1}),
    (RESPONSE, {"input": "b", "temperature": 0, "max_output_tokens": 4, "metadata": {"é": "ü"}}),
    (EMBEDDING, {"input": ["Hello world!", "The cat"]}),
    (EMBEDDING, {"input": "Hello", "encoding_format": "base64", "model": "bert"}),
    # What is refused.
    (CHAT, {"model": "other", "messages": SAID}),
    (CHAT, {"messages": []}),
    (COMPLETION, {"prompt": "a " * 100}),
    (COMPLETION, {"prompt": "a", "temperature": -1}),
    (RESPONSE, {"input": "b", "previous_response_id": "resp_1"}),
    (EMBEDDING, {"input": "a", "dimensions": 1}),
]
if importlib.util.find_spec("llguidance"):
    BODIES.append((CHAT, {"messages": SAID, **DRAWN, "response_format": SCHEMA}))
    BODIES.append((CHAT, {"messages": SAID, **DRAWN, "tools": [TOOL], "tool_choice": "none"}))


def without_ids(body: bytes) -> bytes:
    """An answer with its ids and times as 0, and without the timings that only the server has."""
    body = re.sub(rb',"timings":{[^}]*}', b"", body)
    body = re.sub(rb'"(chatcmpl-|cmpl-|resp_|msg_|call_)[0-9a-f]+"', rb'"\g<1>0"', body)
    return re.sub(rb'"(created|created_at)":\d+', rb'"\1":0', body)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    path = tiny_encoder("bert", tmp_path_factory.mktemp("embedder"))
    with EmbeddingModel(path, threads=1, activations="f32") as model:
        yield Embedder("bert", model)


def test_answers_are_the_servers_to_the_byte(lm: LanguageModel, embedder: Embedder, tmp_path: Path) -> None:
    lines = [line_of(str(i), url, body) for i, (url, body) in enumerate(BODIES)]
    tally = run(lm, write_lines(tmp_path / "in", lines), tmp_path / "out", embedder)
    rows = {row["custom_id"]: row for row in results_of(tmp_path / "out")}
    assert rows.keys() == {str(i) for i in range(len(BODIES))}
    assert len({row["id"] for row in rows.values()}) == len(BODIES)
    n_answered = 0
    with client_of(Served("tiny", Engine(lm, prefix_cache=False), embedder=embedder)) as client:
        for i, (url, body) in enumerate(BODIES):
            answer, row = client.post(url, content=json.dumps(body)), rows[str(i)]
            assert list(row) == ["id", "custom_id", "response", "error"]
            assert (row["error"], row["response"]["status_code"]) == (None, answer.status_code)
            assert row["response"]["request_id"].startswith("req_")
            assert without_ids(compact(row["response"]["body"])) == without_ids(answer.content)
            n_answered += answer.status_code == 200
    assert (tally.n_answered, tally.n_failed) == (n_answered, len(BODIES) - n_answered)
    assert 7 <= n_answered < len(BODIES)


def test_a_line_that_is_no_request_is_a_row_with_its_error(lm: LanguageModel, tmp_path: Path) -> None:
    good = line_of("a", COMPLETION, {"prompt": "a", "max_tokens": 1})
    wrong = {
        "the line is not valid JSON": "{",
        "NaN is not a JSON number": '{"custom_id": "nan", "body": NaN}',
        "maximum recursion depth": "[" * 80_000,
        "wanted an object": "[1]",
        "'custom_id' is missing": json.dumps({"method": "POST", "url": CHAT, "body": {}}),
        "'custom_id' is 5; wanted a text": json.dumps({"custom_id": 5, "method": "POST", "url": CHAT, "body": {}}),
        "'method' is missing": json.dumps({"custom_id": "m", "url": CHAT, "body": {}}),
        "'method' is \"GET\"": json.dumps({"custom_id": "g", "method": "GET", "url": CHAT, "body": {}}),
        "'url' is \"/v1/models\"": json.dumps({"custom_id": "u", "method": "POST", "url": "/v1/models", "body": {}}),
        "'body' is missing": json.dumps({"custom_id": "b", "method": "POST", "url": CHAT}),
        "'body' is []; wanted an object": json.dumps({"custom_id": "l", "method": "POST", "url": CHAT, "body": []}),
        "'extra' is not supported": json.dumps({"custom_id": "e", "extra": 1}),
        "'custom_id' is \"a\", as in an earlier line": line_of("a", CHAT, {"messages": SAID}),
        "larger than a request": line_of("big", CHAT, {"messages": [{"role": "user", "content": "a" * 90_000}]}),
    }
    streamed = line_of("stream", COMPLETION, {"prompt": "a", "stream": True})
    source = write_lines(tmp_path / "in", [good, *wrong.values(), "", "  ", streamed])
    tally = run(lm, source, tmp_path / "out")
    assert (tally.n_requests, tally.n_answered, tally.n_failed) == (len(wrong) + 2, 1, len(wrong) + 1)
    rows = results_of(tmp_path / "out")
    refused = {row["error"]["line"]: row for row in rows if row["error"] is not None}
    for number, (message, line) in enumerate(wrong.items(), 2):
        row = refused[number]
        assert (message in row["error"]["message"], row["response"]) == (True, None), row
        found = re.match(r'\{"custom_id": "(\w+)"', line)
        is_read = found is not None and row["error"]["code"] not in ("invalid_json", "request_too_large")
        assert row["custom_id"] == (found[1] if found and is_read else None)
    others = {row["custom_id"]: row["response"] for row in rows if row["error"] is None}
    assert (others["a"]["status_code"], others["stream"]["status_code"]) == (200, 400)
    assert others["stream"]["body"]["error"]["param"] == "stream"
    before = (tmp_path / "out").read_bytes()
    assert run(lm, source, tmp_path / "out").n_before == len(rows)
    assert (tmp_path / "out").read_bytes() == before


def test_prompts_that_begin_alike_run_one_after_the_other(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight beginnings of two blocks are more than the cache has beside those that run."""
    prompts = [[4 + i % 8] * 32 + [5 + i // 8] for i in range(32)]
    lines = [line_of(str(i), COMPLETION, {"prompt": ids, "max_tokens": 2}) for i, ids in enumerate(prompts)]
    source = write_lines(tmp_path / "in", lines)
    tally = run(lm, source, tmp_path / "out", prefix_cache=True, most_open=2)
    assert tally.cached_tokens >= (32 - 8) * 32
    monkeypatch.setattr(flight, "WINDOW_REQUESTS", 1)
    assert run(lm, source, tmp_path / "unsorted", prefix_cache=True, most_open=2).cached_tokens < tally.cached_tokens
    monkeypatch.setattr(flight, "WINDOW_REQUESTS", 3)
    assert run(lm, source, tmp_path / "few", most_open=2).n_answered == 32


def test_few_are_in_the_engine_and_results_come_as_they_are_made(lm: LanguageModel, tmp_path: Path) -> None:
    lines = [line_of(str(i), COMPLETION, {"prompt": "a", "n": 1 + i % 3, "max_tokens": 3}) for i in range(12)]
    source, target = write_lines(tmp_path / "in", lines), tmp_path / "out"
    counts, opened = [], []
    with Engine(lm) as engine:
        engine.start()

        def progress(tally: Tally) -> None:
            counts.append((tally.n_done, len(results_of(target))))
            opened.append(engine.n_waiting + engine.n_running)

        tally = run_batch(Served("tiny", engine), source, target, most_open=4, progress=progress)
    assert all(said == written for said, written in counts)
    assert {said for said, _ in counts} == set(range(13))
    assert max(opened) <= 4
    assert (tally.n_done, tally.left_s) == (12, 0)
    assert tally.generated_tokens <= 24 * 3


def test_a_fault_of_one_request_ends_no_other_and_one_of_the_engine_all(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line_of(str(i), COMPLETION, {"prompt": [5, i + 4], "n": 2, "max_tokens": 2}) for i in range(4)]
    source = write_lines(tmp_path / "in", lines)
    faults: dict[int, Exception] = {5: LogitsError("NaN"), 6: ZeroDivisionError()}
    tell = Engine._tell

    def faulty(self: Engine, request: Request, update: Update) -> None:
        error = faults.get(request.ids[1])
        tell(self, request, update if error is None else Update(error=error))

    monkeypatch.setattr(Engine, "_tell", faulty)
    assert run(lm, source, tmp_path / "out").n_failed == 2
    statuses = {row["custom_id"]: row["response"]["status_code"] for row in results_of(tmp_path / "out")}
    assert statuses == {"0": 200, "1": 500, "2": 500, "3": 200}
    monkeypatch.setattr(Engine, "step", lambda self: 1 / 0)
    with pytest.raises(ModelError, match="the engine failed"):
        run(lm, source, tmp_path / "none")
    assert results_of(tmp_path / "none") == []
