"""The form of an answer in a request: response_format and the fields of llama.cpp's and vLLM's servers, as a Grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from camshaft.errors import MissingExtraError, SettingError
from camshaft.generate.grammar.grammar import Grammar
from camshaft.serve.models.served import Served
from camshaft.serve.requests import fields
from camshaft.serve.requests.errors import HttpError

T = TypeVar("T")
SCHEMA = fields.Field(lambda v: isinstance(v, dict | bool), "a JSON schema")
FIELDS: fields.Fields = {
    "response_format": fields.OBJECT,
    "json_schema": SCHEMA,
    "grammar": fields.TEXT,
    "structured_outputs": fields.OBJECT,
}
_TYPES = ("text", "json_object", "json_schema")
_OF_SCHEMA: fields.Fields = {"name": fields.TEXT, "description": fields.TEXT, "schema": SCHEMA, "strict": fields.BOOL}
_RESPONSE_FORMAT: fields.Fields = {"type": fields.one_of(*_TYPES), "json_schema": fields.OBJECT}
_TEXT_FORMAT: fields.Fields = {"type": fields.one_of(*_TYPES), **_OF_SCHEMA}
_OUTPUTS: fields.Fields = {
    "json": fields.ANYTHING,
    "json_object": fields.BOOL,
    "regex": fields.TEXT,
    "choice": fields.LIST,
    "grammar": fields.TEXT,
}


def response_format(value: Any) -> Grammar | None:
    """The form of chat's and completions' `response_format`."""
    of = "response_format"
    given = fields.read_fields(value, _RESPONSE_FORMAT, of)
    kind = fields.required(given, "type", of)
    if kind != "json_schema":
        return _without_schema(given, "json_schema", of)
    given = fields.read_fields(fields.required(given, "json_schema", of), _OF_SCHEMA, f"{of}.json_schema")
    return Grammar.json_schema(fields.required(given, "schema", f"{of}.json_schema"))


def text_format(value: Any) -> Grammar | None:
    """The form of responses' `text.format`."""
    of = "text.format"
    given = fields.read_fields(value, _TEXT_FORMAT, of)
    kind = fields.required(given, "type", of)
    return (
        _without_schema(given, "schema", of)
        if kind != "json_schema"
        else Grammar.json_schema(fields.required(given, "schema", of))
    )


def ollama_format(value: Any) -> Grammar | None:
    """The form of Ollama's `format`."""
    return {"": None, "json": Grammar.json()}[value] if isinstance(value, str) else Grammar.json_schema(value)


def _without_schema(given: Mapping[str, Any], schema: str, of: str) -> Grammar | None:
    if schema in given:
        raise HttpError(400, f"'{of}.{schema}' with type {given['type']}", code="invalid_value", param=f"{of}.{schema}")
    return Grammar.json() if given["type"] == "json_object" else None


def _structured_outputs(value: Any) -> Grammar | None:
    """vLLM's field: one of several forms. A grammar is GBNF if it has a ::=, else Lark."""
    given = fields.read_fields(value, _OUTPUTS, "structured_outputs")
    if len(given) != 1:
        message = f"'structured_outputs' has {len(given)} forms; wanted one"
        raise HttpError(400, message, code="invalid_value", param="structured_outputs")
    ((name, value),) = given.items()
    makers: dict[str, Callable[[], Grammar | None]] = {
        "json": lambda: Grammar.json_schema(value),
        "json_object": lambda: Grammar.json() if value else None,
        "regex": lambda: Grammar.regex(value),
        "choice": lambda: Grammar.choice(value),
        "grammar": lambda: Grammar.gbnf(value) if "::=" in value else Grammar.lark(value),
    }
    return makers[name]()


_READERS: dict[str, Callable[[Any], Grammar | None]] = {
    "response_format": response_format,
    "json_schema": Grammar.json_schema,
    "grammar": Grammar.gbnf,
    "structured_outputs": _structured_outputs,
}


def read_grammar(given: Mapping[str, Any], served: Served) -> Grammar | None:
    """The form that a request's FIELDS ask for. Raises HttpError for several of them, or one that cannot be used."""
    names = [name for name in _READERS if name in given]
    forms = [(name, form) for name in names if (form := reading(name, partial(_READERS[name], given[name])))]
    if len(forms) > 1:
        both = " and ".join(f"'{name}'" for name, _ in forms)
        raise HttpError(400, f"{both} are given; wanted one of them", code="invalid_value", param=forms[1][0])
    return usable(forms[0][0], lambda: forms[0][1], served) if forms else None


def usable(param: str, read: Callable[[], Grammar | None], served: Served) -> Grammar | None:
    """Returns read()'s grammar compiled for the model, which may take seconds. HttpError if it cannot be compiled."""
    grammar = reading(param, read)
    return None if grammar is None else reading(param, lambda: served.lm.grammars.compiled(grammar))


def reading(param: str, read: Callable[[], T]) -> T:
    """Returns `read()`. Errors of grammars become HttpError for `param`."""
    try:
        return read()
    except (MissingExtraError, SettingError) as error:
        raise HttpError(400, f"'{param}': {error}", code="invalid_grammar", param=param) from None
