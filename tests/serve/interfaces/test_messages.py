"""Anthropic's interface: messages whole and streamed, stop sequences, tools, counts, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from camshaft import LanguageModel, Sampling

pytest.importorskip("llguidance")

PATH = "/v1/messages"
USER = {"role": "user", "content": "hi"}
HOW = {"model": "tiny", "max_tokens": 6, "messages": [USER], "seed": 3, "temperature": 1.2}
SAMPLING = Sampling(seed=3, temperature=1.2)
SCHEMA = {
    "properties": {"a": {"type": "integer", "minimum": 10, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
CALLS = HOW | {"tools": [TOOL], "max_tokens": 80, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}


def events(text: str) -> list[Any]:
    """The data of the events, whose names are their types."""
    parts = [block.split("\n") for block in text.removesuffix("\n\n").split("\n\n")]
    read = [json.loads(data.removeprefix("data: ")) for _, data in parts]
    assert [name.removeprefix("event: ") for name, _ in parts] == [each["type"] for each in read]
    return read


def test_a_message_whole_and_streamed(roomy_client: Any, roomy: LanguageModel) -> None:
    said = [{"role": "system", "content": "ab"}, USER]
    generation = roomy.generate(messages=said, max_tokens=6, sampling=SAMPLING)
    wanted = "".join(generation)
    body = HOW | {
        "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    }
    whole = roomy_client.post(PATH, json=body).json()
    assert whole["content"] == [{"type": "text", "text": wanted}]
    assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", "tiny")
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("max_tokens", None)
    usage = whole["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == generation.prompt_tokens
    assert usage["output_tokens"] == 6

    first, *parts, delta, last = events(roomy_client.post(PATH, json=body | {"stream": True}).text)
    assert first["message"]["content"] == []
    assert first["message"]["usage"]["input_tokens"] == generation.prompt_tokens
    assert (parts[0]["type"], parts[-1]["type"]) == ("content_block_start", "content_block_stop")
    assert "".join(part["delta"]["text"] for part in parts[1:-1]) == wanted
    assert delta["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == 6
    assert last == {"type": "message_stop"}


def test_the_stop_sequence_is_named(roomy_client: Any, roomy: LanguageModel) -> None:
    text = "".join(roomy.generate(messages=[USER], max_tokens=6, sampling=SAMPLING))
    body = HOW | {"stop_sequences": ["\x00never", text[2:4]]}
    whole = roomy_client.post(PATH, json=body).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", text[2:4])
    assert whole["content"] == [{"type": "text", "text": text[:2]}]
    assert events(roomy_client.post(PATH, json=body | {"stream": True}).text)[-2]["delta"]["stop_sequence"] == text[2:4]


def test_tools_whole_and_streamed(roomy_client: Any) -> None:
    whole = roomy_client.post(PATH, json=CALLS).json()
    (block,) = whole["content"]
    assert (block["type"], block["name"], whole["stop_reason"]) == ("tool_use", "add", "tool_use")
    assert block["input"] == {"a": block["input"]["a"]}
    assert block["id"].startswith("toolu_")
    _, start, *parts, stop, delta, _ = events(roomy_client.post(PATH, json=CALLS | {"stream": True}).text)
    assert start["content_block"] | {"id": ""} == {"type": "tool_use", "id": "", "name": "add", "input": {}}
    assert json.loads("".join(part["delta"]["partial_json"] for part in parts)) == block["input"]
    assert {start["index"], stop["index"], *(part["index"] for part in parts)} == {0}
    assert delta["delta"]["stop_reason"] == "tool_use"
    named = CALLS | {"tool_choice": {"type": "tool", "name": "add"}}
    assert roomy_client.post(PATH, json=named).json()["content"][0]["name"] == "add"
    none = roomy_client.post(PATH, json=CALLS | {"tool_choice": {"type": "none"}, "max_tokens": 6}).json()
    assert none["content"] == roomy_client.post(PATH, json=HOW).json()["content"]


def test_results_come_before_the_rest_of_a_message(roomy_client: Any) -> None:
    use = {"type": "tool_use", "id": "x", "name": "add", "input": {"a": 12}}
    result = {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "24"}]}
    said = [USER, {"role": "assistant", "content": [{"type": "text", "text": "so"}, use]}]
    counts = [
        roomy_client.post(f"{PATH}/count_tokens", json={"model": "tiny", "messages": messages}).json()["input_tokens"]
        for messages in ([USER], said, [*said, {"role": "user", "content": [result, {"type": "text", "text": "go"}]}])
    ]
    assert counts == sorted(set(counts))
    more = roomy_client.post(f"{PATH}/count_tokens", json={"model": "tiny", "messages": [USER], "tools": [TOOL]}).json()
    assert more["input_tokens"] > counts[0] + 40
    assert (
        roomy_client.post(PATH, json=HOW | {"messages": [*said, {"role": "user", "content": [result]}]}).status_code
        == 200
    )


def test_what_is_refused_says_so_in_anthropics_form(roomy_client: Any) -> None:
    image = {"role": "user", "content": [{"type": "document", "source": {}}]}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"max_tokens": None}, "'max_tokens' is missing"),
        ({"max_tokens": 0}, "'max_tokens' is 0"),
        ({"model": None}, "'model' is missing"),
        ({"messages": []}, "'messages' is empty"),
        ({"messages": [{"role": "system", "content": "a"}]}, "'messages[0].role'"),
        ({"messages": [{"role": "user"}]}, "'messages[0].content' is missing"),
        ({"messages": [image]}, '"document"; wanted text, image, thinking, tool_use, tool_result (others are not supported)'),
        ({"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"system": [{"type": "tool_use"}]}, "'system[0].type' is \"tool_use\"; wanted text"),
        ({"tools": [TOOL | {"input_schema": {"type": "array"}}]}, "'tools[0].input_schema' is not a schema of an object"),
        ({"tools": [TOOL | {"input_schema": {"properties": {"a": {"type": "nope"}}}}]}, "tools[0].input_schema"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "'thinking': the chat template"),
        ({"thinking": {"type": "on"}}, "'thinking.type' is"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "a"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "'tool_choice' without tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"stop_sequences": "x" * 300}, "'stop_sequences'"),
        ({"temperature": -1}, "'temperature'"),
        ({"container": "x"}, "'container' is not supported"),
    ]  # fmt: skip
    for fields, message in wrong:
        answer = roomy_client.post(PATH, json=HOW | fields)
        assert answer.status_code == 400, fields
        body = answer.json()
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        assert message in body["error"]["message"], body
    assert roomy_client.post(PATH, json=HOW | {"model": "other"}).json()["error"]["type"] == "not_found_error"
