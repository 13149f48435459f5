"""What templates are told of tools and calls: in the style that each wants, or in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from camshaft.generate.tools.styles import (
    DEEPSEEK,
    DEEPSEEK_R1,
    GENERIC,
    HARMONY_CALLS,
    HERMES,
    LLAMA_3,
    MISTRAL,
    MISTRAL_ARGS,
    style_of,
    with_tools,
)
from camshaft.text.chat import ChatTemplate
from tests.generate.tools.two_tools import HERMES_TEXT, TOOLS

pytest.importorskip("llguidance")
USER = [{"role": "user", "content": "hi"}]
CALL = {"id": "1", "name": "add", "arguments": {"a": 12}}


def test_styles_of_templates() -> None:
    hermes = "{% for t in tools %}{{ t | tojson }}{% endfor %}<tool_call>\n{'name': x, \"arguments\": y}"
    llama = '{% if tools is not none %}{{ \'Environment: ipython\' }}{% endif %}{"name": n, "parameters": d}'
    coder = "{% if tools %}<tool_call><function=x>{% endif %}"
    native = "{% if tools %}x{% endif %}"
    others = {
        "<|channel|>commentary to=functions.": HARMONY_CALLS,
        "[TOOL_CALLS] [": MISTRAL,
        "[TOOL_CALLS]a[ARGS]": MISTRAL_ARGS,
        "<｜tool▁sep｜>": DEEPSEEK,
        "<｜tool▁sep｜>```json": DEEPSEEK_R1,
    }
    assert {text: style_of(ChatTemplate(native + text)) for text in others} == others
    sources = {hermes: HERMES, llama: LLAMA_3, coder: GENERIC, "{{ messages }}": GENERIC, "{{ notools }}": GENERIC}
    assert {source: style_of(ChatTemplate(source)) for source in sources} == sources


def test_a_template_with_tools_gets_them_as_they_are() -> None:
    called: list[dict[str, Any]] = [*USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    messages, variables = with_tools(HERMES, called, TOOLS)
    assert variables == {"tools": [tool.json for tool in TOOLS]}
    assert messages[0] == USER[0]
    function = {"name": "add", "arguments": {"a": 12}}
    assert messages[1]["tool_calls"] == [{"id": "1", "type": "function", "function": function}]
    assert with_tools(HERMES, USER, ()) == (USER, {})


def test_calls_as_other_templates_want_them() -> None:
    result = {"role": "tool", "content": "24", "tool_call_id": "call_12345"}
    call = {"role": "assistant", "content": "so", "thinking": "hm", "tool_calls": [CALL | {"id": "call_12345"}]}
    for style in (MISTRAL, DEEPSEEK, HARMONY_CALLS):
        (called, answered), _ = with_tools(style, [call, result], ())
        made = called["tool_calls"][0]
        assert made["id"] == answered["tool_call_id"]
        assert (len(made["id"]) == 9 and made["id"].isalnum()) == (style is MISTRAL)
        assert made["function"]["arguments"] == ('{"a": 12}' if style is DEEPSEEK else {"a": 12})
        assert ("thinking" in called) == (style is not HARMONY_CALLS)


def test_another_template_is_told_in_words() -> None:
    result = {"role": "tool", "content": "24", "tool_call_id": "1"}
    called = [*USER, {"role": "assistant", "content": "so", "tool_calls": [CALL]}, result]
    messages, variables = with_tools(GENERIC, called, TOOLS)
    assert variables == {}
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert json.dumps(TOOLS[0].json) in messages[0]["content"]
    assert messages[2] == {"role": "assistant", "content": f"so\n{HERMES_TEXT}"}
    assert messages[3]["content"] == "<tool_response>\n24\n</tool_response>"
    system = {"role": "system", "content": "Be brief."}
    both = with_tools(GENERIC, [system, *USER], TOOLS)[0]
    assert [message["role"] for message in both] == ["system", "user"]
    assert both[0]["content"].startswith("Be brief.\n\nYou can call")
    assert with_tools(GENERIC, USER, ()) == (USER, {})
