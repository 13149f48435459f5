"""The load generator, against servers that say what a test wants: records, errors and the command."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from camshaft.cli.main import make_app
from camshaft.errors import ModelError
from camshaft.serve.load.child import READY, server
from camshaft.serve.load.run import Record, ask, first_model, run_load
from camshaft.serve.load.stream import AnswerError, Target, target_of
from camshaft.serve.load.workload import Workload

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


USAGE = event(
    {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
    }
)
ANSWER = chunk("") + b": keep-alive\n\n" + chunk("a") + chunk("b") + chunk("") + USAGE + DONE


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return (
        OK
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts)
        + b"0\r\n\r\n"
    )


class Fake:
    """Answers every POST with `answer`, and GET with a list of models; keeps the requests' heads and bodies."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.asked, self.open, self.most_open = answer, list[tuple[bytes, Any]](), 0, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        head = await reader.readuntil(b"\r\n\r\n")
        n = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        body = await reader.readexactly(n)
        answer = self.answer
        if head.startswith(b"GET"):
            listed = b'{"data": [{"id": "fake"}]}'
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(listed), listed)
        else:
            self.asked.append((head, json.loads(body)))
        for i in range(0, len(answer) - 100, 100):
            writer.write(answer[i : i + 100])
            await asyncio.sleep(0)
        self.open -= 1
        writer.write(answer[-(len(answer) % 100 or 100) :])
        writer.close()

    @asynccontextmanager
    async def at(self) -> AsyncIterator[Target]:
        listening = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        async with listening:
            yield target_of(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/", "key")

    @contextmanager
    def in_thread(self) -> Iterator[str]:
        begun, loop = threading.Event(), asyncio.new_event_loop()
        ended, urls = asyncio.Event(), list[str]()

        async def run() -> None:
            async with self.at() as target:
                urls.append(target.url)
                begun.set()
                await ended.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=[run()])
        thread.start()
        assert begun.wait(60)
        yield urls[0]
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def asked_once(fake: Fake, timeout_s: float = 60.0) -> Record:
    async def run() -> Record:
        async with fake.at() as target:
            return await ask(target, Workload(1), 0, "m", timeout_s)

    return asyncio.run(run())


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_a_stream_is_read_however_it_is_cut(size: int) -> None:
    fake = Fake(chunked(ANSWER, size))
    record = asked_once(fake)
    assert (record.error, len(record.pieces)) == (None, 2)
    assert (record.prompt_tokens, record.cached_tokens, record.answer_tokens) == (9, 4, 5)
    assert record.sent <= record.pieces[0] <= record.pieces[1] <= record.ended
    head, body = fake.asked[0]
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer key\r\n" in head
    assert body == Workload(1).body(0, "m")
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b'HTTP/1.1 429 No\r\nContent-Length: 33\r\n\r\n{"error": {"message": "queue full"}}', "status 429: "),
        (b'HTTP/1.1 404 No\r\n\r\n{"error": {"message": "no\\nmodel"}}', "status 404: no model"),
        (b"HTTP/1.1 500 No\r\n\r\n", "status 500: without a message"),
        (b"SSH-2.0-x\r\n\r\n", "the answer is not HTTP: it begins with 'SSH-2.0-x'"),
        (b"", "the answer is not HTTP: 0 bytes read"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "the answer is not HTTP: invalid literal"),
        (OK + b"Content-Length: 500\r\n\r\n" + chunk("a"), "the answer is not HTTP: "),
        (OK + b"\r\n" + chunk("a"), "the stream ended without its end mark"),
        (OK + b"\r\ndata: {\n\n", "an event is not JSON: {"),
        (OK + b"\r\n" + event([1]), "an event is an error: [1]"),
        (OK + b"\r\n" + event({"error": {"message": "it broke"}}), "an event is an error: it broke"),
        (OK + b"\r\n" + event({"choices": 5}), "an event does not have the form of OpenAI's interface"),
        (OK + b"\r\n" + event({"usage": {}, "choices": [5]}), "an event does not have the form of OpenAI's interface"),
        (OK + b"\r\n" + chunk("") + DONE, "the answer has no text"),
    ],
)
def test_what_goes_wrong_is_in_the_record(answer: bytes, error: str) -> None:
    assert (asked_once(Fake(answer)).error or "").startswith(error)


def test_a_server_that_is_silent_or_absent() -> None:
    class Silent(Fake):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

    assert asked_once(Silent(b""), 0.05).error == "no whole answer within 0.05 s"
    gone = asyncio.run(ask(Target("http://127.0.0.1:1/v1"), Workload(1), 0, "m"))
    assert gone.error is not None
    assert "127.0.0.1" in gone.error
    with pytest.raises(AnswerError, match=r"http://127\.0\.0\.1:1/v1: "):
        asyncio.run(first_model(Target("http://127.0.0.1:1/v1")))


def test_clients_ask_one_after_the_other() -> None:
    async def run(workload: Workload) -> tuple[Fake, list[Record]]:
        fake, steps = Fake(chunked(ANSWER, 50)), list[tuple[int, int]]()
        async with fake.at() as target:
            records = await run_load(target, workload, "m", lambda *step: steps.append(step))
        assert steps == [(i, len(records)) for i in range(len(records) + 1)]
        return fake, records

    for workload, most in ((Workload(9, 3), 3), (Workload(9, None, 1e5), 9)):
        fake, records = asyncio.run(run(workload))
        assert [record.error for record in records] == [None] * 9
        assert fake.most_open <= most
        wanted = {workload.prompt(i) for i in range(9)}
        assert {body["messages"][0]["content"] for _, body in fake.asked} == wanted
        assert len(wanted) == 9


def test_the_command_measures_a_server(tmp_path: Path) -> None:
    fake, drawn, key = Fake(chunked(ANSWER, 50)), tmp_path / "chart.svg", tmp_path / "key"
    key.write_text("key\n", "utf-8")
    app = make_app(["bench", "bench serve"])
    with fake.in_thread() as url:
        common = ["bench", "serve", "--url", url, "--requests", "3", "--api-key-file", str(key)]
        ran = CliRunner().invoke(app, [*common, "--clients", "1", "--clients", "2", "--json", "--chart", str(drawn)])
        table = CliRunner().invoke(app, [*common, "--rate", "1000", "name"])
    loads = json.loads(ran.stdout)["loads"]
    assert [(load["workload"]["clients"], load["answer_tokens"], load["failed"]) for load in loads] == [
        (1, 15, 0),
        (2, 15, 0),
    ]
    assert ElementTree.parse(drawn).getroot().tag.endswith("svg")
    assert table.stdout.splitlines()[1].split()[:4] == ["1000", "requests/s", "3", "0"]
    assert {body["model"] for _, body in fake.asked} == {"fake", "name"}


def test_wrong_options_of_the_command_are_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "key"
    empty.touch()
    wrong = {
        "--clients and --rate are given": ["--clients", "1", "--rate", "1"],
        "there is no folder": ["--chart", str(tmp_path / "none" / "a.svg")],
        "has no scheme and host": ["--url", "localhost"],
        "has no API key": ["--url", "http://h", "--api-key-file", str(empty)],
        "http://127.0.0.1:1/v1: ": ["--url", "http://127.0.0.1:1"],
        "such.gguf": ["such.gguf"],
    }
    for message, arguments in wrong.items():
        ran = CliRunner().invoke(make_app(["bench serve"]), ["bench", "serve", *arguments])
        assert (ran.exit_code, message in ran.stderr, ran.stderr.count("\n")) == (2, True, 1), ran.stderr


def test_a_server_in_a_process_of_its_own() -> None:
    code = "import time; print('camshaft: serving m at http://h:5/v1, 1 at once', flush=True); time.sleep(600)"
    with server([sys.executable, "-c", code], READY) as (address, process):
        assert address == "http://h:5"
        assert process > 0
    with (
        pytest.raises(ModelError, match="the server did not start: no such model"),
        server([sys.executable, "-c", "raise SystemExit('camshaft: no such model')"]),
    ):
        pass
