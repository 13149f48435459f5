"""Errors of the HTTP interface, as OpenAI's JSON."""

from __future__ import annotations

from typing import Any

from camshaft.errors import CamshaftError, ContextError, ModelError, PromptError, SettingError
from camshaft.generate.engine.request import TimeLimitError
from camshaft.generate.engine.request_queue import QueueFullError
from camshaft.hints import hints_for

# Status -> the `type` of the error.
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "request_timeout",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "service_unavailable",
}
RETRY_AFTER_S = 1
TWO_LENGTHS = "two_lengths"  # the code of a body with two lengths
_OF_ERROR: dict[type[CamshaftError], tuple[int, str]] = {
    QueueFullError: (429, "queue_full"),
    TimeLimitError: (503, "timeout"),
    PromptError: (400, "invalid_value"),
    ContextError: (400, "context_length_exceeded"),
    SettingError: (400, "invalid_value"),
    ModelError: (503, "unavailable"),
}


class HttpError(Exception):
    """An answer other than 200. `param` is the field that is wrong, `code` a word for programs. A client cannot give the
    library's keywords, such as another context, so that hints of them are left out."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(hints_for(message))
        self.status, self.code, self.param = status, code, param

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's JSON."""
        kind = TYPES.get(self.status, "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the status."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        if self.code == TWO_LENGTHS:  # where the next request begins is not sure
            return {"Connection": "close"}
        return {"Retry-After": str(RETRY_AFTER_S)} if self.status in (429, 503) else {}


def http_error(error: Exception) -> HttpError:
    """The answer to an error of the engine. What is not an error of the request shows no details."""
    if isinstance(error, HttpError):
        return error
    for kind, (status, code) in _OF_ERROR.items():
        if isinstance(error, kind):
            return HttpError(status, str(error), code=code)
    if isinstance(error, CamshaftError):
        return HttpError(500, str(error), code="failed")
    return HttpError(500, "the server failed; its log says how", code="failed")
