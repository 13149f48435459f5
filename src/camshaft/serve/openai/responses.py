"""`/v1/responses`: OpenAI's newer chat interface, without stored conversations."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from camshaft.generate.generation import TokenLogprob
from camshaft.serve.answers import Answer, Job, Usage
from camshaft.serve.errors import HttpError
from camshaft.serve.fields import (
    BOOL,
    OBJECT,
    TEXT,
    Field,
    Fields,
    integer,
    one_of,
    parse_json,
    read_fields,
    required,
)
from camshaft.serve.openai.chat import EMPTY, chat_ids, read_messages
from camshaft.serve.options import MOST_TOKENS, OPTIONS, SAMPLING, generate_options
from camshaft.serve.respond import event, respond
from camshaft.serve.served import Served

FIELDS: Fields = {
    **{name: rule for name, rule in OPTIONS.items() if name in SAMPLING},
    **{
        name: OPTIONS[name]
        for name in ("stream", "user", "safety_identifier", "prompt_cache_key", "metadata", "ignore_eos")
    },
    "model": TEXT,
    "input": Field(lambda v: isinstance(v, str | list), "a text or a list of items"),
    "instructions": TEXT,
    "max_output_tokens": integer(1, MOST_TOKENS),
    "store": one_of(False),
    "background": one_of(False),
    "truncation": one_of("disabled"),
    "text": OBJECT,
    "include": EMPTY,
    "tools": EMPTY,
    "tool_choice": one_of("none", "auto"),  # of no tools
    "parallel_tool_calls": BOOL,
    "service_tier": one_of("auto", "default"),
}
_ITEM: Fields = {
    "type": one_of("message"),
    "role": TEXT,
    "content": Field(lambda v: isinstance(v, str | list), "a text or a list of parts"),
    "id": TEXT,
    "status": one_of("completed", "incomplete"),
}
_PART: Fields = {"type": one_of("input_text", "output_text"), "text": TEXT, "annotations": EMPTY, "logprobs": EMPTY}
_FORMAT: Fields = {"format": one_of({"type": "text"})}


def _messages(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The instructions and the input as messages of a chat."""
    said = required(given, "input")
    items = (
        [{"role": "user", "content": said}]
        if isinstance(said, str)
        else [_message(i, each) for i, each in enumerate(said)]
    )
    if not items:
        raise HttpError(400, "'input' is empty; wanted at least one item", code="invalid_value", param="input")
    system = [{"role": "system", "content": given["instructions"]}] if "instructions" in given else []
    return read_messages(system + items, "input", first=-len(system))


def _message(i: int, item: Any) -> dict[str, Any]:
    given = read_fields(item, _ITEM, f"input[{i}]")
    message: dict[str, Any] = {name: given[name] for name in ("role", "content") if name in given}
    if isinstance(message.get("content"), list):
        parts = [read_fields(part, _PART, f"input[{i}].content[{j}]") for j, part in enumerate(message["content"])]
        message["content"] = [{"type": "text", "text": part.get("text")} for part in parts]
    return message


async def responses(request: Request, served: Served) -> Response:
    """Answer a chat."""
    given = read_fields(parse_json(await served.body(request)), FIELDS)
    served.check_model(given.get("model"))
    read_fields(given.get("text", {}), _FORMAT, "text")
    messages = _messages(given)
    limited = given | ({"max_tokens": given["max_output_tokens"]} if "max_output_tokens" in given else {})
    options = generate_options(limited, max_tokens=-1, logprobs=None, n_vocab=served.lm.config.vocab_size)
    ids = await run_in_threadpool(chat_ids, served, messages)
    return await respond(
        request, served, Job([ids], options), ResponseShape(served, given), stream=given.get("stream", False)
    )


@dataclass
class ResponseShape:
    """A response and its events, which are numbered."""

    served: Served
    given: Mapping[str, Any]
    id: str = field(default_factory=lambda: f"resp_{uuid.uuid4().hex}")
    item_id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    media_type: str = "text/event-stream"
    keep_alive: bytes = b": keep-alive\n\n"
    _n_events: int = 0
    _text: list[str] = field(default_factory=list)
    _reason: str = "stop"

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._n_events = self._n_events, self._n_events + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    def _of_part(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self.item_id, output_index=0, content_index=0, **fields)

    def _item(self, status: str, parts: list[Any]) -> dict[str, Any]:
        return {"id": self.item_id, "type": "message", "role": "assistant", "status": status, "content": parts}

    def _response(self, status: str, output: list[Any], usage: Usage | None = None) -> dict[str, Any]:
        given = self.given
        is_cut = status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.served.name,
            "output": output,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": given.get("instructions"),
            "max_output_tokens": given.get("max_output_tokens"),
            "metadata": given.get("metadata", {}),
            "parallel_tool_calls": given.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "store": False,
            "temperature": given.get("temperature"),
            "text": {"format": {"type": "text"}},
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": [],
            "top_p": given.get("top_p"),
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
        }

    def begin(self) -> Iterable[bytes]:
        """The empty response, message and text."""
        yield self._event("response.created", response=self._response("in_progress", []))
        yield self._event("response.in_progress", response=self._response("in_progress", []))
        yield self._event("response.output_item.added", output_index=0, item=self._item("in_progress", []))
        yield self._of_part("response.content_part.added", part=_part(""))

    def piece(self, index: int, text: str, each: Sequence[TokenLogprob]) -> Iterable[bytes]:
        """A piece of the text."""
        self._text.append(text)
        return [self._of_part("response.output_text.delta", delta=text, logprobs=[])]

    def end_answer(self, index: int, reason: str) -> Iterable[bytes]:
        """The ends of the text and of the message."""
        self._reason = reason
        text = "".join(self._text)
        yield self._of_part("response.output_text.done", text=text, logprobs=[])
        yield self._of_part("response.content_part.done", part=_part(text))
        yield self._event("response.output_item.done", output_index=0, item=self._item(_status(reason), [_part(text)]))

    def end(self, usage: Usage) -> Iterable[bytes]:
        """The whole response."""
        status = _status(self._reason)
        item = self._item(status, [_part("".join(self._text))])
        return [self._event(f"response.{status}", response=self._response(status, [item], usage))]

    def failed(self, error: HttpError) -> Iterable[bytes]:
        """The response with its error."""
        body = self._response("failed", []) | {"error": {"code": "server_error", "message": str(error)}}
        return [self._event("response.failed", response=body)]

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The response."""
        status = _status(answers[0].finish_reason or "stop")
        return self._response(status, [self._item(status, [_part(answers[0].text)])], usage)


def _status(reason: str) -> str:
    return "incomplete" if reason == "length" else "completed"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.generated,
    }
