"""Grammar: the form that a generated text must have: JSON of a schema, a regular expression, or a Lark or GBNF grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from camshaft.errors import SettingError, shortened

KINDS = ("json_schema", "regex", "lark", "gbnf")
MOST_CHARACTERS = 1 << 18
MOST_OF_GBNF = 1 << 15  # whose translation takes up to seconds
_MOST_SHOWN = 60


@dataclass(frozen=True)
class Grammar:
    """The form of a generated text, for the option `grammar` of GenerateOptions. Its constructors are its class methods.

    kind: 'json_schema', 'regex', 'lark' or 'gbnf'.
    text: the schema as JSON, the expression, or the grammar.

    Raises SettingError for another kind or a text that is too long; what is wrong in the text is found when it is used.
    """

    kind: str
    text: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingError(f"Grammar kind={self.kind!r:.60}: wanted one of {', '.join(KINDS)}")
        if not isinstance(self.text, str):
            raise SettingError(f"Grammar.{self.kind} got {type(self.text).__name__}; wanted a text")
        most = MOST_OF_GBNF if self.kind == "gbnf" else MOST_CHARACTERS
        if len(self.text) > most:
            raise SettingError(f"Grammar.{self.kind} got {len(self.text):,} characters; wanted at most {most:,}")

    def __repr__(self) -> str:
        return f"Grammar({self.kind!r}, {shortened(self.text, _MOST_SHOWN)!r})"

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str | Any) -> Grammar:
        """JSON that a JSON schema (draft 2020-12) accepts: a dict, its JSON text, or a class with `model_json_schema`."""
        if hasattr(schema, "model_json_schema"):  # a pydantic model
            schema = schema.model_json_schema()
        try:
            schema = json.loads(schema) if isinstance(schema, str) else schema
            text = json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise SettingError(f"the JSON schema is not JSON: {error}") from None
        if not isinstance(schema, Mapping | bool):
            raise SettingError(f"the JSON schema is {text:.40}; wanted an object")
        if schema is False:
            raise SettingError("the JSON schema is false, which no value has; wanted an object or true")
        return cls("json_schema", "{}" if schema is True else text)

    @classmethod
    def json(cls) -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, expression: str) -> Grammar:
        """A text that a regular expression matches as a whole, in the syntax of Rust's crate regex: no look-around."""
        return cls("regex", expression)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of several texts."""
        several = [] if isinstance(texts, str) or not isinstance(texts, Sequence) else list(texts)
        if not several or not all(isinstance(text, str) for text in several):
            raise SettingError(f"Grammar.choice got {texts!r:.60}; wanted a list of texts")
        return cls("regex", "|".join(map(re.escape, several)))

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """A context-free grammar in Lark's syntax, as llguidance reads it. It begins with the rule `start`."""
        return cls("lark", grammar)

    @classmethod
    def gbnf(cls, grammar: str) -> Grammar:
        """A grammar in llama.cpp's syntax. It begins with the rule `root`."""
        return cls("gbnf", grammar)
