"""The chat page: its files need nothing from outside, and in a browser it sends, streams, stops, edits, retries and remembers."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from camshaft import LanguageModel, Sampling
from camshaft.generate.engine.engine import Engine
from camshaft.serve.app import MODEL_ROUTES, ROUTES, make_app
from camshaft.serve.guard import Guard
from camshaft.serve.models.entry import EMBEDDING
from camshaft.serve.models.models import Models
from camshaft.serve.models.served import Served
from camshaft.serve.requests.fields import BODIES
from camshaft.serve.run import listen, url_of
from camshaft.serve.web import FILES, POLICY
from tests.serve.conftest import models_of
from tests.support.browser import TIMEOUT_S, browser

FOLDER = files("camshaft.serve") / "page"


def test_the_page_is_small_and_needs_nothing_from_outside(client: Any) -> None:
    n_bytes = 0
    for path, (name, media_type) in FILES.items():
        answer = client.get(path)
        assert answer.headers["content-type"].startswith(media_type)
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.content == (FOLDER / name).read_bytes()
        assert not re.search(r"://|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", answer.text)
        n_bytes += len(answer.content)
    assert n_bytes < 150_000


PROBE = (Path(__file__).parent / "probe.js").read_text("utf-8")


class Probed:
    """The application with the page at /probe, whose load ends when the probe has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._done = app, asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == "/probe":
            html = (FOLDER / "page.html").read_text("utf-8")
            html = html.replace("</head>", '<script src="probe.js" defer></script></head>')
            html = html.replace("</body>", '<img src="wait" alt=""></body>')
            headers = {"Content-Security-Policy": POLICY.replace("img-src data:", "img-src data: 'self'")}
            answer = Response(html, media_type="text/html", headers=headers)
        elif path == "/probe.js":
            answer = Response(PROBE, media_type="text/javascript")
        elif path in ("/wait", "/done"):
            if path == "/done":
                self._done.set()
            await self._done.wait()
            answer = Response(status_code=204)
        else:
            await self._app(scope, receive, send)
            return
        await answer(scope, receive, send)


@pytest.fixture
def url(lm: LanguageModel) -> Iterator[str]:
    with Engine(lm) as engine, listen("127.0.0.1", 0) as listening:
        one = models_of(Served("tiny", engine))
        card, loaded = one.entries["tiny"].card, one.entries["tiny"].loaded
        assert loaded is not None
        vectors = replace(card, name="vectors", kind=EMBEDDING)
        models = Models([vectors, card, replace(card, name="other")])
        models.put("tiny", loaded)
        app = Probed(make_app(models, Guard()))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield url_of(listening)
        server.should_exit = True
        thread.join()


@pytest.mark.full
def test_a_browser_chats(url: str, lm: LanguageModel, tmp_path: Path) -> None:
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}"]
    done = subprocess.run(
        [browser(), *options, "--dump-dom", f"{url}/probe"], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    match = re.search(r'<pre id="probed"[^>]*>(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stdout[-500:] + done.stderr[-500:]
    found = json.loads(unescape(match[1]))
    wanted = {}
    for text in ("<b>a</b>", "b"):
        messages = [{"role": "user", "content": text}]
        wanted[text] = "".join(lm.generate(messages=messages, max_tokens=4, sampling=Sampling(greedy=True)))
    assert [each.split() for each in (found["first"], found["retried"])] == [wanted["<b>a</b>"].split()] * 2
    assert found["user"] == "<b>a</b>"
    assert re.match(r"\d tokens, [\d.]+ a second, first after [\d.]+ s", found["note"])
    assert found["stored"] == [[{"role": "user", "content": "b"}, {"role": "assistant", "content": wanted["b"]}]]
    assert "the context is 48" in found["alert"]
    assert found["status"] == "Stopped"
    assert found["titles"] == ["b", "<b>a</b>"]
    assert (found["left"], found["unnamed"]) == (1, 0)
    assert (found["attach"], found["size"], found["images"]) == (True, [1024, 512], [1, 0])  # this model takes none
    assert found["unread"] == "text.txt is not an image that this browser reads"
    assert "the model sees no images" in found["refused"]
    assert (found["models"], found["chosen"]) == (["tiny", "other"], "other")
    assert found.keys().isdisjoint({"error", "forbidden"}), found


@pytest.mark.full
def test_a_browser_shows_every_address_and_field(url: str, tmp_path: Path) -> None:
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}"]
    command = [browser(), *options, "--virtual-time-budget=5000", "--dump-dom", f"{url}/docs"]
    shown = unescape(subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S).stdout)
    for method, path in (*ROUTES, *MODEL_ROUTES):
        assert f"<code>{method} {path.replace(':path', '')}</code>" in shown, path
    for body in BODIES.values():
        assert all(f"<code>{name}</code>" in shown for name in body.fields)
    assert '<main id="addresses" aria-busy="false">' in shown
