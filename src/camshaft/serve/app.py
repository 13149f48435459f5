"""The HTTP application: routes, checks before them, and errors as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from camshaft.serve import ollama
from camshaft.serve.anthropic.messages import count_tokens, messages
from camshaft.serve.anthropic.shape import error_json
from camshaft.serve.errors import HttpError, http_error
from camshaft.serve.guard import Guard
from camshaft.serve.metrics import MEDIA_TYPE, metrics_text
from camshaft.serve.openai.chat import chat_completions
from camshaft.serve.openai.completions import completions
from camshaft.serve.openai.embeddings import embed, embeddings
from camshaft.serve.openai.responses import responses
from camshaft.serve.rerank import rerank
from camshaft.serve.respond import CLIENT_CLOSED, Json
from camshaft.serve.served import Served
from camshaft.serve.tokens import detokenize, tokenize
from camshaft.serve.web import FILES, page

Handler = Callable[[Request, Served], Awaitable[Response]]


async def health(request: Request, served: Served) -> Response:
    """Whether requests are taken."""
    if not served.engine.is_alive:
        raise HttpError(503, "the engine has ended", code="unavailable")
    return Json({"status": "ok"})


async def metrics(request: Request, served: Served) -> Response:
    """Statistics for Prometheus."""
    return Response(metrics_text(served.engine), media_type=MEDIA_TYPE)


def _cards(served: Served) -> dict[str, dict[str, Any]]:
    """What is said of each model, by its name."""
    lengths = {served.name: served.lm.context}
    for other in (served.embedder, served.ranker):
        if other is not None:
            lengths[other.name] = other.model.context
    common = {"object": "model", "created": served.created, "owned_by": "camshaft"}
    return {name: {"id": name, **common, "max_model_len": length} for name, length in lengths.items()}


async def models(request: Request, served: Served) -> Response:
    """The models, as a list."""
    return Json({"object": "list", "data": [*_cards(served).values()]})


async def model(request: Request, served: Served) -> Response:
    """The model of that name."""
    name, cards = request.path_params["name"], _cards(served)
    if name not in cards:
        served.check_model(name)
    return Json(cards[name])


ROUTES: dict[tuple[str, str], Handler] = {
    **{("GET", path): page for path in FILES},
    ("GET", "/health"): health,
    ("GET", "/metrics"): metrics,
    ("GET", "/v1/models"): models,
    ("GET", "/v1/models/{name:path}"): model,
    ("POST", "/v1/chat/completions"): chat_completions,
    ("POST", "/v1/completions"): completions,
    ("POST", "/v1/responses"): responses,
    ("POST", "/v1/embeddings"): embeddings,
    **{("POST", path): rerank for path in ("/v1/rerank", "/rerank")},
    ("POST", "/v1/messages"): messages,
    ("POST", "/v1/messages/count_tokens"): count_tokens,
    ("POST", "/api/chat"): ollama.chat,
    ("POST", "/api/embed"): embed,
    ("POST", "/api/generate"): ollama.generate,
    ("POST", "/api/show"): ollama.show,
    ("GET", "/api/tags"): ollama.tags,
    ("GET", "/api/version"): ollama.version,
    ("POST", "/tokenize"): tokenize,
    ("POST", "/detokenize"): detokenize,
}


class _Checks:
    """Refuses requests before they are routed."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._guard.check(scope["path"], Headers(scope=scope))
            except HttpError as error:
                await _json(scope["path"], error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def make_app(served: Served, guard: Guard) -> ASGIApp:
    """The application. It starts the engine when it starts, and closes it at its end."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        served.engine.start()
        try:
            yield
        finally:
            served.engine.close()

    handlers: Any = {
        HttpError: _on_error,
        HTTPException: _on_http,
        ClientDisconnect: _on_disconnect,
        Exception: _on_bug,
    }
    routes = [Route(path, _bound(handler, served), methods=[method]) for (method, path), handler in ROUTES.items()]
    return _Checks(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers), guard)


def _bound(handler: Handler, served: Served) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await handler(request, served)

    return endpoint


def _json(path: str, error: HttpError) -> Response:
    body = error.body
    if path.startswith("/api/"):
        body = {"error": str(error)}  # Ollama's errors are texts
    elif path.startswith("/v1/messages"):
        body = error_json(error)
    return Json(body, status_code=error.status, headers=error.headers)


async def _on_error(request: Request, error: HttpError) -> Response:
    return _json(request.url.path, error)


async def _on_http(request: Request, error: HTTPException) -> Response:
    path = request.url.path[:100]
    what = {
        404: (f"there is no {path}", "not_found"),
        405: (f"{path} does not take {request.method}", "method_not_allowed"),
    }
    message, code = what.get(error.status_code, (error.detail, None))
    return _json(request.url.path, HttpError(error.status_code, message, code=code))


async def _on_disconnect(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=CLIENT_CLOSED)


async def _on_bug(request: Request, error: Exception) -> Response:  # the server logs the traceback
    return _json(request.url.path, http_error(error))
