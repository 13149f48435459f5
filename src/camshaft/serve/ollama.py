"""Ollama's interface: `/api/chat`, `/api/generate`, `/api/show`, `/api/version`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from camshaft.generate.generation import TokenLogprob
from camshaft.generate.grammar.grammar import Grammar
from camshaft.generate.options import GenerateOptions
from camshaft.generate.tools.calls import Delta, ToolCall
from camshaft.generate.tools.reasoning import AnswerReader
from camshaft.generate.vision.prompts import content_of
from camshaft.serve.models.models import Models
from camshaft.serve.models.served import Served
from camshaft.serve.openai.chat import chat_of, read_messages
from camshaft.serve.openai.prompts import How, placed, thinking
from camshaft.serve.openai.tools import Tools, call_id, form_of, read_tools
from camshaft.serve.requests import fields, grammars
from camshaft.serve.requests.answers import Answer, Job, Usage
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.images import image_of_base64
from camshaft.serve.requests.options import MOST_TOKENS, OPTIONS, SAMPLING, generate_options
from camshaft.serve.requests.respond import Asked, Json, Reader, body_of, compact, respond
from camshaft.version import __version__

_DURATION = re.compile(r"(-?\d+(?:\.\d+)?)(ms|s|m|h|)", re.ASCII)
_FOREVER_S = 1e9  # 32 years
_UNITS_S = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
KEEP_ALIVE = fields.Field(
    lambda v: not isinstance(v, bool) and _DURATION.fullmatch(str(v)) is not None,
    'a time such as 300, "5m" or -1',
    {
        "anyOf": [
            {"type": "number", "minimum": -1, "maximum": 1_000_000},
            {"type": "string", "pattern": f"^{_DURATION.pattern}$"},
        ]
    },
)
_COMMON: fields.Fields = {
    "model": fields.TEXT,
    "stream": fields.BOOL,
    "options": fields.OBJECT,
    "keep_alive": KEEP_ALIVE,
    "format": fields.Field(lambda v: v in ("", "json") or isinstance(v, dict), '"json" or a JSON schema'),
    "think": fields.one_of(True, False, "low", "medium", "high"),
}
_CHAT: fields.Fields = {**_COMMON, "messages": fields.LIST, "tools": fields.LIST}
_GENERATE: fields.Fields = {
    **_COMMON,
    "prompt": fields.TEXT,
    "system": fields.TEXT,
    "raw": fields.BOOL,
    "images": fields.LIST,
    "suffix": fields.one_of(""),
}
_SHOW: fields.Fields = {"model": fields.TEXT, "name": fields.TEXT, "verbose": fields.BOOL}
_OTHERS = {"stop", "mirostat_tau", "mirostat_eta"}
_OPTIONS: fields.Fields = {
    **{name: rule for name, rule in OPTIONS.items() if name in SAMPLING | _OTHERS},
    "num_predict": fields.integer(-1, MOST_TOKENS),
    "num_ctx": fields.integer(1, MOST_TOKENS),
}


def _form(given: Mapping[str, Any], served: Served, tools: Tools | None = None) -> Grammar | None:
    """The form of the answer. Raises HttpError for one beside tools that it may call."""
    return form_of(tools, grammars.usable("format", lambda: grammars.ollama_format(given.get("format", "")), served))


def _options(
    given: Mapping[str, Any], served: Served, grammar: Grammar | None, shown_tokens: Sequence[str] = ()
) -> list[GenerateOptions]:
    """The options of generating, by OpenAI's names."""
    read = fields.read_fields(given.get("options", {}), _OPTIONS, "options")
    context = served.lm.context
    if read.pop("num_ctx", context) > context:
        message = f"'options.num_ctx' is more than {context}: the server was started with that context"
        raise HttpError(400, message, code="invalid_value", param="options.num_ctx")
    read["max_tokens"] = read.pop("num_predict", -1)
    n_vocab = served.lm.config.vocab_size
    return generate_options(
        read, max_tokens=-1, logprobs=None, n_vocab=n_vocab, grammar=grammar, shown_tokens=shown_tokens
    )


def _chat(
    messages: Sequence[Any], given: Mapping[str, Any], served: Served, is_chat: bool, tools: Tools | None = None
) -> Asked:
    """A chat and its answer."""
    how, grammar = How(), _form(given, served, tools)
    if "think" in given:
        how = How(thinking(given["think"], served, "think"))
    chat = chat_of(served, messages, tools, grammar, how)
    options = _options(given, served, grammar, chat.shown_tokens)
    return Asked(Job([chat.ids], options), OllamaShape(served, is_chat, chat.reader()), given.get("stream", True))


def _check_model(given: Mapping[str, Any], served: Served) -> None:
    served.check_model(fields.required(given, "model").removesuffix(":latest"))


def keep(request: Request, value: Any) -> None:
    """Keep the request's model in memory for a time without requests, for ever if that is negative or beyond all dates; None: as
    configured."""
    if value is None:
        request.state.entry.idle_s = request.state.entry.card.idle_s
        return
    found = _DURATION.fullmatch(str(value))
    assert found is not None
    seconds = float(found[1]) * _UNITS_S[found[2]]
    request.state.entry.idle_s = seconds if 0 <= seconds < _FOREVER_S else None


async def _answer(request: Request, served: Served, read: Reader, allowed: fields.Fields, field: str) -> Response:
    """Answer, or without `field` only load the model, or unload it."""
    given = fields.read_fields(body_of(request), allowed)
    keep(request, given.get("keep_alive"))
    if given.get(field):
        return await respond(request, served, read)
    fields.required(given, "model")
    is_over = request.state.entry.idle_s == 0
    shape = OllamaShape(served, field == "messages", AnswerReader())
    return Json(shape.line("", done=True, done_reason="unload" if is_over else "load"))


@fields.takes(_CHAT, "model", stream="application/x-ndjson")
async def chat(request: Request, served: Served) -> Response:
    """Answer a chat, as a stream unless `stream` is false."""
    return await _answer(request, served, _read_chat, _CHAT, "messages")


def _read_chat(body: Any, served: Served) -> Asked:
    given = fields.read_fields(body, _CHAT)
    _check_model(given, served)
    tools = read_tools({"tools": given.get("tools", [])}, served)
    return _chat(read_messages(fields.required(given, "messages")), given, served, True, tools)


@fields.takes(_GENERATE, "model", stream="application/x-ndjson")
async def generate(request: Request, served: Served) -> Response:
    """Answer a prompt as a user's message, or continue it if `raw`; as a stream unless `stream` is false."""
    return await _answer(request, served, _read_generate, _GENERATE, "prompt")


def _read_generate(body: Any, served: Served) -> Asked:
    given = fields.read_fields(body, _GENERATE)
    _check_model(given, served)
    prompt = fields.required(given, "prompt")
    images = [image_of_base64(each, f"images[{i}]") for i, each in enumerate(given.get("images", ()))]
    if not given.get("raw"):
        system = [{"role": "system", "content": given["system"]}] if "system" in given else []
        return _chat([*system, {"role": "user", "content": content_of(prompt, images)}], given, served, False)
    if "system" in given or given.get("think"):
        param = "system" if "system" in given else "think"
        raise HttpError(400, f"'{param}' with raw: true", code="invalid_value", param=param)
    served.check_text(prompt, "prompt")
    options = _options(given, served, _form(given, served))
    job = Job([placed(served, lambda lm: lm.prompt_ids(prompt, raw=True, images=images), "prompt")], options)
    return Asked(job, OllamaShape(served, False, AnswerReader()), given.get("stream", True))


@fields.takes(_SHOW)
async def show(request: Request, served: Served) -> Response:
    """Answers with the model's description."""
    given = fields.read_fields(body_of(request), _SHOW)
    fields.required({**given, "model": given.get("model", given.get("name"))}, "model")
    name, seeing = served.lm.config.architecture, ["vision"] * (served.lm.vision is not None)
    info = {"general.architecture": name, f"{name}.context_length": served.lm.context}
    details = {"format": "gguf", "family": name}
    return Json({"details": details, "model_info": info, "capabilities": ["completion", "tools", *seeing]})


async def version(request: Request, models: Models) -> Response:
    """camshaft's version."""
    return Json({"version": __version__})


@dataclass
class OllamaShape:
    """An answer as JSON, and as lines of JSON. `reader` finds thoughts and calls of tools."""

    served: Served
    is_chat: bool
    reader: AnswerReader
    media_type: str = "application/x-ndjson"
    keep_alive: bytes = b""
    _begun: float = field(default_factory=time.perf_counter)
    _first: float = 0.0
    _reason: str = "stop"

    def line(self, text: str, calls: Sequence[ToolCall] = (), thought: str = "", **more: Any) -> dict[str, Any]:
        """A line of the answer."""
        called: dict[str, Any] = {"tool_calls": [_call(i, call) for i, call in enumerate(calls)]} if calls else {}
        called |= {"thinking": thought} if thought else {}
        content: dict[str, Any] = {"response": text, **called}
        if self.is_chat:
            content = {"message": {"role": "assistant", "content": text, **called}}
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return {"model": self.served.name, "created_at": now, **content, "done": False} | more

    def _last(
        self, text: str, reason: str, usage: Usage, calls: Sequence[ToolCall] = (), thought: str = ""
    ) -> dict[str, Any]:
        now = time.perf_counter()
        first, begun = self._first or now, self._begun
        times = {"total_duration": now - begun, "prompt_eval_duration": first - begun, "eval_duration": now - first}
        return self.line(
            text,
            calls,
            thought,
            done=True,
            done_reason=reason,
            load_duration=0,
            prompt_eval_count=usage.prompt,
            eval_count=usage.generated,
            **{name: round(seconds * 1e9) for name, seconds in times.items()},
        )

    def begin(self) -> Iterable[bytes]:
        """Nothing."""
        return ()

    def piece(self, index: int, text: str, each: Sequence[TokenLogprob]) -> Iterable[bytes]:
        """A line with a piece of the answer."""
        self._first = self._first or time.perf_counter()
        return [self._line(delta) for delta in self.reader.push(text) if delta.text or delta.thought]

    def _line(self, delta: Delta) -> bytes:
        return compact(self.line(delta.text, thought=delta.thought)) + b"\n"

    def end_answer(self, index: int, reason: str, stop: str | None) -> Iterable[bytes]:
        """A line with the calls of tools, if there are any; `end` has the reason."""
        self._reason = reason
        yield from (self._line(delta) for delta in self.reader.finish() if delta.text or delta.thought)
        if self.reader.calls:
            yield compact(self.line("", self.reader.calls)) + b"\n"

    def end(self, usage: Usage) -> Iterable[bytes]:
        """The line with the reason and the counts."""
        return [compact(self._last("", self._reason, usage)) + b"\n"]

    def failed(self, error: HttpError) -> Iterable[bytes]:
        """A line with the error."""
        return [compact({"error": str(error)}) + b"\n"]

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The answer."""
        text = self.reader.text_of(answers[0].text)
        return self._last(text, answers[0].finish_reason or "stop", usage, self.reader.calls, self.reader.thought)


def _call(index: int, call: ToolCall) -> dict[str, Any]:
    """A call, whose arguments are an object."""
    return {"id": call_id(), "function": {"index": index, "name": call.name, "arguments": call.values or {}}}
