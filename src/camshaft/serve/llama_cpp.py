"""Endpoints of llama.cpp's server: `/props`, `/slots`, `/apply-template`, `/infill`, `/completion` and token counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from camshaft.generate.generation import TokenLogprob
from camshaft.generate.sampling.parameters import Sampling
from camshaft.serve.models.served import Served
from camshaft.serve.openai import prompts, tools
from camshaft.serve.openai.chat import FIELDS as CHAT_FIELDS
from camshaft.serve.openai.chat import read_chat, read_messages
from camshaft.serve.openai.prompts import filled, text_ids
from camshaft.serve.requests import fields, grammars
from camshaft.serve.requests.answers import Answer, Job, Usage
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.options import MOST_TOKENS, OPTIONS, SAMPLING, generate_options
from camshaft.serve.requests.respond import Asked, Json, beside, body_of, event, respond
from camshaft.serve.tokens import control_tokens, template_source
from camshaft.version import __version__

_EXTRA: fields.Fields = {"filename": fields.TEXT, "text": fields.TEXT, "time": fields.integer(0, 1 << 62)}
_COMMON: fields.Fields = {
    **{name: rule for name, rule in OPTIONS.items() if name in SAMPLING},
    **{name: OPTIONS[name] for name in ("stop", "stream", "ignore_eos")},
    **{name: grammars.FIELDS[name] for name in ("grammar", "json_schema")},
    "model": fields.TEXT,
    "n_predict": fields.integer(-1, MOST_TOKENS),
    "cache_prompt": fields.one_of(True),  # prompts are always cached
    "id_slot": fields.integer(-1, MOST_TOKENS),  # accepted: the slot does not change the answer
}
_COMPLETION: fields.Fields = {**_COMMON, "prompt": fields.PROMPTS}
_INFILL: fields.Fields = {
    **_COMMON,
    "prompt": fields.TEXT,
    "input_prefix": fields.TEXT,
    "input_suffix": fields.TEXT,
    "input_extra": fields.objects(_EXTRA, "text"),
}
_TEMPLATE: fields.Fields = {
    "model": fields.TEXT,
    "messages": CHAT_FIELDS["messages"],
    "add_generation_prompt": fields.BOOL,
    "tools": fields.LIST,
    **{name: prompts.FIELDS[name] for name in ("chat_template_kwargs", "reasoning_effort")},
}
_NO_FILE = "--- snippet ---"  # precedes an extra file if the model has no token for that


async def props(request: Request, served: Served) -> Response:
    """Answers with the settings of a model."""
    lm = served.lm
    sampling = {each.name: getattr(Sampling(), each.name) for each in dataclasses.fields(Sampling)}
    sampling |= {"seed": 2**32 - 1 if sampling["seed"] is None else sampling["seed"], "logit_bias": []}
    sampling["dry_sequence_breakers"] = list(sampling["dry_sequence_breakers"])
    return Json(
        {
            "default_generation_settings": {"n_ctx": lm.context, "params": {"n_predict": -1, **sampling}},
            "total_slots": lm.plans.cache.n_slots,
            "model_alias": served.name,
            "model_path": served.name,
            "chat_template": template_source(served),
            **control_tokens(served),
            "modalities": {"vision": lm.vision is not None, "audio": False},
            "build_info": f"camshaft {__version__}",
        }
    )


@fields.takes(_TEMPLATE, "messages")
async def apply_template(request: Request, served: Served) -> Response:
    """The prompt of a chat as a text."""
    return Json({"prompt": await beside(request, _rendered, body_of(request), served)})


def _rendered(body: Any, served: Served) -> str:
    given = fields.read_fields(body, _TEMPLATE)
    messages, listed = read_messages(fields.required(given, "messages")), tools.listed_tools(given)
    how = prompts.read_how(given, served)
    begins = given.get("add_generation_prompt", True)
    return prompts.rendered(served, messages, listed, how, add_generation_prompt=begins)


@fields.takes(CHAT_FIELDS, "messages")
async def input_tokens(request: Request, served: Served) -> Response:
    """The number of tokens of a chat completion's prompt."""
    asked = await beside(request, read_chat, body_of(request), served)
    return Json({"object": "response.input_tokens", "input_tokens": len(asked.job.prompts[0])})


@fields.takes(_COMPLETION, "prompt", stream="text/event-stream")
async def completion(request: Request, served: Served) -> Response:
    """Continue a text."""
    return await respond(request, served, _read_completion)


def _read_completion(body: Any, served: Served) -> Asked:
    given = fields.read_fields(body, _COMPLETION)
    prompt = fields.required(given, "prompt")
    if isinstance(prompt, list) and not fields.is_integer(prompt[0]):
        raise HttpError(400, "'prompt' has several prompts; wanted one", code="invalid_value", param="prompt")
    if isinstance(prompt, str):
        served.check_text(prompt, "prompt")
    return _asked(given, served, served.lm.prompt_ids(prompt, raw=True))


@fields.takes(_INFILL, "input_prefix", "input_suffix", stream="text/event-stream")
async def infill(request: Request, served: Served) -> Response:
    """Generates the text between a prefix and a suffix. HttpError names the infill tokens that the model lacks."""
    return await respond(request, served, _read_infill)


def _read_infill(body: Any, served: Served) -> Asked:
    given = fields.read_fields(body, _INFILL)
    filled(served, (), ())  # raises if the model cannot
    fill = served.lm.fill_tokens

    def ids(text: str, param: str) -> list[int]:
        return text_ids(served, text, param)

    prefix = ids(fields.required(given, "input_prefix"), "input_prefix") + ids(given.get("prompt", ""), "prompt")
    suffix = ids(fields.required(given, "input_suffix"), "input_suffix")
    extra = [
        token
        for i, each in enumerate(given.get("input_extra", ()))
        for token in _extra(fields.read_fields(each, _EXTRA, f"input_extra[{i}]"), f"input_extra[{i}]", fill, ids)
    ]
    if extra and "fim_rep" in fill:
        extra = [fill["fim_rep"], *ids("project\n", "input_extra"), *extra]
    return _asked(given, served, filled(served, prefix, suffix, extra))


def _extra(given: Mapping[str, Any], of: str, fill: Mapping[str, int], ids: Any) -> list[int]:
    """The tokens of an extra file of the project."""
    text, name = fields.required(given, "text", of), given.get("filename", "")
    if "fim_sep" in fill:
        return [fill["fim_sep"], *ids(f"{name}\n{text}", f"{of}.text")]
    return list(ids(f"\n\n{_NO_FILE}\n\n{text}", f"{of}.text"))


def _asked(given: Mapping[str, Any], served: Served, ids: list[int]) -> Asked:
    limited = {**given, "max_tokens": given.get("n_predict", -1)}
    grammar = grammars.read_grammar(given, served)
    n_vocab = served.lm.config.vocab_size
    options = generate_options(limited, max_tokens=-1, logprobs=None, n_vocab=n_vocab, grammar=grammar)
    return Asked(Job([ids], options), LlamaCppShape(served), given.get("stream", False))


@dataclass
class LlamaCppShape:
    """Writes answers in llama.cpp's format, whole or as events; the last event has the fields of the whole answer."""

    served: Served
    media_type: str = "text/event-stream"
    keep_alive: bytes = b": keep-alive\n\n"
    _end: dict[str, Any] = field(default_factory=dict)

    def begin(self) -> Iterable[bytes]:
        """Yields nothing."""
        return ()

    def piece(self, index: int, text: str, each: Sequence[TokenLogprob]) -> Iterable[bytes]:
        """Yields a piece of the answer."""
        return [event({"index": index, "content": text, "tokens": [], "stop": False, "id_slot": -1})]

    def end_answer(self, index: int, reason: str, stop: str | None) -> Iterable[bytes]:
        """Yields nothing; `end` has the reason."""
        self._end = _ended(reason, stop)
        return ()

    def end(self, usage: Usage) -> Iterable[bytes]:
        """Yields the last event, with the counts."""
        return [event(self._last("", self._end, usage))]

    def failed(self, error: HttpError) -> Iterable[bytes]:
        """Yields an error event."""
        return [event(error.body)]

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """Returns the complete answer."""
        (answer,) = answers
        return self._last(answer.text, _ended(answer.finish_reason or "stop", answer.stop_string), usage)

    def _last(self, text: str, end: Mapping[str, Any], usage: Usage) -> dict[str, Any]:
        return {
            "index": 0,
            "content": text,
            "tokens": [],
            "id_slot": -1,
            "stop": True,
            "model": self.served.name,
            "tokens_predicted": usage.generated,
            "tokens_evaluated": usage.prompt,
            "tokens_cached": usage.cached,
            "truncated": False,
            **end,
            **usage.timings,
        }


def _ended(reason: str, stop: str | None) -> dict[str, Any]:
    kind = "word" if stop is not None else {"stop": "eos", "length": "limit"}[reason]
    return {"stop_type": kind, "stopping_word": stop or ""}
