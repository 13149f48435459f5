"""Styles: how chat templates describe tools to a model, and how the model then writes a call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from camshaft.text.chat import ChatTemplate

Message = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A function that a model may call. `parameters` is the JSON schema of its arguments, which are an object; `is_strict`: all
    of the schema's keywords must be supported, else those that are not are ignored."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"}, hash=False)
    is_strict: bool = False

    @property
    def json(self) -> dict[str, Any]:
        """The tool as templates want it."""
        described = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": described}


@dataclass(frozen=True)
class Style:
    """A call is `start`, the tool's name, `middle`, the arguments as JSON and `end`; text may come before it.

    separator: between calls. A model calls several tools unless there is none.
    opening, closing: around all calls of an answer, with `begin` after the opening.
    is_whole: a call is a whole answer.
    is_native: the template takes the tools; else a system message has them.
    is_harmony: a call is a message in the channel `commentary`.
    shown: the control tokens among these, which are part of the answer's text.
    id_length: characters of a call's id that the template wants; 0: any number.
    has_json_texts: the template takes arguments as a text of JSON."""

    start: str
    middle: str
    end: str
    separator: str | None = "\n"
    opening: str = ""
    begin: str = ""
    closing: str = ""
    is_whole: bool = False
    is_native: bool = True
    is_harmony: bool = False
    shown: tuple[str, ...] = ()
    id_length: int = 0
    has_json_texts: bool = False


HERMES = Style('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
LLAMA_3 = Style('{"name": "', '", "parameters": ', "}", separator=None, is_whole=True)
GENERIC = Style(HERMES.start, HERMES.middle, HERMES.end, is_native=False)
MISTRAL = Style(
    '{"name": "',
    '", "arguments": ',
    "}",
    separator=", ",
    opening="[TOOL_CALLS]",
    begin="[",
    closing="]",
    shown=("[TOOL_CALLS]",),
    id_length=9,
)
MISTRAL_ARGS = Style(  # since Mistral Small 3.2
    "[TOOL_CALLS]", "[ARGS]", "", separator="", shown=("[TOOL_CALLS]", "[ARGS]"), id_length=9
)
_DEEPSEEK_MARKS = tuple(f"<｜tool▁{word}｜>" for word in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end"))
_CALLS_BEGIN, _CALL_BEGIN, _SEP, _CALL_END, _CALLS_END = _DEEPSEEK_MARKS
DEEPSEEK = Style(  # since DeepSeek V3.1
    _CALL_BEGIN,
    _SEP,
    _CALL_END,
    separator="",
    opening=_CALLS_BEGIN,
    closing=_CALLS_END,
    shown=_DEEPSEEK_MARKS,
    has_json_texts=True,
)
DEEPSEEK_R1 = replace(
    DEEPSEEK,
    start=f"{_CALL_BEGIN}function{_SEP}",
    middle="\n```json\n",
    end=f"\n```{_CALL_END}",
    separator="\n",
)
HARMONY_CALLS = Style(
    "<|channel|>commentary to=functions.",
    " <|constrain|>json<|message|>",
    "",
    separator=None,
    is_harmony=True,
    shown=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"),
)

# Words of a template that takes tools -> the style in which its model calls them, the first that fits. The quote after a
# word may be escaped.
_NATIVE: tuple[tuple[tuple[str, ...], Style], ...] = (
    (("<tool_call>", '"arguments'), HERMES),
    (('"parameters', "ipython"), LLAMA_3),
    (("<|channel|>", "commentary", "functions."), HARMONY_CALLS),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL_ARGS),
    (("[TOOL_CALLS]",), MISTRAL),
    ((_SEP, "```json"), DEEPSEEK_R1),
    ((_SEP,), DEEPSEEK),
)
_PROMPT = """You can call these functions, one JSON object in a line:
{tools}
To call a function, write its name and arguments as JSON:
<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>
The next message then has the result between <tool_response> and </tool_response>. Call a function only if its result helps."""


def style_of(template: ChatTemplate) -> Style:
    """The style of a template. GENERIC if it takes no tools, or has its calls in a form that is not in the table."""
    source = template.source
    if not re.search(r"\btools\b", source):
        return GENERIC
    return next((style for words, style in _NATIVE if all(word in source for word in words)), GENERIC)


def with_tools(
    style: Style, messages: Sequence[Message], tools: Sequence[Tool]
) -> tuple[list[Message], dict[str, Any]]:
    """The messages and further template variables that give a model its tools, earlier calls and their results.

    A message with `tool_calls` has a list of {'id', 'name', 'arguments': dict}; one of the role 'tool' has a result."""
    if style.is_native:
        return [_native(style, message) for message in messages], {
            "tools": [tool.json for tool in tools]
        } if tools else {}
    told = [_as_text(style, message) for message in messages]
    if not tools:
        return told, {}
    prompt = _PROMPT.format(tools="\n".join(json.dumps(tool.json, ensure_ascii=False) for tool in tools))
    if told and told[0]["role"] == "system":
        return [told[0] | {"content": f"{told[0]['content']}\n\n{prompt}"}, *told[1:]], {}
    return [{"role": "system", "content": prompt}, *told], {}


def _native(style: Style, message: Message) -> Message:
    if "tool_call_id" in message:
        return message | {"tool_call_id": _id(style, message["tool_call_id"])}
    if "tool_calls" not in message:
        return message
    calls = [
        {
            "id": _id(style, call["id"]),
            "type": "function",
            "function": {"name": call["name"], "arguments": _arguments(style, call["arguments"])},
        }
        for call in message["tool_calls"]
    ]
    if style.is_harmony and message["content"]:  # its template takes one of the two before a call
        message = {name: value for name, value in message.items() if name != "thinking"}
    return message | {"tool_calls": calls}


def _id(style: Style, call_id: str) -> str:
    n = style.id_length
    return blake2b(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:n] if n else call_id


def _arguments(style: Style, arguments: Mapping[str, Any]) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if style.has_json_texts else arguments


def _as_text(style: Style, message: Message) -> Message:
    """A message of a user or an assistant in place of one with calls or a result."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not isinstance(message["content"], str):  # a user's, with images
        return message
    calls = [
        f"{style.start}{call['name']}{style.middle}{json.dumps(call['arguments'], ensure_ascii=False)}{style.end}"
        for call in message.get("tool_calls", ())
    ]
    text = "\n".join(part for part in (message["content"], *calls) if part)
    return {name: value for name, value in message.items() if name != "tool_calls"} | {"content": text}
