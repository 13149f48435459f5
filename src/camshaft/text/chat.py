"""Chat templates: render messages to the prompt format of a model, in Jinja2's sandbox."""

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

# Exceptions that a template's expressions can raise besides Jinja2's own.
_TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class GenerationTag(Extension):
    """The tag {% generation %} ... {% endgeneration %}, which marks assistant text for training; renders its body."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Parse the statements between the tags."""
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
    """A compiled chat template with the texts of the BOS and EOS tokens."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Compile the template. Raises ModelError if `source` is not valid Jinja2."""
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
        """The template in a GGUF file's metadata. Raises ModelError if there is none; such models need raw prompts.

        `tokens` is the vocabulary if it is loaded already; reading it from the file takes over 10 ms.
        """
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            raise ModelError("the model file has no tokenizer.chat_template; use raw=True to give it plain text")
        tokens = metadata.get("tokenizer.ggml.tokens", ()) if tokens is None else tokens
        return cls(source, bos_token=_spelling(metadata, "bos", tokens), eos_token=_spelling(metadata, "eos", tokens))

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """Render messages (each with 'role' and 'content'), optionally with the start of the assistant's turn.

        `variables` are passed to the template (tools, enable_thinking, ...). Raises ModelError if rendering fails.
        """
        given = {"tools": None, "documents": None, **self._tokens, **variables}
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=add_generation_prompt, **given)
        except _TEMPLATE_FAULTS as error:
            raise ModelError(f"the model's chat template failed to render the messages: {error}") from error


def _spelling(metadata: Metadata, name: str, tokens: Sequence[str]) -> str:
    token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return tokens[token_id] if isinstance(token_id, int) and 0 <= token_id < len(tokens) else ""


def encode_chat(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokenize a rendered chat: parse control tokens, and add BOS unless the template did."""
    tokens = tokenizer.encode(text, add_special=False)
    adds_bos = tokenizer.vocabulary.add_bos and tokens[:1] != [tokenizer.bos_id]
    return [tokenizer.bos_id, *tokens] if adds_bos and tokenizer.bos_id is not None else tokens
