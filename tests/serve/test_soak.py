"""64 clients for a long time, some of whom break off, read slowly or send nonsense: nothing is lost, leaked or mixed up.

SOAK_S=1200 python -m pytest -m soak tests/serve/test_soak.py -s

With a draft model a few clients come, since more leave no room for drafts, and drafts are as long as may be, whether they pay or
not.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from camshaft.models.files.quantize import quantize
from camshaft.serve.load.child import serve_command, server
from camshaft.serve.load.stream import AnswerError, Target, post_stream, target_of
from camshaft.serve.load.workload import WORDS
from tests.support.models.files import require_default_model

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(sys.platform != "linux", reason="memory and files of a process are read in /proc"),
]

SECONDS = float(os.environ.get("SOAK_S", "1200"))
CLIENTS, FEW_CLIENTS, BODIES, STUCK_S = 64, 6, 32, 300.0
PATH = "/chat/completions"
SLOTS, CONTEXT = 16, 512
MORE_RSS_NBYTES = 32 << 20  # that the allocator may touch after the warm-up
DRAFT_ALWAYS = """
from camshaft.__main__ import main
from camshaft.generate.engine import drafts
from camshaft.generate.speculation.pace import MOST_ROWS

def lengths(offers, rows, costs, each):
    found = []
    for _, most in offers:
        found.append(max(min(most, 3, MOST_ROWS - rows), 0))
        rows += found[-1]
    return found

drafts.lengths = lengths
main()
"""


def body(index: int) -> dict[str, Any]:
    """A request: a third begins like others, half draws with a seed."""
    drawn = random.Random(index)
    words = drawn.choices(WORDS, k=drawn.choice((3, 20, 200)))
    if index % 3 == 0:
        words = [*WORDS[:60], *words]
    how = {"temperature": 0} if index % 2 else {"temperature": 1.1, "seed": index}
    return {"messages": [{"role": "user", "content": " ".join(words)}], "max_tokens": drawn.randint(1, 40), **how}


@dataclass
class Soak:
    """What the clients share: the lone answer to each body, and counts of what they did."""

    target: Target
    lone: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")  # seconds, and what took them

    async def text(self, index: int, pieces: int | None = None, wait_s: float = 0.0) -> str:
        """The text of a streamed answer, or of its first pieces, after which the client breaks off."""
        parts: list[str] = []
        async with aclosing(post_stream(self.target, PATH, body(index) | {"stream": True})) as events:
            async for event in events:
                parts.append(event["choices"][0]["delta"].get("content") or "")
                await asyncio.sleep(wait_s)
                if pieces is not None and len(parts) > pieces:
                    break
        return "".join(parts)

    async def raw(self, data: bytes, wait_s: float | None = 0.0) -> bytes:
        """What the server says to bytes, or nothing if the client breaks off after `wait_s`."""
        parts = urlsplit(self.target.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write(data)
            if wait_s is not None:
                await asyncio.sleep(wait_s)
                return b""
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.transport.abort()

    def request(self, data: bytes, more: bytes = b"") -> bytes:
        """The bytes of a request."""
        return self.target.head("POST", PATH, len(data) + len(more)) + data


async def whole(soak: Soak, drawn: random.Random) -> bool:
    index = drawn.randrange(BODIES)
    return await soak.text(index) == soak.lone[index]


async def slow(soak: Soak, drawn: random.Random) -> bool:
    index = drawn.randrange(BODIES)
    return await soak.text(index, wait_s=drawn.uniform(0, 0.3)) == soak.lone[index]


async def broken_off(soak: Soak, drawn: random.Random) -> bool:
    index = drawn.randrange(BODIES)
    return soak.lone[index].startswith(await soak.text(index, drawn.randrange(20)))


async def not_streamed(soak: Soak, drawn: random.Random) -> bool:
    index = drawn.randrange(BODIES)
    answer = await soak.raw(soak.request(json.dumps(body(index)).encode()), None)
    return json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"] == soak.lone[index]


async def gone(soak: Soak, drawn: random.Random) -> bool:
    data = json.dumps(
        body(drawn.randrange(BODIES)) | {"stream": drawn.random() < 0.5, "n": drawn.randint(1, 3)}
    ).encode()
    sent = soak.request(data)[: drawn.choice((10, 150, 10**6))]
    return not await soak.raw(sent, drawn.uniform(0, 1))


async def nonsense(soak: Soak, drawn: random.Random) -> bool:
    data = drawn.choice((b"{", b"[]", b'{"messages": 5}', b'{"messages": [], "x": 1}', bytes(drawn.randbytes(50))))
    answers = await soak.raw(soak.request(data), None), await soak.raw(drawn.randbytes(300) + b"\r\n\r\n", None)
    return answers[0].startswith(b"HTTP/1.1 400 ") and answers[1][:13] in (b"", b"HTTP/1.1 400 ")


async def oversized(soak: Soak, drawn: random.Random) -> bool:
    long = json.dumps({"messages": [{"role": "user", "content": "word " * 50_000}]}).encode()
    data, status = drawn.choice(((long, 400), (b" " * (9 << 20), 413)))
    return (await soak.raw(soak.request(data), None))[9:12] in (b"", str(status).encode())


# What a client does, and how often.
ACTS: dict[Callable[[Soak, random.Random], Awaitable[bool]], int] = {
    whole: 8, slow: 3, broken_off: 5, not_streamed: 3, gone: 4, nonsense: 2, oversized: 1,
}  # fmt: skip


async def client(soak: Soak, number: int, until: float) -> None:
    drawn = random.Random(f"client {number}")
    while time.monotonic() < until:
        act, begun = drawn.choices(list(ACTS), list(ACTS.values()))[0], time.monotonic()
        try:
            async with asyncio.timeout(STUCK_S):
                fits = await act(soak, drawn)
        except (TimeoutError, AnswerError, OSError, ValueError, LookupError) as error:
            fits = False
            soak.wrong.append(f"{act.__name__}: {type(error).__name__} {error}"[:300])
        soak.done[act.__name__] += 1
        soak.slowest = max(soak.slowest, (round(time.monotonic() - begun, 1), act.__name__))
        if not fits:
            soak.done[f"{act.__name__}, wrong"] += 1


async def crowd(soak: Soak, seconds: float, n_clients: int) -> None:
    until = time.monotonic() + seconds
    await asyncio.gather(*(client(soak, number, until) for number in range(n_clients)))


def metrics(url: str) -> dict[str, int]:
    """What /metrics says."""
    with urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = re.findall(r"^camshaft_(\w+)(?:\{[^}]*\})? ([\d.]+)$", answer.read().decode(), re.MULTILINE)
    return {name: int(float(value)) for name, value in lines}


def state(url: str, process: int) -> dict[str, int]:
    """Open files, memory, and what /metrics says of requests and blocks, once nothing runs any more."""
    for _ in range(600):
        said = metrics(url)
        if not said["requests_running"] and not said["requests_waiting"]:
            break
        time.sleep(0.1)
    time.sleep(1)  # the connection of the last question
    pages = int(Path(f"/proc/{process}/statm").read_text("ascii").split()[1])
    used = said["prefix_blocks"] - said["prefix_blocks_idle"]
    kept = {name: said[name] for name in ("requests_running", "requests_waiting")}
    files = len(list(Path(f"/proc/{process}/fd").iterdir()))
    return kept | {"blocks in use": used, "files": files, "rss": pages * os.sysconf("SC_PAGE_SIZE")}


async def fill(soak: Soak) -> None:
    """Touch all the memory of keys and values that the server has reserved, which grows to that with the tokens at once."""
    words = [" ".join(random.Random(f"fill {i}").choices(WORDS, k=CONTEXT // 3)) for i in range(SLOTS)]
    bodies = [
        {"messages": [{"role": "user", "content": each}], "max_tokens": CONTEXT, "ignore_eos": True} for each in words
    ]

    async def whole(data: dict[str, Any]) -> None:
        async with aclosing(post_stream(soak.target, PATH, data | {"stream": True})) as events:
            async for _ in events:
                pass

    await asyncio.gather(*map(whole, bodies))


def command(model: Path, folder: Path, *, drafts: bool) -> list[str]:
    """The server's command line."""
    made = serve_command(str(model), "--threads", "2", "--context", str(CONTEXT), "--slots", str(SLOTS))
    if not drafts:
        return made
    draft = folder / "draft.gguf"
    quantize(model, draft, "Q2_K")  # of which some drafts are right
    return [made[0], "-c", DRAFT_ALWAYS, *made[made.index("serve") :], "--speculate", str(draft)]


@pytest.mark.parametrize(("drafts", "n_clients"), [(False, CLIENTS), (True, FEW_CLIENTS)], ids=["plain", "drafts"])
def test_a_crowd_leaves_no_trace_and_gets_the_lone_answers(tmp_path: Path, drafts: bool, n_clients: int) -> None:
    log = tmp_path / "log"
    with server(command(require_default_model(), tmp_path, drafts=drafts), log=log) as (url, process):
        soak = Soak(target_of(url))
        soak.lone = [asyncio.run(soak.text(index)) for index in range(BODIES)]
        asyncio.run(fill(soak))
        asyncio.run(crowd(soak, min(60.0, SECONDS / 4), n_clients))
        before, begun = state(url, process), time.monotonic()
        while (left := SECONDS - (time.monotonic() - begun)) > 0:
            asyncio.run(crowd(soak, min(120.0, left), n_clients))
            print(round(time.monotonic() - begun), "s", dict(soak.done), state(url, process), flush=True)
        after, counted = state(url, process), metrics(url)
        again = [asyncio.run(soak.text(index)) for index in range(BODIES)]
    said = "".join(line for line in log.read_text("utf-8").splitlines(True) if "Invalid HTTP request" not in line)
    drafted, accepted = counted["drafted_tokens_total"], counted["accepted_tokens_total"]
    print("the slowest took", *soak.slowest, flush=True)
    print(f"{drafted} tokens drafted, {accepted} of them right; {counted['drafting_seconds_total']} s", flush=True)
    assert 0 < accepted < drafted if drafts else drafted == 0
    assert soak.wrong == [], said[-4000:]
    assert not [name for name in soak.done if name.endswith("wrong")], soak.done
    assert again == soak.lone
    assert after.pop("rss") < before.pop("rss") + MORE_RSS_NBYTES
    assert after == before
