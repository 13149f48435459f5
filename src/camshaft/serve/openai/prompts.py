"""The prompt of a chat, and how its answer is read: thoughts and calls apart from the text; prompts with a part to fill in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from camshaft.errors import ModelError, SettingError
from camshaft.generate.language_model import LanguageModel
from camshaft.generate.tools.reasoning import AnswerReader, Reasoning
from camshaft.generate.tools.styles import Message, Style, Tool, style_of, with_tools
from camshaft.generate.vision.prompts import for_template, placing, seeing, taken_out
from camshaft.models.vision.images import Image
from camshaft.serve.models.served import Served
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.fields import OBJECT, Fields, one_of
from camshaft.text.chat import encode_untrusted, texts_in

_NEEDED = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}  # the tokens without which there is no infill

T = TypeVar("T")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
FIELDS: Fields = {
    "reasoning_format": one_of("none", "auto", "deepseek"),  # llama.cpp's name of what auto does
    "reasoning_effort": one_of(*EFFORTS),
    "chat_template_kwargs": OBJECT,
}
# What the server itself gives to a template.
_TAKEN = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "tokenizer", "template", "self"}
)
_TAIL = 16  # tokens of a prompt that may have the mark at which thoughts begin


@dataclass(frozen=True)
class How:
    """A request's reasoning options: variables of the template, and whether reasoning is separated from the text."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    is_apart: bool = True


@dataclass(frozen=True)
class Chat:
    """A chat as tokens, and how its answer is read."""

    ids: list[int]
    shown_tokens: tuple[str, ...]
    _reader: AnswerReader

    def reader(self) -> AnswerReader:
        """A new reader of an answer."""
        return replace(self._reader)


def read_how(given: Mapping[str, Any], served: Served) -> How:
    """Reads a chat's reasoning FIELDS. HttpError for a variable that the server sets, or if the model has no reasoning."""
    variables = dict(given.get("chat_template_kwargs", {}))
    taken = next((name for name in variables if name in _TAKEN), None)
    if taken is not None:
        param = f"chat_template_kwargs.{taken}"
        raise HttpError(400, f"'{param}' is given by the server", code="invalid_value", param=param)
    if "reasoning_effort" in given:
        variables = thinking(given["reasoning_effort"], served, "reasoning_effort") | variables
    return How(variables, given.get("reasoning_format") != "none")


def thinking(wanted: bool | str, served: Served, param: str) -> dict[str, Any]:
    """The variables that make a model think, or not, or with some effort. Raises HttpError if it does not think at all."""
    is_wanted = wanted not in (False, "none")
    if is_wanted and served.reasoning is None:
        message = f"'{param}': the chat template of {served.name!r} has no reasoning"
        raise HttpError(400, message, code="unsupported_parameter", param=param)
    effort = {"reasoning_effort": wanted} if is_wanted and isinstance(wanted, str) else {}
    return {"enable_thinking": is_wanted, "thinking": is_wanted, **effort}


def read_chat_prompt(
    served: Served,
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] = (),
    style: Style | None = None,
    how: How = How(),
    has_form: bool = False,
) -> Chat:
    """The prompt of a chat with tools. An answer with a grammar from its first token (`has_form`) has no reasoning.

    Raises HttpError if the model's template does not take it."""
    ids = _ids(served, messages, tools, how)
    reasoning, tokenizer = served.reasoning, served.lm.tokenizer
    shown = () if style is None else style.shown
    if reasoning is None:
        return Chat(ids, shown, AnswerReader(style))
    is_open = tokenizer.decode(ids[-_TAIL:], special=True).rstrip().endswith(reasoning.begin)
    is_closed = has_form and (is_open or reasoning.is_harmony)
    if is_closed:
        ids = ids + tokenizer.encode(reasoning.closed, add_special=False, at_start=False)
    told_apart: Reasoning | None = reasoning if how.is_apart else None
    return Chat(ids, (*reasoning.shown, *shown), AnswerReader(style, told_apart, is_open, is_closed))


def _ids(served: Served, messages: Sequence[Message], tools: Sequence[Tool], how: How) -> list[int]:
    def encoded() -> list[int]:
        lm, (chat, variables, images) = served.lm, _told(served, messages, tools, how)
        pieces = placing(images, lm.vision, lm.tokenizer)
        return encode_untrusted(lm.tokenizer, lm.chat_template, chat, pieces, **variables)

    return _refusing(encoded)


def rendered(
    served: Served, messages: Sequence[Message], tools: Sequence[Tool], how: How, *, add_generation_prompt: bool
) -> str:
    """The prompt as a text, as the template writes it. Raises HttpError as `read_chat_prompt`."""

    def text() -> str:
        chat, variables, _ = _told(served, messages, tools, how)
        return served.lm.chat_template.render(chat, add_generation_prompt, **variables)

    return _refusing(text)


def _told(
    served: Served, messages: Sequence[Message], tools: Sequence[Tool], how: How
) -> tuple[list[dict[str, Any]], dict[str, Any], list[Image]]:
    """The messages and the variables of the template, and the images of the messages."""
    told, variables = with_tools(style_of(served.lm.chat_template), messages, tools)
    chat, images = taken_out(told)
    if images:
        seeing(served.lm.vision)
    chat = for_template(chat, served.lm.chat_template)
    variables = {**how.variables, **variables}
    served.check_text("".join(texts_in([chat, variables])), "messages")
    return chat, variables, images


def placed(served: Served, make: Callable[[LanguageModel], list[int]], of: str) -> list[int]:
    """The tokens of a prompt with images. Raises HttpError, of the field `of`, for those that do not fit it."""
    return _refusing(lambda: make(served.lm), of)


def _refusing(make: Callable[[], T], of: str = "messages") -> T:
    """Returns `make()`. Errors of the chat template and of images become HttpError."""
    try:
        return make()
    except SettingError as error:
        raise HttpError(400, str(error), code="invalid_value", param=of) from None
    except ModelError as error:
        raise HttpError(422, str(error), code="chat_template", param=of) from None
    except RecursionError:  # arguments of calls are of any depth
        raise HttpError(400, "'messages' is nested too deeply", code="invalid_value", param="messages") from None


def text_ids(served: Served, text: str, param: str) -> list[int]:
    """The tokens of a text inside a prompt, whose control tokens are text. Raises HttpError for one that cannot fit."""
    served.check_text(text, param)
    return served.lm.tokenizer.encode(text, add_special=False, parse_special=False, at_start=False)


def filled(served: Served, prefix: Sequence[int], suffix: Sequence[int], extra: Sequence[int] = ()) -> list[int]:
    """The prompt after which the model writes what belongs between. Raises HttpError that names the tokens for it that the
    model lacks."""
    fill, tokenizer = served.lm.fill_tokens, served.lm.tokenizer
    missing = [f"fim_{word}" for name, word in _NEEDED.items() if name not in fill]
    if missing:
        message = f"the model {served.name!r} has no tokens to fill in: {', '.join(missing)}"
        raise HttpError(400, message, code="unsupported_model", param="model")
    before = [] if tokenizer.bos_id is None or not tokenizer.vocabulary.add_bos else [tokenizer.bos_id]
    return [*before, *extra, fill["fim_pre"], *prefix, fill["fim_suf"], *suffix, fill["fim_mid"]]
