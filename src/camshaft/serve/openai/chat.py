"""`/v1/chat/completions`: OpenAI's chat interface."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from camshaft.errors import ModelError
from camshaft.generate.generation import TokenLogprob
from camshaft.serve.answers import Answer, Job, Usage
from camshaft.serve.errors import HttpError
from camshaft.serve.fields import (
    BOOL,
    LIST,
    TEXT,
    Field,
    Fields,
    integer,
    one_of,
    parse_json,
    read_fields,
    required,
    shown,
)
from camshaft.serve.openai import logprobs
from camshaft.serve.options import MOST_TOP_LOGPROBS, OPTIONS, generate_options, includes_usage
from camshaft.serve.respond import event, respond
from camshaft.serve.served import Served
from camshaft.text.chat import encode_untrusted

EMPTY = Field(lambda v: v == [], "an empty list (others are not supported)")
FIELDS: Fields = {
    **OPTIONS,
    "model": TEXT,
    "messages": LIST,
    "logprobs": BOOL,
    "top_logprobs": integer(0, MOST_TOP_LOGPROBS),
    "response_format": one_of({"type": "text"}),
    "tools": EMPTY,
    "tool_choice": one_of("none", "auto"),  # of no tools
    "parallel_tool_calls": BOOL,
    "modalities": one_of(["text"]),
    "service_tier": one_of("auto", "default"),
    "store": one_of(False),
}
# Roles -> the role that chat templates know.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MESSAGE: Fields = {
    "role": one_of(*ROLES),
    "content": Field(lambda v: isinstance(v, str | list), "a text or a list of parts"),
    "name": TEXT,
    "tool_calls": EMPTY,
    "annotations": EMPTY,
}
_PART: Fields = {"type": one_of("text"), "text": TEXT}


def read_messages(messages: Sequence[Any], of: str = "messages", first: int = 0) -> list[dict[str, Any]]:
    """Messages as chat templates want them. Raises HttpError for one with another role, or with parts other than text.

    `of` is the field that has them, and `first` the number of the first one there."""
    if not messages:
        raise HttpError(400, f"'{of}' is empty; wanted at least one", code="invalid_value", param=of)
    read = []
    for i, message in enumerate(messages, first):
        given = read_fields(message, _MESSAGE, f"{of}[{i}]")
        missing = next((name for name in ("role", "content") if name not in given), None)
        if missing is not None:
            param = f"{of}[{i}].{missing}"
            raise HttpError(400, f"the field '{param}' is missing", code="missing_parameter", param=param)
        content = _text(given["content"], f"{of}[{i}].content")
        read.append({**given, "role": ROLES[given["role"]], "content": content})
    return read


def _text(content: str | list[Any], of: str) -> str:
    if isinstance(content, str):
        return content
    parts = [read_fields(part, _PART, f"{of}[{i}]") for i, part in enumerate(content)]
    lacking = next((i for i, part in enumerate(parts) if part.keys() != _PART.keys()), None)
    if lacking is not None:
        message = f"'{of}[{lacking}]' is {shown(content[lacking])}; wanted a type and a text"
        raise HttpError(400, message, code="missing_parameter", param=f"{of}[{lacking}]")
    return "".join(part["text"] for part in parts)


def chat_ids(served: Served, messages: Sequence[dict[str, Any]]) -> list[int]:
    """The token ids of a chat. Raises HttpError if the model's template does not take it."""
    served.check_text("".join(message["content"] for message in messages), "messages")
    try:
        return encode_untrusted(served.lm.tokenizer, served.lm.chat_template, messages)
    except ModelError as error:
        raise HttpError(422, str(error), code="chat_template", param="messages") from None


def _top_logprobs(given: Mapping[str, Any]) -> int | None:
    if not given.get("logprobs"):
        if given.get("top_logprobs"):
            raise HttpError(400, "'top_logprobs' without logprobs: true", code="invalid_value", param="top_logprobs")
        return None
    return int(given.get("top_logprobs", 0))


async def chat_completions(request: Request, served: Served) -> Response:
    """Answer a chat."""
    given = read_fields(parse_json(await served.body(request)), FIELDS)
    served.check_model(given.get("model"))
    messages = read_messages(required(given, "messages"))
    options = generate_options(given, max_tokens=-1, logprobs=_top_logprobs(given), n_vocab=served.lm.config.vocab_size)
    shape = ChatShape(served, len(options), bool(given.get("logprobs")), includes_usage(given))
    ids = await run_in_threadpool(chat_ids, served, messages)
    return await respond(request, served, Job([ids], options), shape, stream=given.get("stream", False))


@dataclass(frozen=True)
class ChatShape:
    """A chat completion and its chunks."""

    served: Served
    n: int
    with_logprobs: bool
    with_usage: bool
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    media_type: str = "text/event-stream"
    keep_alive: bytes = b": keep-alive\n\n"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.served.name}

    @cached_property
    def _chunk_head(self) -> dict[str, Any]:
        usage: dict[str, Any] = {"usage": None} if self.with_usage else {}
        return self._head("chat.completion.chunk") | usage

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None, rows: Any = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": rows, "finish_reason": reason}
        return event(self._chunk_head | {"choices": [choice]})

    def begin(self) -> Iterable[bytes]:
        """The role of every answer."""
        return [self._chunk(i, {"role": "assistant", "content": ""}) for i in range(self.n)]

    def piece(self, index: int, text: str, each: Sequence[TokenLogprob]) -> Iterable[bytes]:
        """A piece of an answer."""
        rows = logprobs.of_chat(each, self.served.lm.tokenizer) if self.with_logprobs else None
        return [self._chunk(index, {"content": text}, rows=rows)]

    def end_answer(self, index: int, reason: str) -> Iterable[bytes]:
        """A chunk with the finish reason."""
        return [self._chunk(index, {}, reason)]

    def end(self, usage: Usage) -> Iterable[bytes]:
        """The usage, if wanted, and the end mark."""
        if self.with_usage:
            yield event(self._chunk_head | {"choices": [], "usage": usage.json})
        yield b"data: [DONE]\n\n"

    def failed(self, error: HttpError) -> Iterable[bytes]:
        """The error, and the end mark."""
        return [event(error.body), b"data: [DONE]\n\n"]

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The completion."""
        choices = [self._choice(i, answer) for i, answer in enumerate(answers)]
        return self._head("chat.completion") | {"choices": choices, "usage": usage.json}

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        rows = logprobs.of_chat(answer.logprobs, self.served.lm.tokenizer) if self.with_logprobs else None
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": rows, "finish_reason": answer.finish_reason}
