"""Tools in chats: calls in whole and streamed answers, choices, earlier calls, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from camshaft import LanguageModel
from camshaft.serve import ollama
from camshaft.serve.openai.tools import read_tools

pytest.importorskip("llguidance")

CHATS = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 10, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "other"}}
HOW = {"messages": [USER], "seed": 1, "temperature": 1.5, "tools": [TOOL], "max_tokens": 80}


def test_a_required_call_whole_and_streamed(roomy_client: Any) -> None:
    body = HOW | {"tool_choice": "required", "parallel_tool_calls": False}
    choice = roomy_client.post(CHATS, json=body).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert (call["type"], call["function"]["name"]) == ("function", "add")
    assert json.loads(call["function"]["arguments"])["a"] in range(10, 100)

    text = roomy_client.post(CHATS, json=body | {"stream": True, "logprobs": True}).text
    chunks = [json.loads(line[6:])["choices"][0] for line in text.split("\n\n") if line.startswith("data: {")]
    deltas = [each["delta"]["tool_calls"][0] for each in chunks if "tool_calls" in each["delta"]]
    assert deltas[0]["function"] == {"name": "add", "arguments": ""}
    assert deltas[0]["id"].startswith("call_")
    assert {delta["index"] for delta in deltas} == {0}
    assert all(delta.keys() == {"index", "function"} for delta in deltas[1:])
    assert "".join(delta["function"]["arguments"] for delta in deltas) == call["function"]["arguments"]
    assert chunks[-1] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}
    whole = roomy_client.post(CHATS, json=body | {"logprobs": True}).json()["choices"][0]["logprobs"]["content"]
    assert [row for each in chunks for row in (each["logprobs"] or {"content": []})["content"]] == whole


def test_a_function_without_parameters_is_called_without_arguments(roomy_client: Any) -> None:
    body = HOW | {"tools": [OTHER], "tool_choice": "required", "parallel_tool_calls": False, "n": 6}
    for choice in roomy_client.post(CHATS, json=body).json()["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("other", {})


def test_a_stop_string_in_a_call_is_no_call_that_can_be_made(roomy_client: Any) -> None:
    body = HOW | {"tool_choice": "required", "parallel_tool_calls": False, "stop": ["}"]}
    choice = roomy_client.post(CHATS, json=body).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(r'\{"a": \d\d', call["function"]["arguments"])
    text = roomy_client.post(CHATS, json=body | {"stream": True}).text
    assert '"finish_reason":"stop"' in text.replace(" ", "")


def test_the_choice_of_a_function_and_of_none(roomy_client: Any) -> None:
    named = {"type": "function", "function": {"name": "add"}}
    body = HOW | {"tools": [OTHER, TOOL], "tool_choice": named}
    choice = roomy_client.post(CHATS, json=body).json()["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["add"]
    plain = roomy_client.post(CHATS, json={name: value for name, value in HOW.items() if name != "tools"}).json()
    none = roomy_client.post(CHATS, json=HOW | {"tool_choice": "none"}).json()
    assert none["choices"] == plain["choices"]
    auto = roomy_client.post(CHATS, json=HOW | {"max_tokens": 5}).json()["choices"][0]
    assert auto["message"].get("tool_calls") is None
    assert auto["finish_reason"] == "length"


def test_calls_and_results_of_earlier_answers(roomy_client: Any, roomy: LanguageModel) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 12}'}}
    said = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    said += [{"role": "tool", "tool_call_id": "x", "content": "24 <s>"}]
    answer = roomy_client.post(CHATS, json=HOW | {"messages": said, "max_tokens": 2}).json()
    shorter = roomy_client.post(CHATS, json=HOW | {"messages": said[:1], "max_tokens": 2}).json()
    assert answer["usage"]["prompt_tokens"] > shorter["usage"]["prompt_tokens"] + 40


def test_ollama_has_calls_as_objects(roomy_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model does not begin a call by itself, and Ollama's interface has no way to ask for one."""
    required = {"tool_choice": "required", "parallel_tool_calls": False}
    monkeypatch.setattr(ollama, "read_tools", lambda given, served: read_tools(given | required, served))
    options = {"seed": 1, "num_predict": 90, "temperature": 1.5}
    body = {"model": "tiny", "messages": [USER], "tools": [TOOL], "options": options}
    whole = roomy_client.post("/api/chat", json=body | {"stream": False}).json()
    lines = [json.loads(line) for line in roomy_client.post("/api/chat", json=body).text.splitlines()]
    (line,) = [line for line in lines if "tool_calls" in line["message"]]
    for message in (whole["message"], line["message"]):
        function = message["tool_calls"][0]["function"]
        assert (message["content"], function["name"], function["index"]) == ("", "add", 0)
        assert function["arguments"]["a"] in range(10, 100)
    assert lines[-1]["done"]
    said = [USER, whole["message"], {"role": "tool", "tool_name": "add", "content": "24"}]
    again = roomy_client.post(
        "/api/chat", json=body | {"messages": said, "stream": False, "options": {"num_predict": 1}}
    )
    assert again.json()["prompt_eval_count"] > whole["prompt_eval_count"] + 20
    refused = roomy_client.post("/api/chat", json=body | {"format": "json"})
    assert refused.status_code == 400
    assert "'tools' and a form of the answer are given" in refused.json()["error"]


def test_responses_have_calls_as_items(roomy_client: Any) -> None:
    tool = {"type": "function", **TOOL["function"]}
    body = {"input": "hi", "seed": 1, "temperature": 1.5, "tools": [tool], "max_output_tokens": 80}
    body |= {"tool_choice": {"type": "function", "name": "add"}}
    whole = roomy_client.post("/v1/responses", json=body).json()
    (item,) = whole["output"]
    assert (item["type"], item["name"], item["status"]) == ("function_call", "add", "completed")
    assert json.loads(item["arguments"])["a"] in range(10, 100)
    assert whole["tools"] == [tool]
    blocks = roomy_client.post("/v1/responses", json=body | {"stream": True}).text.strip().split("\n\n")
    told = [json.loads(block.partition("\ndata: ")[2]) for block in blocks]
    kinds = [each["type"].removeprefix("response.") for each in told]
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    assert set(kinds[3:-3]) == {"function_call_arguments.delta"}
    assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    assert "".join(each["delta"] for each in told[3:-3]) == item["arguments"] == told[-3]["arguments"]
    assert told[-1]["response"]["output"][0] | {"id": "", "call_id": ""} == item | {"id": "", "call_id": ""}
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "24"}
    said = [{"role": "user", "content": "hi"}, item, output]
    after = roomy_client.post("/v1/responses", json={"input": said, "max_output_tokens": 1}).json()
    before = roomy_client.post("/v1/responses", json={"input": said[:1], "max_output_tokens": 1}).json()
    assert after["usage"]["input_tokens"] > before["usage"]["input_tokens"] + 30
    for wrong, param in (
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL]}, "tools[0].function"),
        ({"input": [{"type": "function_call", "name": "add"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output"}]}, "input[0].output"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"type": "reasoning", "summary": [1]}]}, "input[0].summary"),
    ):
        answer = roomy_client.post("/v1/responses", json=body | wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize("depth", [100, 500, 900])
def test_arguments_of_any_depth_are_read_or_refused(roomy_client: Any, depth: int) -> None:
    arguments = '{"a": ' * depth + '"<s>"' + "}" * depth
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    said = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "<s>"}]
    answer = roomy_client.post(CHATS, json=HOW | {"messages": said, "max_tokens": 1})
    assert answer.status_code == 400 or (answer.status_code == 200 and depth == 100), answer.text
    assert answer.status_code == 200 or answer.json()["error"]["code"] in ("invalid_value", "context_length_exceeded")


def test_what_is_refused_has_its_field(roomy_client: Any) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "nope"}}}
    function = {"name": "add", "arguments": "[1]"}
    array = {"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}
    calls = [{"type": "function", "function": function}]
    long = {"type": "function", "function": {"name": "a", "parameters": {"title": "x" * (1 << 18)}}}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [array]}, "tools[0].function.parameters"),
        (
            {"tools": [TOOL, {"type": "function", "function": {"name": "a", "parameters": bad}}]},
            "tools[1].function.parameters",
        ),
        ({"tools": [long]}, "tools[0].function.parameters"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"response_format": {"type": "json_object"}}, "tools"),
        ({"messages": [USER | {"tool_calls": [1]}]}, "messages[0].tool_calls"),
        ({"messages": [USER | {"tool_call_id": "1"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": calls}]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
    ]  # fmt: skip
    for fields, param in wrong:
        answer = roomy_client.post(CHATS, json=HOW | fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param), (fields, error)
