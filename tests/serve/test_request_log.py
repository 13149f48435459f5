"""The log of requests: a line for each, with texts only where that was asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from camshaft import LanguageModel
from camshaft.errors import SettingError
from camshaft.generate.engine.engine import Engine
from camshaft.serve.app import make_app
from camshaft.serve.guard import Guard
from camshaft.serve.models.served import Served
from camshaft.serve.request_log import LogPlace, opened
from tests.serve.conftest import TestClient, models_of


def test_a_line_of_the_log_says_how_a_request_went_and_texts_only_if_asked_to(
    lm: LanguageModel, tmp_path: Path
) -> None:
    bodies: list[dict[str, Any]] = [
        {"prompt": "secret", "max_tokens": 3, "ignore_eos": True},
        {"prompt": "secret", "max_tokens": 3, "ignore_eos": True, "stream": True},
        {"prompt": "secret", "colour": 1},
    ]
    for with_texts in (False, True):
        path = tmp_path / f"log{with_texts}"
        with opened(LogPlace(path, with_texts)) as log:
            app = make_app(models_of(Served("tiny", Engine(lm))), Guard(), log)
            with TestClient(app, base_url="http://localhost") as client:
                texts = [client.post("/v1/completions?secret", json=body) for body in bodies]
                client.get("/secrets", headers={"Origin": "http://evil.example"})
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        assert [(line["path"], line["status"]) for line in lines] == [
            *[("/v1/completions", 200)] * 2,
            ("/v1/completions", 400),
            ("/secrets", 403),
        ]
        for line in lines[:2]:
            assert (line["model"], line["generated_tokens"], line["ended"]) == ("tiny", 3, ["length"])
            assert line["seconds"] >= line["first_token_seconds"] > 0
            assert line.get("prompts", ["none"]) == (["secret"] if with_texts else ["none"])
        assert lines[0].get("answers") == ([texts[0].json()["choices"][0]["text"]] if with_texts else None)
        assert lines[2]["error"] == "unsupported_parameter"
        assert path.stat().st_mode & 0o077 == 0 or os.name == "nt"
    with pytest.raises(SettingError, match="--log"), opened(LogPlace(tmp_path)):
        pass
