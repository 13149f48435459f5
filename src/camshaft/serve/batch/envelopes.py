"""Envelopes: what a line of a batch has around the body of its request, read in the order of the lines."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from camshaft.serve.batch.files import Line
from camshaft.serve.openai.chat import read_chat
from camshaft.serve.openai.completions import read_completion
from camshaft.serve.openai.responses import read_response
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.fields import OBJECT, TEXT, Fields, one_of, parse_json, read_fields, required, shown
from camshaft.serve.requests.respond import Reader

ENVELOPE_NBYTES = 64 << 10  # of a line, beside the body
READERS: dict[str, Reader] = {
    "/v1/chat/completions": read_chat,
    "/v1/completions": read_completion,
    "/v1/responses": read_response,
}
EMBEDDINGS = "/v1/embeddings"
_LINE: Fields = {"custom_id": TEXT, "method": one_of("POST"), "url": one_of(*READERS, EMBEDDINGS), "body": OBJECT}


class Envelopes:
    """Reads the lines of a file, all of them and in order, since it finds a custom_id that an earlier line has."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()  # digests of the custom_ids

    def read(self, line: Line) -> tuple[str | None, dict[str, Any] | HttpError]:
        """The custom_id of a line, if it has one that can be read, and its fields or what is wrong with them."""
        custom_id, given = _read(line)
        if custom_id is not None and not self._is_new(custom_id):
            message = f"'custom_id' is {shown(custom_id)}, as in an earlier line"
            given = HttpError(400, message, code="duplicate_custom_id", param="custom_id")
        return custom_id, given

    def _is_new(self, custom_id: str) -> bool:
        digest = blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        before = len(self._seen)
        self._seen.add(digest)
        return len(self._seen) > before


def line_error(error: HttpError, line: Line) -> dict[str, Any]:
    """The field `error` of the result of a line that is not a request."""
    return {"code": error.code, "message": str(error), "param": error.param, "line": line.number}


def _read(line: Line) -> tuple[str | None, dict[str, Any] | HttpError]:
    custom_id: Any = None
    try:
        if line.text is None:
            raise HttpError(413, "the line is larger than a request may be", code="request_too_large")
        value = parse_json(line.text, "the line")
        if not isinstance(value, dict):
            raise HttpError(400, f"the line is {shown(value)}; wanted an object", code="invalid_type")
        custom_id = value.get("custom_id") if isinstance(value.get("custom_id"), str) else None
        given = read_fields(value, _LINE)
        for name in _LINE:
            required(given, name)
    except HttpError as error:
        return custom_id, error
    return custom_id, given
