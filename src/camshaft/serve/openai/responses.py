"""`/v1/responses`: OpenAI's newer chat interface, without stored conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from camshaft.serve.models.served import Served
from camshaft.serve.openai import prompts, tools
from camshaft.serve.openai.chat import EMPTY, chat_of, read_messages
from camshaft.serve.openai.response_shape import ResponseShape
from camshaft.serve.requests import fields, grammars
from camshaft.serve.requests.answers import Job
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.options import MOST_TOKENS, OPTIONS, SAMPLING, generate_options
from camshaft.serve.requests.respond import Asked, respond

FIELDS: fields.Fields = {
    **{name: rule for name, rule in OPTIONS.items() if name in SAMPLING},
    **{
        name: OPTIONS[name]
        for name in ("stream", "user", "safety_identifier", "prompt_cache_key", "metadata", "ignore_eos")
    },
    "model": fields.TEXT,
    "input": fields.Field(lambda v: isinstance(v, str | list), "a text or a list of items"),
    "instructions": fields.TEXT,
    "max_output_tokens": fields.integer(1, MOST_TOKENS),
    "store": fields.one_of(False),
    "background": fields.one_of(False),
    "truncation": fields.one_of("disabled"),
    "text": fields.OBJECT,
    "include": EMPTY,
    **tools.FIELDS,
    "service_tier": fields.one_of("auto", "default"),
    "reasoning": fields.OBJECT,
}
_REASONING: fields.Fields = {
    "effort": fields.one_of(*prompts.EFFORTS),
    "summary": fields.one_of("auto"),
    "generate_summary": fields.one_of("auto"),
}
_ITEM: fields.Fields = {
    "type": fields.one_of("message"),
    "role": fields.TEXT,
    "content": fields.Field(lambda v: isinstance(v, str | list), "a text or a list of parts"),
    "id": fields.TEXT,
    "status": fields.one_of("completed", "incomplete"),
}
_CALL: fields.Fields = {
    "type": fields.TEXT,
    "call_id": fields.TEXT,
    "name": tools.NAME,
    "arguments": fields.TEXT,
    "id": fields.TEXT,
    "status": fields.one_of("completed", "incomplete", "in_progress"),
}
_OUTPUT: fields.Fields = {
    **{name: _CALL[name] for name in ("type", "call_id", "id", "status")},
    "output": _ITEM["content"],
}
_THOUGHT: fields.Fields = {
    "type": fields.TEXT,
    "id": fields.TEXT,
    "summary": EMPTY,
    "content": fields.LIST,
    "status": _CALL["status"],
}
_THOUGHT_PART: fields.Fields = {"type": fields.one_of("reasoning_text"), "text": fields.TEXT}
_PART: fields.Fields = {
    "type": fields.one_of("input_text", "output_text", "input_image"),
    "text": fields.TEXT,
    "image_url": fields.TEXT,
    "detail": fields.one_of("auto", "low", "high", "original"),  # accepted: images always have the model's size
    "annotations": EMPTY,
    "logprobs": EMPTY,
}
_TEXT: fields.Fields = {"format": fields.OBJECT}


def _messages(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The instructions and the input as messages of a chat."""
    value = fields.required(given, "input")
    items = [{"role": "user", "content": value}] if isinstance(value, str) else _joined(value)
    if not items:
        raise HttpError(400, "'input' is empty; wanted at least one item", code="invalid_value", param="input")
    system = [{"role": "system", "content": given["instructions"]}] if "instructions" in given else []
    return read_messages(system + items, "input", first=-len(system))


def _joined(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Converts items to messages. Calls join the assistant's message before them, reasoning the one after."""
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(items):
        kind = item.get("type") if isinstance(item, dict) else None
        message = _ITEMS.get(kind if isinstance(kind, str) else "", _message)(i, item)
        last = messages[-1] if messages and messages[-1].get("role") == message.get("role") == "assistant" else {}
        if "tool_calls" in message and last:
            last["tool_calls"] = last.get("tool_calls", []) + message["tool_calls"]
        elif "reasoning_content" in last and not last["content"] and "tool_calls" not in last:
            last |= message
        else:
            messages.append(message)
    return messages


def _called(i: int, item: Any) -> dict[str, Any]:
    of = f"input[{i}]"
    given = fields.read_fields(item, _CALL, of)
    function = {name: fields.required(given, name, of) for name in ("name", "arguments")}
    call = {"id": fields.required(given, "call_id", of), "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _result(i: int, item: Any) -> dict[str, Any]:
    of = f"input[{i}]"
    given = fields.read_fields(item, _OUTPUT, of)
    output = fields.required(given, "output", of)
    content = _texts(output, f"{of}.output") if isinstance(output, list) else output
    return {"role": "tool", "tool_call_id": fields.required(given, "call_id", of), "content": content}


def _thought(i: int, item: Any) -> dict[str, Any]:
    of = f"input[{i}]"
    parts = fields.read_fields(item, _THOUGHT, of).get("content", [])
    read = [fields.read_fields(part, _THOUGHT_PART, f"{of}.content[{j}]") for j, part in enumerate(parts)]
    return {"role": "assistant", "content": "", "reasoning_content": "".join(part.get("text", "") for part in read)}


_ITEMS = {"function_call": _called, "function_call_output": _result, "reasoning": _thought}


def _message(i: int, item: Any) -> dict[str, Any]:
    given = fields.read_fields(item, _ITEM, f"input[{i}]")
    message: dict[str, Any] = {name: given[name] for name in ("role", "content") if name in given}
    if isinstance(message.get("content"), list):
        message["content"] = _texts(message["content"], f"input[{i}].content")
    return message


def _texts(parts: Sequence[Any], of: str) -> list[dict[str, Any]]:
    """Converts parts to those of chats."""
    read = [fields.read_fields(part, _PART, f"{of}[{j}]") for j, part in enumerate(parts)]
    return [
        {"type": "image_url", "image_url": part.get("image_url")}
        if part.get("type") == "input_image"
        else {"type": "text", "text": part.get("text")}
        for part in read
    ]


def _tools(given: Mapping[str, Any], served: Served) -> tools.Tools | None:
    """Converts the tools: here the fields of a function stand beside its type."""
    flat = {"type": fields.one_of("function")}
    listed = [tools.tool_of(each, f"tools[{i}]", flat) for i, each in enumerate(given.get("tools", ()))]
    choice = given.get("tool_choice", "auto")
    if isinstance(choice, dict):
        name = {key: value for key, value in choice.items() if key != "type"}
        choice = {"type": choice.get("type"), "function": name}
    return tools.tools_of(listed, choice, given.get("parallel_tool_calls", True), served, "parameters")


@fields.takes(FIELDS, "input", stream="text/event-stream")
async def responses(request: Request, served: Served) -> Response:
    """Answer a chat."""
    return await respond(request, served, read_response)


def read_response(body: Any, served: Served) -> Asked:
    """The body of a request for a response."""
    given = fields.read_fields(body, FIELDS)
    served.check_model(given.get("model"))
    text_fields = fields.read_fields(given.get("text", {}), _TEXT, "text")
    text = {"type": "text"} | text_fields.get("format", {})
    grammar = grammars.usable("text.format", lambda: grammars.text_format(text), served)
    messages, found = _messages(given), _tools(given, served)
    grammar = tools.form_of(found, grammar)
    limited = given | ({"max_tokens": given["max_output_tokens"]} if "max_output_tokens" in given else {})
    n_vocab = served.lm.config.vocab_size
    effort = fields.read_fields(given.get("reasoning", {}), _REASONING, "reasoning").get("effort")
    how = prompts.How({} if effort is None else prompts.thinking(effort, served, "reasoning.effort"))
    chat = chat_of(served, messages, found, grammar, how)
    options = generate_options(
        limited, max_tokens=-1, logprobs=None, n_vocab=n_vocab, grammar=grammar, shown_tokens=chat.shown_tokens
    )
    shape = ResponseShape(served, given, chat.reader())
    return Asked(Job([chat.ids], options), shape, given.get("stream", False))
