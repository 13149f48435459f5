"""`/openapi.json`: the addresses and the fields of their requests as an OpenAPI file, from the tables that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from camshaft.serve.requests.errors import TYPES
from camshaft.serve.requests.fields import BODIES, Body, schema_of
from camshaft.version import __version__

_ERROR = {
    "type": "object",
    "description": "What was wrong. Below /api the error is a text; /v1/messages has the type beside it.",
    "properties": {"error": {"anyOf": [{"type": "object"}, {"type": "string"}]}},
    "required": ["error"],
}
_ERROR_OF = {"$ref": "#/components/schemas/Error"}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_OF_BODIES = (400, 404, 408, 413, 422, 429, 500, 503)
_OF_OTHERS = (400, 404, 503)
_ALWAYS = (401, 403)
Route = tuple[str, str, Callable[..., Any]]


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI file of routes: method, path and handler of each."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, handler in routes:
        plain = path.replace(":path}", "}")
        paths.setdefault(plain, {})[method.lower()] = _operation(plain, handler)
    return {
        "openapi": "3.1.0",
        "info": {"title": "camshaft serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}, "securitySchemes": _KEYS},
        "security": [{}, *({name: []} for name in _KEYS)],
    }


def _operation(path: str, handler: Callable[..., Any]) -> dict[str, Any]:
    body = BODIES.get(handler)
    statuses = sorted({*_ALWAYS, *(_OF_BODIES if body else _OF_OTHERS)})
    errors = {
        str(status): {"description": TYPES[status], "content": {"application/json": {"schema": _ERROR_OF}}}
        for status in statuses
    }
    summary = {"summary": (handler.__doc__ or "").strip().partition("\n")[0]}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    text = {"type": "string", "minLength": 1}
    parameters = [{"name": name, "in": "path", "required": True, "schema": text} for name in names]
    asked = {"requestBody": _request(body)} if body else {}
    answer = {"200": {"description": "the answer", **_content(body)}}
    return {**summary, **({"parameters": parameters} if names else {}), **asked, "responses": {**answer, **errors}}


def _request(body: Body) -> dict[str, Any]:
    return {"required": True, "content": {body.kind: {"schema": schema_of(body.fields, body.needed)}}}


def _content(body: Body | None) -> dict[str, Any]:
    if body is None:
        return {}
    return {
        "content": {"application/json": {"schema": {"type": "object"}}, **({body.stream: {}} if body.stream else {})}
    }
