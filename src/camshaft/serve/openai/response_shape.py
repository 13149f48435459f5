"""JSON of log probabilities, and the shape of `/v1/responses`: a response of items, and the numbered events that build it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from camshaft.generate.generation import TokenLogprob
from camshaft.generate.tools.calls import Delta
from camshaft.generate.tools.reasoning import AnswerReader
from camshaft.serve.models.served import Served
from camshaft.serve.openai.tools import call_id
from camshaft.serve.requests.answers import Answer, Usage
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.respond import event
from camshaft.text.tokenizer import Tokenizer


@dataclass
class ResponseShape:
    """A response and its events. `reader` finds thoughts and the calls of tools; each of these and a message is an item."""

    served: Served
    given: Mapping[str, Any]
    reader: AnswerReader
    id: str = field(default_factory=lambda: f"resp_{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    media_type: str = "text/event-stream"
    keep_alive: bytes = b": keep-alive\n\n"
    _n_events: int = 0
    _items: list[dict[str, Any]] = field(default_factory=list)
    _open: int | None = None  # the part that the last item is, as in Delta; None if it is complete
    _reason: str = "stop"

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._n_events = self._n_events, self._n_events + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        """An event of the last item."""
        return self._event(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **fields)

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
            "text": given.get("text") or {"format": {"type": "text"}},
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": given.get("tools", []),
            "top_p": given.get("top_p"),
            "truncation": "disabled",
            "reasoning": given.get("reasoning"),
            "usage": None if usage is None else _usage(usage, self._thought_tokens()),
        }

    def _thought_tokens(self) -> int:
        """The number of tokens of the thoughts, as their text has them."""
        return len(self.served.lm.tokenize(self.reader.thought, add_special=False))

    def begin(self) -> Iterable[bytes]:
        """The empty response."""
        yield self._event("response.created", response=self._response("in_progress", []))
        yield self._event("response.in_progress", response=self._response("in_progress", []))

    def piece(self, index: int, text: str, each: Sequence[TokenLogprob]) -> Iterable[bytes]:
        """A piece of the answer."""
        for delta in self.reader.push(text):
            yield from self._write(delta)

    def _write(self, delta: Delta) -> Iterable[bytes]:
        """Yields the events of a delta; for a new item, the last one is closed and a new one opened first."""
        if self._open != delta.part:
            yield from self._end_item("completed")
            yield from self._begin_item(delta)
        item = self._items[-1]
        if delta.thought:
            item["content"][0]["text"] += delta.thought
            yield self._of_item("response.reasoning_text.delta", content_index=0, delta=delta.thought)
        if delta.text:
            item["content"][0]["text"] += delta.text
            yield self._of_item("response.output_text.delta", content_index=0, delta=delta.text, logprobs=[])
        if delta.arguments:
            item["arguments"] += delta.arguments
            yield self._of_item("response.function_call_arguments.delta", delta=delta.arguments)

    def _begin_item(self, delta: Delta) -> Iterable[bytes]:
        self._open = delta.part
        item = _thoughts() if delta.thought else _message() if delta.index < 0 else _call(delta.name)
        self._items.append(item)
        shown = item | ({"content": []} if delta.index < 0 else {})
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=shown)
        if delta.index < 0:
            yield self._of_item("response.content_part.added", content_index=0, part=item["content"][0] | {"text": ""})

    def _end_item(self, status: str) -> Iterable[bytes]:
        """The end of the last item, if it is not complete."""
        if self._open is None:
            return
        item = self._items[-1]
        item["status"] = status
        if self._open < 0:
            (part,) = item["content"]
            more: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            yield self._of_item(f"response.{part['type']}.done", content_index=0, text=part["text"], **more)
            yield self._of_item("response.content_part.done", content_index=0, part=part)
        else:
            yield self._of_item("response.function_call_arguments.done", arguments=item["arguments"])
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)
        self._open = None

    def end_answer(self, index: int, reason: str, stop: str | None) -> Iterable[bytes]:
        """The end of the last item; an answer without any is an empty message."""
        self._reason = reason
        for delta in self.reader.finish():
            yield from self._write(delta)
        if not self._items:
            yield from self._begin_item(Delta())
        yield from self._end_item(_status(reason))

    def end(self, usage: Usage) -> Iterable[bytes]:
        """The whole response."""
        status = _status(self._reason)
        return [self._event(f"response.{status}", response=self._response(status, self._items, usage))]

    def failed(self, error: HttpError) -> Iterable[bytes]:
        """The response with its error."""
        body = self._response("failed", []) | {"error": {"code": "server_error", "message": str(error)}}
        return [self._event("response.failed", response=body)]

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The response: what the events build."""
        reason = answers[0].finish_reason or "stop"
        for _ in (*self.piece(0, answers[0].text, ()), *self.end_answer(0, reason, None)):
            pass
        return self._response(_status(reason), self._items, usage)


def _message() -> dict[str, Any]:
    common = {"type": "message", "role": "assistant", "status": "in_progress"}
    return {"id": f"msg_{uuid.uuid4().hex}", **common, "content": [_part("")]}


def _thoughts() -> dict[str, Any]:
    part = {"type": "reasoning_text", "text": ""}
    return {
        "id": f"rs_{uuid.uuid4().hex}",
        "type": "reasoning",
        "status": "in_progress",
        "summary": [],
        "content": [part],
    }


def _call(name: str) -> dict[str, Any]:
    common = {"type": "function_call", "status": "in_progress"}
    return {"id": f"fc_{uuid.uuid4().hex}", **common, "call_id": call_id(), "name": name, "arguments": ""}


def _status(reason: str) -> str:
    return "incomplete" if reason == "length" else "completed"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage, thought_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.generated,
        "output_tokens_details": {"reasoning_tokens": thought_tokens},
        "total_tokens": usage.prompt + usage.generated,
    }


def _entry(each: TokenLogprob, tokenizer: Tokenizer) -> dict[str, Any]:
    return {"token": each.token, "logprob": each.logprob, "bytes": list(tokenizer.spelled_bytes(each.id))}


def chat_logprobs(logprobs: Iterable[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """`logprobs` of a chat completion: an entry per token, with the bytes of those that are not whole characters."""
    rows = [
        _entry(each, tokenizer) | {"top_logprobs": [_entry(top, tokenizer) for top in each.top]} for each in logprobs
    ]
    return {"content": rows, "refusal": None}


def completion_logprobs(logprobs: Iterable[TokenLogprob], offset: int = 0, before: str | None = None) -> dict[str, Any]:
    """`logprobs` of a completion: lists with an item per token; `offset` is that of the first token's text. `before` is the
    first token of an echoed prompt, which follows nothing and has no probability."""
    rows = list(logprobs)
    tokens = [*([] if before is None else [before]), *(each.token for each in rows)]
    none = [None] * (len(tokens) - len(rows))
    return {
        "tokens": tokens,
        "token_logprobs": [*none, *(each.logprob for each in rows)],
        "top_logprobs": [*none, *(_by_text(each.top) for each in rows)],
        "text_offset": [*accumulate(map(len, tokens), initial=offset)][:-1],
    }


def _by_text(top: Iterable[TokenLogprob]) -> dict[str, float]:
    """The log probabilities by text; of tokens with the same text, the more probable one's."""
    found: dict[str, float] = {}
    for each in top:
        found.setdefault(each.token, each.logprob)
    return found
