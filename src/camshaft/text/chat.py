"""The chat template of a model file: messages to the one text the model was trained on, in Jinja2's sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from camshaft.errors import ModelError
from camshaft.text.tokenizer import Tokenizer
from camshaft.text.vocabulary import Metadata

Message = Mapping[str, Any]

# What a template's own expressions can raise besides Jinja2's errors.
_TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %}, which marks the assistant's words for training: here just its body."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _environment() -> ImmutableSandboxedEnvironment:
    extensions: list[type[Extension]] = [GenerationTag, loopcontrols]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


class ChatTemplate:
    """A compiled chat template with the spellings of the first and the last token that it may refer to."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """ModelError when `source` is no Jinja2 template."""
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ModelError(f"the file's chat template, line {error.lineno}: {error.message}") from error
        except RecursionError as error:
            raise ModelError("the file's chat template is nested too deeply") from error

    @classmethod
    def from_gguf(cls, metadata: Metadata, tokens: Sequence[str] | None = None) -> ChatTemplate:
        """The template in a GGUF file's metadata. ModelError when it has none: such a model takes --raw text.

        `tokens`: the vocabulary, where it has been read already; looking one up in the file takes 10 ms and more.
        """
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            raise ModelError("the model file has no tokenizer.chat_template; use --raw to give it plain text")
        tokens = metadata.get("tokenizer.ggml.tokens", ()) if tokens is None else tokens
        return cls(source, bos_token=_spelling(metadata, "bos", tokens), eos_token=_spelling(metadata, "eos", tokens))

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of `messages` (each with 'role' and 'content'), with the opening of the assistant's turn on request.

        `variables` reach the template by name (tools, enable_thinking, ...). ModelError when the template refuses.
        """
        given = {"tools": None, "documents": None, **self._tokens, **variables}
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=add_generation_prompt, **given)
        except _TEMPLATE_FAULTS as error:
            raise ModelError(f"the model's chat template refused the messages: {error}") from error


def _spelling(metadata: Metadata, name: str, tokens: Sequence[str]) -> str:
    token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return tokens[token_id] if isinstance(token_id, int) and 0 <= token_id < len(tokens) else ""


def encode_chat(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a rendered chat: control tokens parsed, the first one not doubled where the template spelled it."""
    tokens = tokenizer.encode(text, add_special=False)
    adds_bos = tokenizer.vocabulary.add_bos and tokens[:1] != [tokenizer.bos_id]
    return [tokenizer.bos_id, *tokens] if adds_bos and tokenizer.bos_id is not None else tokens
