"""Tools in a chat: reading them and earlier calls from a request, and writing calls into an answer."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from camshaft.errors import MissingExtraError, SettingError
from camshaft.generate.grammar.grammar import Grammar
from camshaft.generate.tools.calls import Delta, ToolCall, arguments_grammar, call_grammar
from camshaft.generate.tools.reasoning import AnswerReader
from camshaft.generate.tools.styles import Style, Tool, style_of
from camshaft.serve.models.served import Served
from camshaft.serve.requests import fields
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.grammars import reading

MOST_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NAME = fields.Field(
    lambda v: isinstance(v, str) and _NAME.fullmatch(v) is not None, "1 to 64 letters, digits, _, - and ."
)
CHOICES = ("none", "auto", "required")
FIELDS: fields.Fields = {
    "tools": fields.LIST,
    "tool_choice": fields.Field(
        lambda v: v in CHOICES or isinstance(v, dict), '"none", "auto", "required" or a function'
    ),
    "parallel_tool_calls": fields.BOOL,
}
_TOOL: fields.Fields = {"type": fields.one_of("function"), "function": fields.OBJECT}
_FUNCTION: fields.Fields = {
    "name": NAME,
    "description": fields.TEXT,
    "parameters": fields.OBJECT,
    "strict": fields.BOOL,
}
_CHOICE: fields.Fields = {"type": fields.one_of("function"), "function": fields.OBJECT}
_INDEX = fields.integer(0, 1 << 31)  # beside a call in OpenAI's streams, in it in Ollama's answers
_CALL: fields.Fields = {
    "id": fields.TEXT,
    "type": fields.one_of("function"),
    "function": fields.OBJECT,
    "index": _INDEX,
}
_CALLED: fields.Fields = {
    "index": _INDEX,
    "name": NAME,
    "arguments": fields.Field(lambda v: isinstance(v, str | dict), "a text of a JSON object"),
}


@dataclass(frozen=True)
class Tools:
    """The tools of a request, in the style of the model; `grammar` lets it call those that `tool_choice` allows."""

    tools: tuple[Tool, ...]
    style: Style
    grammar: Grammar
    is_required: bool = False


def read_tools(given: Mapping[str, Any], served: Served) -> Tools | None:
    """The tools that an answer may call; None if there are none. Raises HttpError for one that does not fit."""
    tools = listed_tools(given)
    choice, is_parallel = given.get("tool_choice", "auto"), given.get("parallel_tool_calls", True)
    return tools_of(tools, choice, is_parallel, served, "function.parameters")


def listed_tools(given: Mapping[str, Any]) -> list[Tool]:
    """The tools of a request."""
    return [_tool(each, f"tools[{i}]") for i, each in enumerate(given.get("tools", ()))]


def tools_of(tools: Sequence[Tool], choice: Any, is_parallel: bool, served: Served, schema_field: str) -> Tools | None:
    """Those tools, in the style of the model, with the compiled grammar of a `tool_choice`. None if none may be called.

    Raises HttpError for a schema that cannot be used, with the tool's `schema_field`."""
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or len(tools) > MOST_TOOLS:
        message = f"'tools' has {len(tools)}" if twice is None else f"'tools' has {twice!r} twice"
        raise HttpError(
            400, f"{message}; wanted up to {MOST_TOOLS} of different names", code="invalid_value", param="tools"
        )
    if not tools and choice not in ("none", "auto"):
        raise HttpError(400, "'tool_choice' without tools", code="invalid_value", param="tool_choice")
    if not tools or choice == "none":
        return None
    chosen = _chosen(tools, choice)
    style, is_parallel = style_of(served.lm.chat_template), is_parallel and not isinstance(choice, dict)
    try:
        ids = served.lm.tokenizer.control_ids(style.shown)
        grammar = call_grammar(style, chosen, is_required=choice != "auto", is_parallel=is_parallel, ids=ids)
        grammar = served.lm.grammars.compiled(grammar)
    except (MissingExtraError, SettingError) as error:
        for i, tool in enumerate(tools):  # the one with the fault
            if tool in chosen:
                reading(f"tools[{i}].{schema_field}", partial(_compiled, tool, served))
        raise HttpError(400, f"'tools': {error}", code="invalid_grammar", param="tools") from None
    return Tools(tuple(tools), style, grammar, choice != "auto")


def _compiled(tool: Tool, served: Served) -> Grammar:
    return served.lm.grammars.compiled(arguments_grammar(tool))


def starts_formed(tools: Tools | None, grammar: Grammar | None) -> bool:
    """Whether an answer has its form from the first token, so that no thoughts may come before it."""
    return grammar is not None if tools is None else tools.is_required and not tools.style.is_harmony


def form_of(tools: Tools | None, grammar: Grammar | None) -> Grammar | None:
    """The form of an answer that may call these tools. Raises HttpError if the request has asked for a different form."""
    if tools is None:
        return grammar
    if grammar is not None:
        message = "'tools' and a form of the answer are given; wanted one of them"
        raise HttpError(400, message, code="invalid_value", param="tools")
    return tools.grammar


# OpenAI: a function without `parameters` takes none.
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def _tool(value: Any, of: str) -> Tool:
    given = fields.read_fields(value, _TOOL, of)
    return tool_of(fields.required(given, "function", of), f"{of}.function")


def tool_of(value: Any, of: str, more: fields.Fields | None = None) -> Tool:
    """A function with its name, description and parameters; `more` fields may be beside them."""
    given = fields.read_fields(value, {**_FUNCTION, **(more or {})}, of)
    parameters = object_schema(given.get("parameters", _NO_PARAMETERS), f"{of}.parameters")
    return Tool(
        fields.required(given, "name", of), given.get("description", ""), parameters, given.get("strict", False)
    )


def object_schema(schema: dict[str, Any], of: str) -> dict[str, Any]:
    """A schema of arguments, which are an object even if it does not say so. Raises HttpError for one that says otherwise."""
    if schema.get("type", "object") != "object":
        raise HttpError(400, f"'{of}' is not a schema of an object", code="invalid_value", param=of)
    return {"type": "object"} | schema


def _chosen(tools: Sequence[Tool], choice: Any) -> Sequence[Tool]:
    """The tools that `tool_choice` lets the answer call."""
    if not isinstance(choice, dict):
        return tools
    given = fields.read_fields(choice, _CHOICE, "tool_choice")
    function = fields.read_fields(
        fields.required(given, "function", "tool_choice"), {"name": fields.TEXT}, "tool_choice.function"
    )
    name = fields.required(function, "name", "tool_choice.function")
    found = [tool for tool in tools if tool.name == name]
    if not found:
        message = f"'tool_choice' is the function {name[:64]!r}, which is not in 'tools'"
        raise HttpError(400, message, code="invalid_value", param="tool_choice")
    return found


def read_calls(calls: Sequence[Any], of: str) -> list[dict[str, Any]]:
    """The calls of an earlier answer: {'id', 'name', 'arguments': dict}."""
    return [_call(each, f"{of}[{i}]", i) for i, each in enumerate(calls)]


def _call(value: Any, of: str, i: int) -> dict[str, Any]:
    given = fields.read_fields(value, _CALL, of)
    function = fields.read_fields(fields.required(given, "function", of), _CALLED, f"{of}.function")
    arguments = fields.required(function, "arguments", f"{of}.function")
    try:
        read = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        param = f"{of}.function.arguments"
        raise HttpError(400, f"'{param}' is not a JSON object", code="invalid_value", param=param)
    return {
        "id": given.get("id", f"call_{i}"),
        "name": fields.required(function, "name", f"{of}.function"),
        "arguments": read,
    }


def finish_reason(reader: AnswerReader, reason: str) -> str:
    """OpenAI's word for the end of an answer with calls, unless a stop string cut the last one."""
    return "tool_calls" if reader.calls and reason == "stop" and reader.calls[-1].values is not None else reason


def call_id() -> str:
    """An id of a call."""
    return f"call_{uuid.uuid4().hex[:24]}"


def call_json(call: ToolCall) -> dict[str, Any]:
    """A whole call in an answer."""
    return {"id": call_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def delta_json(delta: Delta) -> dict[str, Any]:
    """Returns the delta of a message in a chunk."""
    if delta.thought:
        return {"reasoning_content": delta.thought}
    if delta.index < 0:
        return {"content": delta.text}
    if delta.name:
        begun = {"id": call_id(), "type": "function", "function": {"name": delta.name, "arguments": ""}}
        return {"tool_calls": [{"index": delta.index, **begun}]}
    return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.arguments}}]}
