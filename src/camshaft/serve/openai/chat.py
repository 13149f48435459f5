"""`/v1/chat/completions`: OpenAI's chat interface."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from camshaft.generate.generation import TokenLogprob
from camshaft.generate.grammar.grammar import Grammar
from camshaft.generate.tools.reasoning import AnswerReader
from camshaft.serve.models.served import Served
from camshaft.serve.openai import prompts, tools
from camshaft.serve.openai.response_shape import chat_logprobs
from camshaft.serve.requests import fields, grammars
from camshaft.serve.requests.answers import Answer, Job, Usage
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.images import IMAGE_URL, image_of_base64, image_part, part_of
from camshaft.serve.requests.options import MOST_TOP_LOGPROBS, OPTIONS, generate_options, includes_usage
from camshaft.serve.requests.respond import Asked, event, respond

EMPTY = fields.Field(lambda v: v == [], "an empty list (others are not supported)")
# Roles -> the role that chat templates know.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TEXT: fields.Fields = {"type": fields.one_of("text"), "text": fields.TEXT}
_IMAGE: fields.Fields = {"type": fields.one_of("image_url"), "image_url": IMAGE_URL}
_PART: fields.Fields = {**_TEXT, **_IMAGE, "type": fields.one_of("text", "image_url")}
_PARTS = {"type": "array", "items": {"anyOf": [fields.schema_of(part, [*part]) for part in (_TEXT, _IMAGE)]}}
_MESSAGE: fields.Fields = {
    "role": fields.one_of(*ROLES),
    "content": fields.Field(
        lambda v: isinstance(v, str | list),
        "a text or a list of parts",
        {"anyOf": [fields.TEXT.schema, _PARTS]},
    ),
    "name": fields.TEXT,
    "tool_calls": fields.LIST,  # of an assistant
    "tool_call_id": fields.TEXT,  # of a tool
    "tool_name": fields.TEXT,  # the same in Ollama's interface
    "reasoning_content": fields.TEXT,  # of an assistant, before the content
    "reasoning": fields.TEXT,  # vLLM's name of it
    "thinking": fields.TEXT,  # Ollama's
    "annotations": EMPTY,
    "images": fields.LIST,  # in Ollama's interface
}
FIELDS: fields.Fields = {
    **OPTIONS,
    **grammars.FIELDS,
    "model": fields.TEXT,
    "messages": fields.objects(_MESSAGE, "role"),
    "logprobs": fields.BOOL,
    "top_logprobs": fields.integer(0, MOST_TOP_LOGPROBS),
    **tools.FIELDS,
    **prompts.FIELDS,
    "modalities": fields.one_of(["text"]),
    "service_tier": fields.one_of("auto", "default"),
    "store": fields.one_of(False),
}
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_OF_ROLE = {
    "tool_calls": "assistant",
    "tool_call_id": "tool",
    "tool_name": "tool",
    **dict.fromkeys(_THOUGHTS, "assistant"),
}


def read_messages(messages: Sequence[Any], of: str = "messages", first: int = 0) -> list[dict[str, Any]]:
    """Converts messages to the form of chat templates. Raises HttpError for another role, or parts other than text.

    `of` is the field they came in, and `first` the index of the first one there."""
    if not messages:
        raise HttpError(400, f"'{of}' is empty; wanted at least one", code="invalid_value", param=of)
    return [_message(message, f"{of}[{i}]") for i, message in enumerate(messages, first)]


def _message(message: Any, of: str) -> dict[str, Any]:
    given = fields.read_fields(message, _MESSAGE, of)
    if not given.get("tool_calls", True):  # an empty list
        del given["tool_calls"]
    role = fields.required(given, "role", of)
    foreign = next((name for name, owner in _OF_ROLE.items() if name in given and role != owner), None)
    if foreign is not None:
        param = f"{of}.{foreign}"
        raise HttpError(400, f"'{param}' in a message of {role!r}", code="invalid_value", param=param)
    if "tool_calls" in given:
        calls = tools.read_calls(given["tool_calls"], f"{of}.tool_calls")
        given = {"content": ""} | given | {"tool_calls": calls}
    thought = next((given.pop(name) for name in _THOUGHTS if name in given), "")
    if thought:
        given |= {"reasoning_content": thought, "thinking": thought}  # the names that templates have
    content = _content(fields.required(given, "content", of), f"{of}.content")
    images = [part_of(image_of_base64(x, f"{of}.images[{i}]")) for i, x in enumerate(given.pop("images", ()))]
    if images:
        content = [*images, *([{"type": "text", "text": content}] if isinstance(content, str) else content)]
    if role != "user" and not isinstance(content, str):
        raise HttpError(400, f"'{of}' of {role!r} has images; wanted them of 'user'", code="invalid_value", param=of)
    return given | {"role": ROLES[role], "content": content}


def _content(content: str | list[Any], of: str) -> str | list[dict[str, Any]]:
    """Returns a content as a string or, with images, a list of parts."""
    if isinstance(content, str):
        return content
    parts = [_part(fields.read_fields(part, _PART, f"{of}[{i}]"), f"{of}[{i}]") for i, part in enumerate(content)]
    return parts if any(part["type"] == "image" for part in parts) else "".join(part["text"] for part in parts)


def _part(given: dict[str, Any], of: str) -> dict[str, Any]:
    if given.get("type") == "image_url" and given.keys() == {"type", "image_url"}:
        return image_part(given, of)
    if given.get("type") != "text" or given.keys() != {"type", "text"}:
        message = f"'{of}' is {fields.shown(given)}; wanted a type and a text, or image_url"
        raise HttpError(400, message, code="missing_parameter", param=of)
    return given


def _top_logprobs(given: Mapping[str, Any]) -> int | None:
    if not given.get("logprobs"):
        if given.get("top_logprobs"):
            raise HttpError(400, "'top_logprobs' without logprobs: true", code="invalid_value", param="top_logprobs")
        return None
    return int(given.get("top_logprobs", 0))


@fields.takes(FIELDS, "messages", stream="text/event-stream")
async def chat_completions(request: Request, served: Served) -> Response:
    """Answer a chat."""
    return await respond(request, served, read_chat)


def read_chat(body: Any, served: Served) -> Asked:
    """The body of a request for a chat completion."""
    given = fields.read_fields(body, FIELDS)
    served.check_model(given.get("model"))
    messages = read_messages(fields.required(given, "messages"))
    found = tools.read_tools(given, served)
    n_vocab, grammar = served.lm.config.vocab_size, tools.form_of(found, grammars.read_grammar(given, served))
    chat = chat_of(served, messages, found, grammar, prompts.read_how(given, served))
    options = generate_options(
        given,
        max_tokens=-1,
        logprobs=_top_logprobs(given),
        n_vocab=n_vocab,
        grammar=grammar,
        shown_tokens=chat.shown_tokens,
    )
    shape = ChatShape(served, len(options), bool(given.get("logprobs")), includes_usage(given), chat)
    return Asked(Job([chat.ids], options, priority=given.get("priority", 0)), shape, given.get("stream", False))


def chat_of(
    served: Served,
    messages: Sequence[dict[str, Any]],
    found: tools.Tools | None,
    grammar: Grammar | None,
    how: prompts.How,
) -> prompts.Chat:
    """The prompt of a chat with tools, whose answer has the form of a grammar. Raises as `read_chat_prompt`."""
    has_form = tools.starts_formed(found, grammar)
    told, style = ((), None) if found is None else (found.tools, found.style)
    return prompts.read_chat_prompt(served, messages, tools=told, style=style, how=how, has_form=has_form)


@dataclass(frozen=True)
class ChatShape:
    """A chat completion and its chunks."""

    served: Served
    n: int
    with_logprobs: bool
    with_usage: bool
    chat: prompts.Chat
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    media_type: str = "text/event-stream"
    keep_alive: bytes = b": keep-alive\n\n"
    _reasons: dict[int, str] = field(default_factory=dict)
    _readers: dict[int, AnswerReader] = field(default_factory=dict)

    def _reader(self, index: int) -> AnswerReader:
        """Returns the parser of reasoning and tool calls in an answer."""
        if index not in self._readers:
            self._readers[index] = self.chat.reader()
        return self._readers[index]

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.served.name}

    @cached_property
    def _chunk_head(self) -> dict[str, Any]:
        usage: dict[str, Any] = {"usage": None} if self.with_usage else {}
        return self._head("chat.completion.chunk") | usage

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None = None, rows: Any = None, **more: Any
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": rows, "finish_reason": reason}
        return event(self._chunk_head | {"choices": [choice]} | more)

    def begin(self) -> Iterable[bytes]:
        """Yields the role of every answer."""
        return [self._chunk(i, {"role": "assistant", "content": ""}) for i in range(self.n)]

    def piece(self, index: int, text: str, each: Sequence[TokenLogprob]) -> Iterable[bytes]:
        """Yields the chunks of a piece of an answer."""
        rows = chat_logprobs(each, self.served.lm.tokenizer) if self.with_logprobs else None
        deltas = [tools.delta_json(delta) for delta in self._reader(index).push(text)] or (
            [{}] if each and rows else []
        )
        return [self._chunk(index, delta, rows=rows if i == 0 else None) for i, delta in enumerate(deltas)]

    def end_answer(self, index: int, reason: str, stop: str | None) -> Iterable[bytes]:
        """Yields what the parser still has, then a chunk with the finish reason; for a single answer `end` sends that."""
        reader = self._reader(index)
        yield from (self._chunk(index, tools.delta_json(delta)) for delta in reader.finish())
        self._reasons[index] = tools.finish_reason(reader, reason)
        if self.n > 1:
            yield self._chunk(index, {}, self._reasons[index])

    def end(self, usage: Usage) -> Iterable[bytes]:
        """Yields the usage, if requested, and the end mark. The chunk before has the timings."""
        if self.n == 1:
            yield self._chunk(0, {}, self._reasons[0], **({} if self.with_usage else usage.timings))
        if self.with_usage:
            yield event(self._chunk_head | {"choices": [], "usage": usage.json, **usage.timings})
        yield b"data: [DONE]\n\n"

    def failed(self, error: HttpError) -> Iterable[bytes]:
        """Yields an error and the end mark."""
        return [event(error.body), b"data: [DONE]\n\n"]

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """Returns the complete answer."""
        choices = [self._choice(i, answer) for i, answer in enumerate(answers)]
        return self._head("chat.completion") | {"choices": choices, "usage": usage.json, **usage.timings}

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        rows = chat_logprobs(answer.logprobs, self.served.lm.tokenizer) if self.with_logprobs else None
        reader = self._reader(index)
        text = reader.text_of(answer.text)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if reader.thought:
            message["reasoning_content"] = reader.thought
        if reader.calls:
            message |= {"content": text or None, "tool_calls": [tools.call_json(call) for call in reader.calls]}
        reason = tools.finish_reason(reader, answer.finish_reason or "stop")
        return {"index": index, "message": message, "logprobs": rows, "finish_reason": reason}
