"""Chat templates: render messages to the prompt format of a model, in Jinja2's sandbox, within limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2.exceptions import TemplateSyntaxError

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value
from camshaft.text.templates.language import LimitedEnvironment, parse
from camshaft.text.templates.limits import OUTPUT, refuse
from camshaft.text.token_metadata import Metadata
from camshaft.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
# What a rendered text consists of: texts to tokenize, and tokens.
Pieces = Callable[[str], Sequence[str | Sequence[int]]]
_MARKS = range(0xE000, 0xF900)  # private characters
_MAX_REASON = 300  # characters of a template's own error message
_PROBE = "probe of a content"


class ChatTemplate:
    """A compiled chat template with the texts of the BOS and EOS tokens."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Compile the template. Raises ModelError if `source` is not valid Jinja2, or too long."""
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        environment = LimitedEnvironment()
        try:
            self._template = environment.from_string(parse(environment, source))
        except TemplateSyntaxError as error:
            raise ModelError(f"the file's chat template, line {error.lineno}: {_reason(error)}") from error
        except RecursionError as error:
            raise ModelError("the file's chat template is nested too deeply") from error
        except Exception as error:  # the template decides what is raised
            raise ModelError(f"the file's chat template: {_reason(error)}") from error

    @classmethod
    def from_gguf(cls, metadata: Metadata, tokens: Sequence[str] | None = None) -> ChatTemplate:
        """The template in a GGUF file's metadata. Raises ModelError if there is none; such models need raw prompts.

        `tokens` is the vocabulary if it is loaded already; reading it from the file takes over 10 ms.
        """
        source = metadata.get("tokenizer.chat_template")
        if source is not None and not isinstance(source, str):
            raise ModelError(
                f"tokenizer.chat_template is {shown_value(source)}; wanted a text; use raw=True to do without"
            )
        if source is None:
            raise ModelError("the model file has no tokenizer.chat_template; use raw=True to give it plain text")
        tokens = metadata.get("tokenizer.ggml.tokens", ()) if tokens is None else tokens
        return cls(source, bos_token=_spelling(metadata, "bos", tokens), eos_token=_spelling(metadata, "eos", tokens))

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """Render messages (each with 'role' and 'content'), optionally with the start of the assistant's turn.

        `variables` are passed to the template (tools, enable_thinking, ...). Raises ModelError, in one line, if rendering fails,
        or exceeds a limit: 2 s, 4 million characters, or those of template_limits.
        """
        if any(isinstance(message.get("content"), str) for message in messages) and self.wants_parts:
            messages = [_in_parts(message) for message in messages]
        given = {"tools": None, "documents": None, **self._tokens, **variables}
        given |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        try:
            return self._rendered(given)
        except Exception as error:  # the template decides what is raised
            raise ModelError(f"the model's chat template failed to render the messages: {_reason(error)}") from error

    @cached_property
    def wants_parts(self) -> bool:
        """Whether a message's content must be a list of parts, each with a 'type'; a text would be left out."""
        return not self._shows(_PROBE) and self._shows([{"type": "text", "text": _PROBE}])

    @cached_property
    def takes_images(self) -> bool:
        """Whether a message's content may be a list of parts, some of them images: {'type': 'image'}."""
        return self._shows([{"type": "image"}, {"type": "text", "text": _PROBE}], without="'type'")

    def _shows(self, content: Any, without: str = "\0") -> bool:
        """Whether a user's content is in the rendered text, which has not the words `without`."""
        given = {"tools": None, "documents": None, **self._tokens, "add_generation_prompt": True}
        try:
            text = self._rendered(given | {"messages": [{"role": "user", "content": content}]})
        except Exception:  # a template may raise anything; `render` reports it
            return False
        return _PROBE in text and without not in text

    def _rendered(self, given: dict[str, Any]) -> str:
        pieces, n_characters = [], 0
        for piece in self._template.root_render_func(self._template.new_context(given)):
            pieces.append(piece)
            n_characters += len(piece)
            if n_characters > OUTPUT:
                refuse(f"the text has more than {OUTPUT:,} characters")
        return "".join(pieces)


def _reason(error: Exception) -> str:
    """An error's message in one line, at most 300 characters; its type if it has none."""
    text = " ".join(str(error)[: 4 * _MAX_REASON].split()) or type(error).__name__
    return text if len(text) <= _MAX_REASON else text[: _MAX_REASON - 3] + "..."


def _spelling(metadata: Metadata, name: str, tokens: Sequence[str]) -> str:
    token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return tokens[token_id] if isinstance(token_id, int) and 0 <= token_id < len(tokens) else ""


def _in_parts(message: Message) -> Message:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _whole(text: str) -> Sequence[str | Sequence[int]]:
    return [text]


def encode_chat(tokenizer: Tokenizer, text: str, without: str = "", pieces: Pieces = _whole) -> list[int]:
    """Tokenize a rendered chat: parse control tokens, and add BOS unless the template did. `without` is left out; `pieces` may
    put tokens in the place of parts of the text."""
    tokens: list[int] = []
    for piece in pieces(text):
        tokens += tokenizer.encode(piece, add_special=False, without=without) if isinstance(piece, str) else piece
    adds_bos = tokenizer.vocabulary.add_bos and tokens[:1] != [tokenizer.bos_id]
    return [tokenizer.bos_id, *tokens] if adds_bos and tokenizer.bos_id is not None else tokens


def encode_untrusted(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    pieces: Pieces = _whole,
    /,
    **variables: Any,
) -> list[int]:
    """The tokens of a chat in which only the template's control tokens are tokens: those that a message or a variable spells are
    text.

    They are broken by a mark while the template renders them. `pieces` as in `encode_chat`. Raises ModelError as
    ChatTemplate.render."""
    texts = [text for text in tokenizer.control_texts if len(text) > 1]
    values = [*texts_in(messages), *texts_in(variables)]
    if not any(text in value for text in texts for value in values):
        return encode_chat(tokenizer, template.render(messages, **variables), pieces=pieces)
    mark = _unused((*values, template.source))
    control = re.compile("|".join(map(re.escape, texts)))

    def broken(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {broken(name): broken(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [broken(each) for each in value]
        return control.sub(lambda found: mark.join(found[0]) + mark, value) if isinstance(value, str) else value

    rendered = template.render(broken(messages), **{name: broken(value) for name, value in variables.items()})
    return encode_chat(tokenizer, rendered, without=mark, pieces=pieces)


def _unused(texts: Sequence[str]) -> str:
    """A private character that is in none of the texts. Raises ModelError if they have all of them."""
    used = set().union(*texts)
    for code in _MARKS:
        if chr(code) not in used:
            return chr(code)
    raise ModelError(f"the messages have each of the {len(_MARKS):,} private characters of Unicode; wanted one less")


def texts_in(value: Any) -> Iterator[str]:
    """The texts in nested lists and dicts, their keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield name
            yield from texts_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_in(each)
