"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's chat interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from camshaft.generate.tools.styles import Tool
from camshaft.serve.anthropic.shape import MessageShape
from camshaft.serve.models.served import Served
from camshaft.serve.openai.chat import chat_of, read_messages
from camshaft.serve.openai.prompts import Chat, How, thinking
from camshaft.serve.openai.tools import NAME, Tools, form_of, object_schema, tools_of
from camshaft.serve.requests import fields
from camshaft.serve.requests.answers import Job
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.images import as_data_url
from camshaft.serve.requests.options import MOST_TOKENS, OPTIONS, generate_options
from camshaft.serve.requests.respond import Asked, Json, beside, body_of, respond

_TEXT_OR_BLOCKS = fields.Field(
    lambda v: isinstance(v, str | list),
    "a text or a list of blocks",
    {"anyOf": [fields.TEXT.schema, fields.LIST.schema]},
)
_MESSAGE: fields.Fields = {"role": fields.one_of("user", "assistant"), "content": _TEXT_OR_BLOCKS}
_CHAT: fields.Fields = {
    "model": fields.TEXT,
    "messages": fields.objects(_MESSAGE, *_MESSAGE),
    "system": _TEXT_OR_BLOCKS,
    "tools": fields.LIST,
    "tool_choice": fields.OBJECT,
    "thinking": fields.OBJECT,
}
FIELDS: fields.Fields = {
    **_CHAT,
    "max_tokens": fields.integer(1, MOST_TOKENS),
    "stop_sequences": OPTIONS["stop"],
    **{name: OPTIONS[name] for name in ("temperature", "top_p", "top_k", "stream", "metadata", "seed")},
    "service_tier": fields.one_of("auto", "standard_only"),
}
_THINKING: fields.Fields = {
    "type": fields.one_of("enabled", "disabled", "adaptive"),
    "budget_tokens": fields.integer(1, MOST_TOKENS),  # a hint that no model here knows of
    "display": fields.one_of("summarized"),
}
_CACHE = {"cache_control": fields.OBJECT}  # prompts are always cached, which changes no answer
_BLOCKS: Mapping[str, fields.Fields] = {
    "text": {"type": fields.TEXT, "text": fields.TEXT, "citations": fields.LIST, **_CACHE},
    "image": {"type": fields.TEXT, "source": fields.OBJECT, **_CACHE},
    "thinking": {"type": fields.TEXT, "thinking": fields.TEXT, "signature": fields.TEXT},
    "tool_use": {"type": fields.TEXT, "id": fields.TEXT, "name": NAME, "input": fields.OBJECT, **_CACHE},
    "tool_result": {
        "type": fields.TEXT,
        "tool_use_id": fields.TEXT,
        "content": _TEXT_OR_BLOCKS,
        "is_error": fields.BOOL,
        **_CACHE,
    },
}
_NEEDED = {
    "text": ("text",),
    "image": ("source",),
    "thinking": ("thinking",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
_TOOL: fields.Fields = {
    "type": fields.one_of("custom"),
    "name": NAME,
    "description": fields.TEXT,
    "input_schema": fields.OBJECT,
    "strict": fields.BOOL,
    **_CACHE,
}
_CHOICES = {"auto": "auto", "any": "required", "tool": "tool", "none": "none"}
_CHOICE: fields.Fields = {
    "type": fields.one_of(*_CHOICES),
    "name": fields.TEXT,
    "disable_parallel_tool_use": fields.BOOL,
}


def _messages(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The system text and the messages, as OpenAI's chats have them."""
    system = given.get("system", "")
    told = [{"role": "system", "content": _text(_blocks(system, "system", "text"))}] if system else []
    messages = [
        each
        for i, message in enumerate(fields.required(given, "messages"))
        for each in _message(message, f"messages[{i}]")
    ]
    return read_messages([*told, *messages], first=-len(told))


def _message(message: Any, of: str) -> list[dict[str, Any]]:
    """A message, or the results of tools before it and what the rest of its blocks say."""
    given = fields.read_fields(message, _MESSAGE, of)
    role, content = fields.required(given, "role", of), fields.required(given, "content", of)
    blocks = _blocks(content, f"{of}.content", *_BLOCKS)
    results = [_result(block, f"{of}.content[{i}]") for i, block in enumerate(blocks) if block["type"] == "tool_result"]
    calls = [_call(block) for block in blocks if block["type"] == "tool_use"]
    content = _content(blocks, f"{of}.content")
    if results and not content:
        return results
    thought = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    thoughts = {"reasoning_content": thought} if thought else {}
    return [*results, {"role": role, "content": content} | thoughts | ({"tool_calls": calls} if calls else {})]


def _blocks(content: str | Sequence[Any], of: str, *kinds: str) -> list[dict[str, Any]]:
    """The blocks of a content, each of one of these kinds; a text is one block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    read = []
    for i, block in enumerate(content):
        kind, at = block.get("type") if isinstance(block, dict) else None, f"{of}[{i}]"
        if kind not in kinds:
            message = f"'{at}.type' is {fields.shown(kind)}; wanted {', '.join(kinds)} (others are not supported)"
            raise HttpError(400, message, code="invalid_value", param=f"{at}.type")
        given = fields.read_fields(block, _BLOCKS[kind], at)
        for name in _NEEDED[kind]:
            fields.required(given, name, at)
        read.append(given)
    return read


def _text(blocks: Sequence[Mapping[str, Any]]) -> str:
    return "".join(block["text"] for block in blocks if block["type"] == "text")


def _content(blocks: Sequence[Mapping[str, Any]], of: str) -> str | list[dict[str, Any]]:
    """The texts of blocks, or with images their parts as OpenAI's chats have them."""
    if not any(block["type"] == "image" for block in blocks):
        return _text(blocks)
    parts: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        if block["type"] == "image":
            parts.append({"type": "image_url", "image_url": as_data_url(block["source"], f"{of}[{i}].source")})
        elif block["type"] == "text":
            parts.append({"type": "text", "text": block["text"]})
    return parts


def _result(block: Mapping[str, Any], of: str) -> dict[str, Any]:
    content = _text(_blocks(block.get("content", ""), f"{of}.content", "text"))
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block["name"], "arguments": block["input"]}
    return {"id": block["id"], "type": "function", "function": function}


def _tools(given: Mapping[str, Any], served: Served) -> Tools | None:
    """The tools that the answer may call."""
    tools = [_tool(value, f"tools[{i}]") for i, value in enumerate(given.get("tools", ()))]
    choice = fields.read_fields(given.get("tool_choice", {"type": "auto"}), _CHOICE, "tool_choice")
    kind: Any = _CHOICES[fields.required(choice, "type", "tool_choice")]
    if kind == "tool":
        kind = {"type": "function", "function": {"name": fields.required(choice, "name", "tool_choice")}}
    return tools_of(tools, kind, not choice.get("disable_parallel_tool_use", False), served, "input_schema")


def _tool(value: Any, of: str) -> Tool:
    given = fields.read_fields(value, _TOOL, of)
    schema = object_schema(fields.required(given, "input_schema", of), f"{of}.input_schema")
    return Tool(fields.required(given, "name", of), given.get("description", ""), schema, given.get("strict", False))


def _chat(given: Mapping[str, Any], served: Served) -> tuple[Chat, Tools | None]:
    """A chat, and the tools that its answer may call. Without `thinking`, reasoning is turned off, as Anthropic does."""
    served.check_model(fields.required(given, "model"))
    messages, tools = _messages(given), _tools(given, served)
    options = fields.read_fields(given.get("thinking", {"type": "disabled"}), _THINKING, "thinking")
    is_wanted = fields.required(options, "type", "thinking") != "disabled"
    how = How(thinking(is_wanted, served, "thinking"))
    return chat_of(served, messages, tools, None, how), tools


@fields.takes(FIELDS, "model", "max_tokens", "messages", stream="text/event-stream")
async def messages(request: Request, served: Served) -> Response:
    """Answer a chat."""
    return await respond(request, served, _read)


def _read(body: Any, served: Served) -> Asked:
    given = fields.read_fields(body, FIELDS)
    most, (chat, tools) = fields.required(given, "max_tokens"), _chat(given, served)
    grammar = form_of(tools, None)
    sampled = {name: value for name, value in given.items() if name in OPTIONS and name != "max_tokens"}
    sampled |= {"stop": given["stop_sequences"]} if "stop_sequences" in given else {}
    n_vocab = served.lm.config.vocab_size
    options = generate_options(
        sampled, max_tokens=most, logprobs=None, n_vocab=n_vocab, grammar=grammar, shown_tokens=chat.shown_tokens
    )
    shape = MessageShape(served, len(chat.ids), chat.reader())
    return Asked(Job([chat.ids], options), shape, given.get("stream", False))


@fields.takes(_CHAT, "model", "messages")
async def count_tokens(request: Request, served: Served) -> Response:
    """The number of tokens of a chat."""
    given = fields.read_fields(body_of(request), _CHAT)
    chat, _ = await beside(request, _chat, given, served)
    return Json({"input_tokens": len(chat.ids)})
