"""The HTTP application: routes, checks before them, and errors as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from camshaft.errors import CamshaftError
from camshaft.serve import llama_cpp, ollama, slots
from camshaft.serve.anthropic.messages import count_tokens, messages
from camshaft.serve.anthropic.shape import error_json
from camshaft.serve.guard import Guard
from camshaft.serve.metrics import MEDIA_TYPE, metrics_text
from camshaft.serve.models import cards
from camshaft.serve.models.entry import CHAT, EMBEDDING, RERANK, SPEECH
from camshaft.serve.models.models import Models
from camshaft.serve.openai.audio import FORMS, read_form
from camshaft.serve.openai.chat import chat_completions
from camshaft.serve.openai.completions import completions
from camshaft.serve.openai.embeddings import embed, embeddings
from camshaft.serve.openai.responses import responses
from camshaft.serve.request_log import Logged, RequestLog
from camshaft.serve.requests.errors import HttpError, http_error
from camshaft.serve.requests.fields import TEXT, parse_json, read_fields
from camshaft.serve.requests.openapi import document
from camshaft.serve.requests.respond import CLIENT_CLOSED, LONG_NBYTES, BodyRoom, CountedBody, Json
from camshaft.serve.rerank import rerank
from camshaft.serve.tokens import detokenize, tokenize, tokenizer_info
from camshaft.serve.web import FILES, page

Handler = Callable[[Request, Models], Awaitable[Response]]
ModelHandler = Callable[[Request, Any], Awaitable[Response]]  # with the model that the request names
IDLE_CHECK_S = 1.0


async def health(request: Request, models: Models) -> Response:
    """Answers whether the server accepts requests."""
    dead = next((entry.card.name for entry, loaded in models.in_memory() if not loaded.is_alive), None)
    if dead is not None:
        raise HttpError(503, f"the engine of {dead} has ended", code="unavailable")
    return Json({"status": "ok"})


async def metrics(request: Request, models: Models) -> Response:
    """Answers with statistics for Prometheus."""
    return Response(metrics_text(models), media_type=MEDIA_TYPE)


async def openapi(request: Request, models: Models) -> Response:
    """Answers with the OpenAPI file."""
    got = [(method, path, handler) for (method, path), handler in ROUTES.items()]
    of_models = [(method, path, handler) for (method, path), (handler, _) in MODEL_ROUTES.items()]
    return Json(document([*got, *of_models]))


ROUTES: dict[tuple[str, str], Handler] = {
    **{("GET", path): page for path in FILES},
    ("GET", "/health"): health,
    ("GET", "/metrics"): metrics,
    ("GET", "/openapi.json"): openapi,
    ("GET", "/v1/models"): cards.models,
    ("GET", "/v1/models/{name:path}"): cards.model,
    ("GET", "/api/tags"): cards.tags,
    ("GET", "/api/ps"): cards.running,
    ("GET", "/api/version"): ollama.version,
}
# With the kind of model that the field `model` names; of GET, the query's.
MODEL_ROUTES: dict[tuple[str, str], tuple[ModelHandler, str]] = {
    ("POST", "/v1/chat/completions"): (chat_completions, CHAT),
    ("POST", "/v1/chat/completions/input_tokens"): (llama_cpp.input_tokens, CHAT),
    ("POST", "/v1/completions"): (completions, CHAT),
    ("POST", "/v1/responses"): (responses, CHAT),
    ("POST", "/v1/embeddings"): (embeddings, EMBEDDING),
    **{("POST", path): (handler, SPEECH) for path, handler in FORMS.items()},
    **dict.fromkeys((("POST", "/v1/rerank"), ("POST", "/rerank")), (rerank, RERANK)),
    ("POST", "/v1/messages"): (messages, CHAT),
    ("POST", "/v1/messages/count_tokens"): (count_tokens, CHAT),
    ("POST", "/api/chat"): (ollama.chat, CHAT),
    ("POST", "/api/embed"): (embed, EMBEDDING),
    ("POST", "/api/generate"): (ollama.generate, CHAT),
    ("POST", "/api/show"): (ollama.show, CHAT),
    ("GET", "/props"): (llama_cpp.props, CHAT),
    ("GET", "/slots"): (slots.slots, CHAT),
    ("POST", "/slots/{slot}"): (slots.slot_action, CHAT),
    ("POST", "/apply-template"): (llama_cpp.apply_template, CHAT),
    ("POST", "/completion"): (llama_cpp.completion, CHAT),
    ("POST", "/infill"): (llama_cpp.infill, CHAT),
    ("POST", "/tokenize"): (tokenize, CHAT),
    ("POST", "/detokenize"): (detokenize, CHAT),
    ("GET", "/tokenizer_info"): (tokenizer_info, CHAT),
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


def make_app(models: Models, guard: Guard, log: RequestLog | None = None) -> ASGIApp:
    """Returns the application, which starts the engines at its start and closes all models at its end."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        models.start()
        idle = asyncio.create_task(_unload_idle(models))
        try:
            yield
        finally:
            idle.cancel()
            await asyncio.to_thread(models.close)

    room = BodyRoom()
    handlers: Any = {
        HttpError: _on_error,
        CamshaftError: _on_refusal,
        HTTPException: _on_http,
        ClientDisconnect: _on_disconnect,
        Exception: _on_bug,
    }
    routes = [Route(path, _bound(handler, models), methods=[method]) for (method, path), handler in ROUTES.items()]
    routes += [
        Route(path, _of_model(handler, kind, models, room), methods=[method])
        for (method, path), (handler, kind) in MODEL_ROUTES.items()
    ]
    app: ASGIApp = _Checks(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers), guard)
    app = _with_origins(app, guard.origins) if guard.origins else app
    return Logged(app, log) if log is not None else app


def _with_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The application with CORS headers for these origins, also on errors and for preflight requests, which browsers send
    without a key."""
    methods = sorted({method for method, _ in (*ROUTES, *MODEL_ROUTES)})
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=methods,
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=["Retry-After"],
    )


async def _unload_idle(models: Models) -> None:
    while True:
        await asyncio.sleep(IDLE_CHECK_S)
        await models.unload_idle()


def _bound(handler: Handler, models: Models) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await handler(request, models)

    return endpoint


class _Held(Response):
    """A response that releases the model, and the memory reserved for the body, when it was sent or its client has
    disconnected."""

    def __init__(self, response: Response, held: ExitStack) -> None:
        self._response, self._held = response, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await self._response(scope, receive, send)


def _of_model(
    handler: ModelHandler, kind: str, models: Models, room: BodyRoom
) -> Callable[[Request], Awaitable[Response]]:
    """Returns an endpoint whose handler gets the model that the request's body names; `body_of` returns the body."""

    async def endpoint(request: Request) -> Response:
        held = ExitStack()
        try:
            body: Any = {"model": request.query_params.get("model")}
            sent = CountedBody(room)
            held.callback(sent.release)
            request.state.is_long = False
            if request.url.path in FORMS:
                body = request.state.body = await read_form(request, sent)
            elif request.method == "POST":
                data = await sent.read(request, models.most_body_nbytes)
                if data or "slot" not in request.path_params:  # clients of llama.cpp's server erase without a body
                    body = parse_json(data)
                request.state.body = body
                request.state.is_long = len(data) > LONG_NBYTES
            lease = await models.lease(_model_named(body, request.url.path), kind)
            held.callback(lease.release)
            request.state.entry = lease.entry
            return _Held(await handler(request, lease.model), held)
        except BaseException:
            held.close()
            raise

    return endpoint


def _model_named(body: Any, path: str) -> str | None:
    """The model's name in a body. Raises HttpError for a body that cannot have one."""
    if not isinstance(body, dict):
        read_fields(body, {})
    name: str | None = read_fields({"model": body.get("model")}, {"model": TEXT}).get("model")
    if name is None and path == "/api/show":
        name = read_fields({"name": body.get("name")}, {"name": TEXT}).get("name")
    return name.removesuffix(":latest") if name is not None and path.startswith("/api/") else name


def _json(path: str, error: HttpError) -> Response:
    body = error.body
    if path.startswith("/api/"):
        body = {"error": str(error)}  # Ollama's errors are texts
    elif path.startswith("/v1/messages"):
        body = error_json(error)
    return Json(body, status_code=error.status, headers=error.headers)


async def _on_error(request: Request, error: HttpError) -> Response:
    request.state.code = error.code
    return _json(request.url.path, error)


async def _on_refusal(request: Request, error: CamshaftError) -> Response:
    return await _on_error(request, http_error(error))


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
