"""Anthropic's response format: a message of content blocks, and the events that stream it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from camshaft.generate.generation import TokenLogprob
from camshaft.generate.tools.calls import Delta
from camshaft.generate.tools.reasoning import AnswerReader
from camshaft.serve.models.served import Served
from camshaft.serve.openai.tools import finish_reason
from camshaft.serve.requests.answers import Answer, Usage
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.respond import event

_REASONS = {"stop": "end_turn", "length": "max_tokens"}


def error_json(error: HttpError) -> dict[str, Any]:
    """Returns an error in Anthropic's format."""
    kind = str(error.body["error"]["type"])
    # Anthropic's names where they differ from OpenAI's
    kind = {"server_error": "api_error", "service_unavailable": "overloaded_error"}.get(kind, kind)
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


@dataclass
class MessageShape:
    """Writes a message, whole or as events. `reader` separates text, reasoning and tool calls."""

    served: Served
    prompt_tokens: int
    reader: AnswerReader
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex[:24]}")
    media_type: str = "text/event-stream"
    keep_alive: bytes = event({"type": "ping"}, "ping")
    _n_blocks: int = 0
    _open: int | None = None  # Delta.part of the block that is still open
    _stop: tuple[str, str | None] = ("end_turn", None)

    def _message(
        self, content: list[Any], stop: tuple[str | None, str | None], usage: dict[str, int]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.served.name,
            "content": content,
            "stop_reason": stop[0],
            "stop_sequence": stop[1],
            "usage": usage,
        }

    def begin(self) -> Iterable[bytes]:
        """Yields the message_start event."""
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": 0}
        return [_event("message_start", message=self._message([], (None, None), usage))]

    def piece(self, index: int, text: str, each: Sequence[TokenLogprob]) -> Iterable[bytes]:
        """Yields the events of a piece of the answer."""
        for delta in self.reader.push(text):
            yield from self._write(delta)

    def _write(self, delta: Delta) -> Iterable[bytes]:
        """Yields the events of a delta; for a new part, the last block is closed and a new one opened first."""
        if self._open != delta.part:
            yield from self._end_block()
            block = _text_block("") if delta.index < 0 else _call_block(delta.name, {})
            block = _thought_block("") if delta.thought else block
            yield _event("content_block_start", index=self._n_blocks, content_block=block)
            self._open = delta.part
        added = {
            "thinking": ("thinking_delta", delta.thought),
            "text": ("text_delta", delta.text),
            "partial_json": ("input_json_delta", delta.arguments),
        }
        for name, (kind, text) in added.items():
            if text:
                yield _event("content_block_delta", index=self._n_blocks, delta={"type": kind, name: text})

    def _end_block(self) -> Iterable[bytes]:
        if self._open is not None:
            yield _event("content_block_stop", index=self._n_blocks)
            self._open, self._n_blocks = None, self._n_blocks + 1

    def end_answer(self, index: int, reason: str, stop: str | None) -> Iterable[bytes]:
        """Yields the events that close the last block."""
        for delta in self.reader.finish():
            yield from self._write(delta)
        yield from self._end_block()
        self._stop = self._stopped(reason, stop)

    def _stopped(self, reason: str, stop: str | None) -> tuple[str, str | None]:
        """Returns (stop_reason, stop_sequence)."""
        if stop is not None:
            return "stop_sequence", stop
        return ("tool_use" if finish_reason(self.reader, reason) == "tool_calls" else _REASONS[reason]), None

    def end(self, usage: Usage) -> Iterable[bytes]:
        """Yields the stop reason and usage, and the end event."""
        reason = {"stop_reason": self._stop[0], "stop_sequence": self._stop[1]}
        return [_event("message_delta", delta=reason, usage=_usage(usage)), _event("message_stop")]

    def failed(self, error: HttpError) -> Iterable[bytes]:
        """Yields an error event."""
        return [event(error_json(error), "error")]

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """Returns the complete message."""
        answer, reader = answers[0], self.reader
        text = reader.text_of(answer.text)
        blocks = [_thought_block(reader.thought)] if reader.thought else []
        blocks += [_text_block(text)] if text or not (reader.calls or blocks) else []
        blocks += [_call_block(call.name, call.values or {}) for call in reader.calls]
        return self._message(blocks, self._stopped(answer.finish_reason or "stop", answer.stop_string), _usage(usage))


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _thought_block(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _call_block(name: str, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": name, "input": given}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.generated,
    }
