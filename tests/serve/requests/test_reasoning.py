"""Thoughts apart from answers in every interface, whole and streamed, and the fields that ask for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from camshaft import LanguageModel
from camshaft.text.chat import ChatTemplate

CHATS = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
TEMPLATE = """{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{- m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% if enable_thinking is defined and not enable_thinking %}
{{- '<think></think>' }}{% elif forced %}{{ '<think>\n' }}{% endif %}{% endif %}"""
Script = Callable[[str], None]


@pytest.fixture
def script(roomy: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Let the model, whose template has thoughts, write a text."""
    monkeypatch.setitem(vars(roomy), "chat_template", ChatTemplate(TEMPLATE))

    def write(text: str) -> None:
        tokens = [*roomy.tokenize(text, add_special=False), min(roomy.tokenizer.eos_ids)]
        left: list[int] = []

        def draw(samplers: Any, histories: Any) -> list[int]:
            left[:] = left or tokens
            return [left.pop(0)]

        monkeypatch.setattr(roomy.samplers, "draw", draw)

    return write


def data_of(text: str) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]


def test_chats(roomy_client: Any, script: Script) -> None:
    script("<think>ab c\n</think>\n\nhi")
    message = roomy_client.post(CHATS, json={"messages": USER}).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("ab c", "hi")
    text = roomy_client.post(CHATS, json={"messages": USER, "stream": True, "logprobs": True}).text
    deltas = [chunk["choices"][0]["delta"] for chunk in data_of(text)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "ab c"
    assert "".join(delta.get("content", "") for delta in deltas) == "hi"
    raw = roomy_client.post(CHATS, json={"messages": USER, "reasoning_format": "none"}).json()["choices"][0]["message"]
    assert raw["content"] == "<think>ab c\n</think>\n\nhi"
    assert "reasoning_content" not in raw


def test_thoughts_that_the_prompt_begins(roomy_client: Any, script: Script) -> None:
    script("ab</think>hi")
    body = {"messages": USER, "chat_template_kwargs": {"forced": True}}
    message = roomy_client.post(CHATS, json=body).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("ab", "hi")


def test_a_form_closes_the_thoughts(roomy_client: Any, script: Script, roomy: LanguageModel) -> None:
    pytest.importorskip("llguidance")
    body = {"messages": USER, "chat_template_kwargs": {"forced": True}, "max_tokens": 4, "grammar": 'root ::= "abcd"'}
    choice = roomy_client.post(CHATS, json=body).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "abcd", "refusal": None}


def test_responses(roomy_client: Any, script: Script) -> None:
    script("<think>ab c</think>hi")
    whole = roomy_client.post("/v1/responses", json={"input": "x", "reasoning": {"effort": "low"}}).json()
    thoughts, message = whole["output"]
    assert (thoughts["type"], thoughts["summary"], thoughts["status"]) == ("reasoning", [], "completed")
    assert thoughts["content"] == [{"type": "reasoning_text", "text": "ab c"}]
    assert message["content"][0]["text"] == "hi"
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    events = data_of(roomy_client.post("/v1/responses", json={"input": "x", "stream": True}).text)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert list(dict.fromkeys(kinds)) == [
        *("created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done", "output_text.delta", "output_text.done"),
        "completed",
    ]
    said = "".join(event["delta"] for event in events if event["type"] == "response.reasoning_text.delta")
    assert said == events[kinds.index("reasoning_text.done")]["text"] == "ab c"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]


def test_messages(roomy_client: Any, script: Script) -> None:
    script("<think>ab c</think>hi")
    body = {"model": "tiny", "max_tokens": 90, "messages": USER, "thinking": {"type": "enabled", "budget_tokens": 50}}
    thinking = {"type": "thinking", "thinking": "ab c", "signature": ""}
    whole = roomy_client.post("/v1/messages", json=body).json()
    assert whole["content"] == [thinking, {"type": "text", "text": "hi"}]
    events = data_of(roomy_client.post("/v1/messages", json=body | {"stream": True}).text)
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert starts == [thinking | {"thinking": ""}, {"type": "text", "text": ""}]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "ab c"
    assert "".join(delta.get("text", "") for delta in deltas) == "hi"
    n = {
        kind: roomy_client.post("/v1/messages/count_tokens", json={"model": "tiny", "messages": USER, **how}).json()
        for kind, how in {"on": {"thinking": {"type": "adaptive"}}, "off": {}}.items()
    }
    assert n["off"]["input_tokens"] > n["on"]["input_tokens"]  # the template closes the thoughts


def test_ollama(roomy_client: Any, script: Script) -> None:
    script("<think>ab c</think>hi")
    body = {"model": "tiny", "messages": USER, "think": True}
    message = roomy_client.post("/api/chat", json=body | {"stream": False}).json()["message"]
    assert message == {"role": "assistant", "content": "hi", "thinking": "ab c"}
    lines = [json.loads(line)["message"] for line in roomy_client.post("/api/chat", json=body).text.splitlines()]
    assert "".join(line.get("thinking", "") for line in lines) == "ab c"
    assert "".join(line["content"] for line in lines) == "hi"
    answer = roomy_client.post("/api/generate", json={"model": "tiny", "prompt": "x", "stream": False}).json()
    assert (answer["thinking"], answer["response"]) == ("ab c", "hi")


def test_thoughts_of_earlier_answers_reach_the_template(roomy_client: Any, script: Script) -> None:
    script("hi")

    def n_prompt(path: str, body: dict[str, Any]) -> int:
        usage = roomy_client.post(path, json=body).json()["usage"]
        return int(usage.get("prompt_tokens", usage.get("input_tokens", 0)) + usage.get("cache_read_input_tokens", 0))

    answer = {"role": "assistant", "content": "b"}
    plain = n_prompt(CHATS, {"messages": [*USER, answer, *USER]})
    for name in ("reasoning_content", "reasoning", "thinking"):
        assert n_prompt(CHATS, {"messages": [*USER, answer | {name: "cde"}, *USER]}) > plain + 3
    items = [*USER, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "cde"}]}]
    assert n_prompt("/v1/responses", {"input": [*items, answer, *USER]}) > plain + 3
    thinking = {"type": "thinking", "thinking": "cde", "signature": ""}
    said = [*USER, {"role": "assistant", "content": [thinking, {"type": "text", "text": "b"}]}, *USER]
    how = {"model": "tiny", "max_tokens": 9, "thinking": {"type": "adaptive"}}
    assert n_prompt("/v1/messages", {**how, "messages": said}) > plain + 3


def test_what_is_refused(roomy_client: Any) -> None:
    for body, message in (
        ({"reasoning_effort": "high"}, "'reasoning_effort': the chat template of 'tiny' has no reasoning"),
        ({"reasoning_effort": "most"}, "'reasoning_effort' is \"most\""),
        ({"reasoning_format": "xml"}, "'reasoning_format' is \"xml\""),
        ({"chat_template_kwargs": {"messages": []}}, "'chat_template_kwargs.messages' is given by the server"),
    ):
        answer = roomy_client.post(CHATS, json={"messages": USER} | body)
        assert (answer.status_code, message in answer.json()["error"]["message"]) == (400, True), answer.text
    answer = roomy_client.post("/api/chat", json={"model": "tiny", "messages": USER, "think": True})
    assert (answer.status_code, "has no reasoning" in answer.json()["error"]) == (400, True)
    assert roomy_client.post(CHATS, json={"messages": USER, "reasoning_effort": "none", "max_tokens": 1}).is_success


def test_control_tokens_are_shown_where_they_are_asked_for(
    roomy: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mark,) = roomy.tokenize("<|im_start|>", add_special=False)
    how: dict[str, Any] = {"max_tokens": 1, "logit_bias": {mark: 1e4}, "temperature": 0}
    assert "".join(roomy.generate("a", raw=True, **how)) == ""
    assert "".join(roomy.generate("a", raw=True, shown_tokens=["<|im_start|>", "<none>"], **how)) == "<|im_start|>"
    assert roomy.generate_batch(["a"], raw=True, shown_tokens=["<|im_start|>"], **how).texts() == ["<|im_start|>"]
