"""Answers of a form: JSON schemas, expressions and grammars under the names that OpenAI's, llama.cpp's, vLLM's and Ollama's
clients use."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("llguidance")

USER = [{"role": "user", "content": "hi"}]
HOW = {"messages": USER, "seed": 1, "temperature": 2.0, "max_tokens": 30}
SCHEMA = {"type": "integer", "minimum": 100, "maximum": 499}  # a short text, however random
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
PATTERN = "[0-9]{3}-[ab]"
FIELDS: list[tuple[dict[str, Any], str | None]] = [
    ({"response_format": FORMAT}, None),
    ({"json_schema": SCHEMA}, None),
    ({"structured_outputs": {"json": SCHEMA}}, None),
    ({"structured_outputs": {"regex": PATTERN}}, PATTERN),
    ({"structured_outputs": {"choice": ["red", "blue"]}}, "red|blue"),
    ({"structured_outputs": {"grammar": 'root ::= "a" [0-9]'}}, "a[0-9]"),
    ({"structured_outputs": {"grammar": "start: /a[0-9]/"}}, "a[0-9]"),
    ({"grammar": 'root ::= "a" [0-9]'}, "a[0-9]"),
]


def check(text: str, pattern: str | None) -> None:
    if pattern is None:
        assert json.loads(text) in range(100, 500)
    else:
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize(("fields", "pattern"), FIELDS)
def test_chats_and_completions(client: Any, fields: dict[str, Any], pattern: str | None) -> None:
    choice = client.post("/v1/chat/completions", json=HOW | fields).json()["choices"][0]
    check(choice["message"]["content"], pattern)
    assert choice["finish_reason"] == "stop"
    body = {"prompt": "a", "seed": 1, "max_tokens": 30, "n": 2} | fields
    for each in client.post("/v1/completions", json=body).json()["choices"]:
        check(each["text"], pattern)


def test_responses_and_streams(client: Any) -> None:
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    body = {"input": "a", "max_output_tokens": 30, "seed": 1, "text": {"format": form}}
    answer = client.post("/v1/responses", json=body).json()
    check(answer["output"][0]["content"][0]["text"], None)
    assert answer["text"] == {"format": form}
    parts = client.post("/v1/chat/completions", json=HOW | {"response_format": FORMAT, "stream": True}).text
    events = [json.loads(line[6:]) for line in parts.split("\n\n") if line.startswith("data: {")]
    check("".join(event["choices"][0]["delta"].get("content", "") for event in events), None)
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_text_is_any_form(client: Any) -> None:
    plain = client.post("/v1/chat/completions", json=HOW).json()["choices"]
    for fields in ({"response_format": {"type": "text"}}, {"structured_outputs": {"json_object": False}}):
        assert client.post("/v1/chat/completions", json=HOW | fields).json()["choices"] == plain
    text = {"input": "a", "max_output_tokens": 3, "seed": 1, "text": {"format": {"type": "text"}}}
    assert client.post("/v1/responses", json=text).status_code == 200


def test_ollama_formats(client: Any) -> None:
    how = {"model": "tiny", "stream": False, "options": {"seed": 1, "num_predict": 30}}
    check(client.post("/api/chat", json=how | {"messages": USER, "format": SCHEMA}).json()["message"]["content"], None)
    check(client.post("/api/generate", json=how | {"prompt": "a", "format": SCHEMA}).json()["response"], None)
    begun = client.post("/api/generate", json=how | {"prompt": "a", "format": "json"}).json()["response"]
    assert begun.startswith("{")
