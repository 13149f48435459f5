"""Fields of requests: tables of what is accepted. A field that is not in its table is refused by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from camshaft.process import no_collection
from camshaft.serve.requests.errors import HttpError


@dataclass(frozen=True)
class Field:
    """The accepted values of a field; `schema` is the part that JSON schema can express."""

    fits: Callable[[Any], bool]
    wanted: str
    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)


Fields = Mapping[str, Field]
JSON = "application/json"
Handler = TypeVar("Handler", bound=Callable[..., Any])


@dataclass(frozen=True)
class Body:
    """The fields of a handler's requests, of which `needed` must be given. An answer may be a stream of `stream`, a type.

    `kind` is the type of the body."""

    fields: Fields
    needed: Sequence[str]
    stream: str | None
    kind: str = JSON


BODIES: dict[Callable[..., Any], Body] = {}


def takes(fields: Fields, *needed: str, stream: str | None = None, form: str = JSON) -> Callable[[Handler], Handler]:
    """Mark a handler with the fields that it reads, for the OpenAPI file."""

    def marked(handler: Handler) -> Handler:
        BODIES[handler] = Body(fields, needed, stream, form)
        return handler

    return marked


def schema_of(fields: Fields, needed: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON schema of an object with these fields; null is the same as leaving one out."""
    properties = {
        name: {"anyOf": [field.schema, {"type": "null"}], "description": field.wanted} if field.schema else {}
        for name, field in fields.items()
    }
    required = {"required": list(needed)} if needed else {}
    return {"type": "object", "properties": properties, "additionalProperties": False, **required}


def objects(fields: Fields, *needed: str) -> Field:
    """A list of objects, whose reader checks them."""
    schema = {"type": "array", "items": schema_of(fields, needed)}
    return Field(lambda v: isinstance(v, list), "a list", schema)


def is_integer(value: Any) -> bool:
    """Whether a JSON value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def integer(low: int, high: int) -> Field:
    """A whole number."""
    return Field(
        lambda v: is_integer(v) and low <= v <= high,
        f"a whole number from {low} to {high}",
        {"type": "integer", "minimum": low, "maximum": high},
    )


def one_of(*values: Any) -> Field:
    """One of a few values, others of which this server does not support."""
    words = " or ".join(json.dumps(value) for value in values)
    return Field(
        lambda v: any(type(v) is type(each) and v == each for each in values),
        f"{words} (others are not supported)",
        {"enum": list(values)},
    )


ANYTHING = Field(lambda v: True, "anything")
TEXT = Field(lambda v: isinstance(v, str), "a text", {"type": "string"})
BOOL = Field(lambda v: isinstance(v, bool), "true or false", {"type": "boolean"})
OBJECT = Field(lambda v: isinstance(v, dict), "an object", {"type": "object"})
LIST = Field(lambda v: isinstance(v, list), "a list", {"type": "array"})


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_integer, value))


def _are_prompts(value: Any) -> bool:
    several = isinstance(value, list) and bool(value) and all(isinstance(v, str) or _are_ids(v) for v in value)
    return isinstance(value, str) or _are_ids(value) or several


_PROMPT = [{"type": "string"}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}]
PROMPTS = Field(
    _are_prompts,
    "a text, a list of token ids, or a list of such prompts",
    {"anyOf": [*_PROMPT, {"type": "array", "items": {"anyOf": _PROMPT}, "minItems": 1}]},
)


def listed_prompts(value: Any) -> list[Any]:
    """The prompts of a field that is PROMPTS, each a text or a list of token ids."""
    return [value] if isinstance(value, str) or is_integer(value[0]) else value


def read_fields(body: Any, fields: Fields, of: str = "") -> dict[str, Any]:
    """The fields of a JSON object that are not null. Raises HttpError for one that is not in the table or does not fit."""
    if not isinstance(body, dict):
        raise HttpError(
            400, f"{of or 'the body'} is {shown(body)}; wanted an object", code="invalid_type", param=of or None
        )
    prefix = f"{of}." if of else ""
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        field, param = fields.get(name), f"{prefix}{name}"[:100]
        if field is None:
            raise HttpError(400, f"the field '{param}' is not supported", code="unsupported_parameter", param=param)
        if not field.fits(value):
            message = f"'{param}' is {shown(value)}; wanted {field.wanted}"
            raise HttpError(400, message, code="invalid_value", param=param)
    return given


def required(given: Mapping[str, Any], name: str, of: str = "") -> Any:
    """The field's value. Raises HttpError if it is missing. `of` is the field that has it."""
    if name not in given:
        param = f"{of}.{name}" if of else name
        raise HttpError(400, f"the field '{param}' is missing", code="missing_parameter", param=param)
    return given[name]


def shown(value: Any, limit: int = 60) -> str:
    """A JSON value on one line, shortened; dates of TOML as texts."""
    text = json.dumps(value, default=str)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def parse_json(data: bytes, of: str = "the body") -> Any:
    """The value of a JSON text. Raises HttpError if it is not JSON; NaN and Infinity are not."""
    try:
        with no_collection():  # 8 MB of empty lists: five times as long with collections, while all others wait
            return json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"{of} is not valid JSON: {error}", code="invalid_json") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
