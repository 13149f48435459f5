"""Addresses of llama.cpp's server: what they answer, and the timings in answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from camshaft import LanguageModel
from camshaft.generate.engine import drafts
from camshaft.generate.engine.engine import Engine
from camshaft.serve.models.served import Served
from tests.generate.conftest import CONTEXT, SESSIONS
from tests.serve.conftest import client_of

USER = [{"role": "user", "content": "hi"}]
PROMPT = "<|im_start|>user\nhi<|im_end|>\n"
HOW = {"temperature": 0, "ignore_eos": True, "n_predict": 5}
FILL = {"fim_pre": 10, "fim_suf": 11, "fim_mid": 12}
SAID = {"input_prefix": "ab", "input_suffix": "cd"}


def events(text: str) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]


def test_props(client: Any, lm: LanguageModel) -> None:
    props = client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == CONTEXT
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert (props["total_slots"], props["model_alias"]) == (SESSIONS, "tiny")
    assert props["chat_template"] == lm.chat_template.source
    assert client.get("/props?model=tiny").json() == props
    assert client.get("/props?model=other").status_code == 404


def test_slots(served: Served, client: Any) -> None:
    about = {"n_ctx": CONTEXT, "is_processing": False, "speculative": False}
    idle = [{"id": i, **about} for i in range(SESSIONS)]
    assert client.get("/slots").json() == idle
    begun = client.stream("POST", "/completion", json=HOW | {"prompt": [5, 6, 7], "n_predict": 40, "stream": True})
    with begun as response:
        next(response.iter_lines())
        rows = client.get("/slots").json()  # the answer may have ended by now
    assert [row["id"] for row in rows] == list(range(SESSIONS))
    assert all(row["n_prompt_tokens"] == 3 for row in rows if row["is_processing"])


def test_the_prompt_of_a_chat_as_text(client: Any, lm: LanguageModel) -> None:
    prompt = client.post("/apply-template", json={"messages": USER}).json()["prompt"]
    assert prompt == PROMPT + "<|im_start|>assistant\n"
    assert client.post("/apply-template", json={"messages": USER, "add_generation_prompt": False}).json() == {
        "prompt": PROMPT
    }
    counted = client.post("/v1/chat/completions/input_tokens", json={"messages": USER}).json()
    assert counted["input_tokens"] == len(lm.tokenize(prompt, add_special=False))
    assert client.post("/apply-template", json={"messages": []}).status_code == 400


def test_a_completion_whole_and_streamed(client: Any, lm: LanguageModel) -> None:
    wanted = "".join(lm.generate([5, 6, 7], max_tokens=5, ignore_eos=True, temperature=0))
    whole = client.post("/completion", json=HOW | {"prompt": [5, 6, 7]}).json()
    assert (whole["content"], whole["stop_type"], whole["tokens_predicted"]) == (wanted, "limit", 5)
    *parts, last = events(client.post("/completion", json=HOW | {"prompt": [5, 6, 7], "stream": True}).text)
    assert "".join(part["content"] for part in parts) == wanted
    assert [part["stop"] for part in (*parts, last)] == [False] * len(parts) + [True]
    stopped = client.post("/completion", json=HOW | {"prompt": [5, 6, 7], "stop": wanted[1]}).json()
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", wanted[1])
    for body, message in (
        ({"prompt": ["a", "b"]}, "'prompt' has several prompts"),
        ({"prompt": "a", "n_probs": 3}, "'n_probs' is not supported"),
        ({"prompt": "a", "cache_prompt": False}, "'cache_prompt' is false"),
    ):
        answer = client.post("/completion", json=body)
        assert (answer.status_code, message in answer.json()["error"]["message"]) == (400, True), answer.text


def test_infill(client: Any, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def ids(text: str) -> list[int]:
        return lm.tokenizer.encode(text, add_special=False, at_start=False)

    def asked(**fields: Any) -> str:
        answer = client.post("/infill", json=HOW | SAID | fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["content"])

    def wanted(prompt: list[int]) -> str:
        return "".join(lm.generate(prompt, max_tokens=5, ignore_eos=True, temperature=0))

    refused = client.post("/infill", json=SAID)
    assert refused.status_code == 400
    message = "the model 'tiny' has no tokens to fill in: fim_prefix, fim_suffix, fim_middle"
    assert refused.json()["error"]["message"] == message
    monkeypatch.setitem(vars(lm), "fill_tokens", FILL)
    filled = [10, *ids("ab"), *ids("x"), 11, *ids("cd"), 12]
    assert asked(prompt="x") == wanted(filled)
    extra = [{"filename": "f", "text": "e"}]
    assert asked(prompt="x", input_extra=extra) == wanted([*ids("\n\n--- snippet ---\n\ne"), *filled])
    monkeypatch.setitem(vars(lm), "fill_tokens", FILL | {"fim_rep": 13, "fim_sep": 14})
    assert asked(prompt="x", input_extra=extra) == wanted([13, *ids("project\n"), 14, *ids("f\ne"), *filled])
    for body, param in (
        ({"input_prefix": "a"}, "input_suffix"),
        (SAID | {"input_extra": [{"filename": "f"}]}, "input_extra[0].text"),
        (SAID | {"input_extra": [{"path": "f"}]}, "input_extra[0].path"),
        (SAID | {"n_indent": 4}, "n_indent"),
    ):
        answer = client.post("/infill", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_timings(client: Any, path: str) -> None:
    body = {"messages": USER} if "chat" in path else {"prompt": [5] * 9}
    body |= {"max_tokens": 3, "ignore_eos": True}
    whole = client.post(path, json=body).json()
    timings, usage = whole["timings"], whole["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert (timings["cache_n"], timings["prompt_n"]) == (cached, usage["prompt_tokens"] - cached)
    assert timings["predicted_n"] == 3
    assert min(timings["prompt_ms"], timings["predicted_ms"], timings["predicted_per_second"]) > 0
    for more, n in ({}, 1), ({"stream_options": {"include_usage": True}}, 1), ({"n": 2}, 0):
        chunks = events(client.post(path, json=body | {"stream": True} | more).text)
        assert [chunk for chunk in chunks if "timings" in chunk] == (chunks[-1:] if n else [])
        assert sum(chunk["choices"] != [] and chunk["choices"][0]["finish_reason"] == "length" for chunk in chunks) == (
            more.get("n", 1)
        )


@pytest.mark.parametrize("kind", ["ngram", "model"])
def test_drafts_are_counted(
    lm: LanguageModel, roomy: LanguageModel, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(drafts, "lengths", lambda offers, rows, costs, each: [most for _, most in offers])
    speculate = roomy if kind == "model" else kind
    body = {"prompt": [40, 41, 42] * 3, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    with client_of(Served("tiny", Engine(lm))) as client:
        plain = client.post("/v1/completions", json=body).json()
    with client_of(Served("tiny", Engine(lm, speculate=speculate))) as client:
        drafted = client.post("/v1/completions", json=body).json()
        metrics = client.get("/metrics").text
        assert [row["speculative"] for row in client.get("/slots").json()] == [True] * SESSIONS
        with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
            next(response.iter_lines())
            running = [row for row in client.get("/slots").json() if row["is_processing"]]  # it may have ended
    assert all(row["draft_n_accepted"] <= row["draft_n"] for row in running)
    assert drafted["choices"] == plain["choices"]
    timings = drafted["timings"]
    assert 0 <= timings["draft_n_accepted"] <= timings["draft_n"]
    assert (timings["draft_n_accepted"] == timings["draft_n"]) == (kind == "model")
    assert "camshaft_drafting_seconds_total" in metrics
    assert f'camshaft_drafted_tokens_total{{model="tiny"}} {timings["draft_n"]}' in metrics
    assert f'camshaft_accepted_tokens_total{{model="tiny"}} {timings["draft_n_accepted"]}' in metrics
    assert "draft_n" not in plain["timings"]
