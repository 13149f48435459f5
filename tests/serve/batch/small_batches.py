"""Lines of requests, and runs of a batch of them with the tiny model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from camshaft import LanguageModel
from camshaft.generate.engine.engine import Engine
from camshaft.serve.batch.run import Tally, run_batch
from camshaft.serve.models.served import Embedder, Served
from tests.serve.conftest import SESSIONS

CHAT, COMPLETION, RESPONSE, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
SAID = [{"role": "user", "content": "b"}]
DRAWN = {"temperature": 1.2, "seed": 5, "max_tokens": 6}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def line_of(custom_id: str, url: str, body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def results_of(path: Path) -> list[Any]:
    data = path.read_bytes()
    assert not data or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def run(lm: LanguageModel, source: Path, target: Path, embedder: Embedder | None = None, **others: Any) -> Tally:
    with Engine(lm, max_queue=1000, prefix_cache=others.pop("prefix_cache", False)) as engine:
        engine.start()
        served = Served("tiny", engine, others.pop("most_body_nbytes", 20_000), embedder=embedder)
        given: dict[str, Any] = {"most_open": 2 * SESSIONS, "progress": lambda tally: None} | others
        tally = run_batch(served, source, target, **given)
    assert lm.plans.cache.n_free == SESSIONS
    return tally
