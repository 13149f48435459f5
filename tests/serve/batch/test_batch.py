"""A batch has the server's answers to a file of requests; a run that ended early is continued, row for row."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from camshaft import EmbeddingModel, LanguageModel
from camshaft.errors import LogitsError, ModelError, SettingError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Request, Update
from camshaft.serve.batch import files, window
from camshaft.serve.batch.files import Results, read_lines, result_line
from camshaft.serve.batch.run import Tally, run_batch
from camshaft.serve.models.served import Embedder, Served
from camshaft.serve.requests.respond import compact
from tests.serve.conftest import SESSIONS, client_of
from tests.support.fixtures import tiny_encoder

CHAT, COMPLETION, RESPONSE, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
SAID = [{"role": "user", "content": "b"}]
DRAWN = {"temperature": 1.2, "seed": 5, "max_tokens": 6}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
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


def line_of(custom_id: str, url: str, body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def results_of(path: Path) -> list[Any]:
    data = path.read_bytes()
    assert not data or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


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


def run(lm: LanguageModel, source: Path, target: Path, embedder: Embedder | None = None, **others: Any) -> Tally:
    with Engine(lm, max_queue=1000, prefix_cache=others.pop("prefix_cache", False)) as engine:
        engine.start()
        served = Served("tiny", engine, others.pop("most_body_nbytes", 20_000), embedder=embedder)
        given: dict[str, Any] = {"most_open": 2 * SESSIONS, "progress": lambda tally: None} | others
        tally = run_batch(served, source, target, **given)
    assert lm.plans.cache.n_free == SESSIONS
    return tally


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


def test_a_run_goes_on_with_whole_rows_and_cuts_a_torn_one(lm: LanguageModel, tmp_path: Path) -> None:
    lines = [line_of(f"é{i}", COMPLETION, {"prompt": [5, 6, i + 4], **DRAWN}) for i in range(6)]
    source, target = write_lines(tmp_path / "in", lines), tmp_path / "out"
    run(lm, source, target)
    whole = target.read_bytes()
    wanted = {row["custom_id"]: row["response"]["body"]["choices"] for row in results_of(target)}
    ends = [found.end() for found in re.finditer(b"\n", whole)]
    for cut in (0, 1, 5, ends[0] - 1, ends[0], ends[1] + 3, ends[2] + 40, ends[4] - 2, ends[5] - 1, ends[5]):
        target.write_bytes(whole[:cut])
        n_whole = sum(end <= cut for end in ends)
        tally = run(lm, source, target)
        assert (tally.n_before, tally.n_answered, tally.n_done) == (n_whole, 6 - n_whole, 6)
        assert target.read_bytes().startswith(whole[: ends[n_whole - 1] if n_whole else 0])
        rows = results_of(target)
        assert len(rows) == 6
        assert {row["custom_id"]: row["response"]["body"]["choices"] for row in rows} == wanted
    write_lines(source, [*lines, line_of("more", COMPLETION, {"prompt": "a"})])
    assert run(lm, source, target).n_answered == 1
    assert len(results_of(target)) == 7


def test_files_that_cannot_be_used_are_left_as_they_are(lm: LanguageModel, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", [line_of("a", COMPLETION, {"prompt": "a"})])
    other = write_lines(tmp_path / "other", [line_of("b", COMPLETION, {"prompt": "a"})])
    run(lm, source, tmp_path / "out")
    notes = tmp_path / "notes"
    notes.write_text("what I wrote", "utf-8")
    cases = {
        "absent: cannot be read": (tmp_path / "absent", tmp_path / "new"),
        "in: is the file of requests and of results": (source, source),
        "1 of its 1 results answer other requests": (other, tmp_path / "out"),
        "line 1 is not a result of a batch: what I wrote": (source, notes),
        "cannot be written": (source, tmp_path / "none" / "out"),
    }
    for message, (given, target) in cases.items():
        before = target.read_bytes() if target.exists() else None
        with pytest.raises(SettingError, match=re.escape(message)):
            run(lm, given, target)
        assert (target.read_bytes() if target.exists() else None) == before
    with Results(tmp_path / "out"), pytest.raises(SettingError, match="another process writes it"):
        Results(tmp_path / "out")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no /dev")
def test_files_without_an_end_are_refused_and_lines_of_others_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("/dev/full", "/dev/zero"):
        with pytest.raises(SettingError, match="is not a regular file"):
            Results(Path(path))
        with pytest.raises(SettingError, match="is not a regular file"):
            next(read_lines(Path(path), 10))
    monkeypatch.setattr(files, "_PART_NBYTES", 40)
    (tmp_path / "other").write_bytes(b"\0" * 100)
    with pytest.raises(SettingError, match="line 1 is not a result of a batch"):
        Results(tmp_path / "other")
    whole = result_line(b"k" * 12, "a", {"status_code": 200, "body": "x" * 100}, None)
    (tmp_path / "out").write_bytes(whole + whole[:90])
    with Results(tmp_path / "out") as results:
        assert results.done == {b"k" * 12}
    assert (tmp_path / "out").read_bytes() == whole


def test_a_full_disk_is_said_with_the_file_and_gone_on_with_later(lm: LanguageModel, tmp_path: Path) -> None:
    lines = [line_of(str(i), COMPLETION, {"prompt": "a", "max_tokens": 1}) for i in range(4)]
    source, target = write_lines(tmp_path / "in", lines), tmp_path / "out"

    class Full:
        """A file that takes a line and a half."""

        def __init__(self, file: Any) -> None:
            self._file, self._left = file, 600

        def write(self, data: memoryview) -> int:
            if not self._left:
                raise OSError(errno.ENOSPC, "No space left on device")
            n = self._file.write(data[: self._left])
            self._left -= n
            return int(n)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    init = Results.__init__

    def opened(self: Results, path: Path) -> None:
        init(self, path)
        self._file = Full(self._file)  # type: ignore[assignment]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Results, "__init__", opened)
        with pytest.raises(SettingError, match="out: a result cannot be written: No space left on device"):
            run(lm, source, target)
    assert len(target.read_bytes()) == 600
    assert run(lm, source, target).n_before == 1
    assert sorted(row["custom_id"] for row in results_of(target)) == ["0", "1", "2", "3"]


def test_no_requests_make_no_results(lm: LanguageModel, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", ["", " "])
    assert run(lm, source, tmp_path / "out").n_requests == 0
    assert (tmp_path / "out").read_bytes() == b""


def test_prompts_that_begin_alike_run_one_after_the_other(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight beginnings of two blocks are more than the cache has beside those that run."""
    prompts = [[4 + i % 8] * 32 + [5 + i // 8] for i in range(32)]
    lines = [line_of(str(i), COMPLETION, {"prompt": ids, "max_tokens": 2}) for i, ids in enumerate(prompts)]
    source = write_lines(tmp_path / "in", lines)
    tally = run(lm, source, tmp_path / "out", prefix_cache=True, most_open=2)
    assert tally.cached_tokens >= (32 - 8) * 32
    monkeypatch.setattr(window, "WINDOW_REQUESTS", 1)
    assert run(lm, source, tmp_path / "unsorted", prefix_cache=True, most_open=2).cached_tokens < tally.cached_tokens
    monkeypatch.setattr(window, "WINDOW_REQUESTS", 3)
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
