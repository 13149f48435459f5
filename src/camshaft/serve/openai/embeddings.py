"""`/v1/embeddings`, OpenAI's interface for vectors of texts, and Ollama's `/api/embed`."""

from __future__ import annotations

import base64
import time
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from camshaft.errors import CamshaftError
from camshaft.serve.models.served import Embedder
from camshaft.serve.ollama import KEEP_ALIVE, keep
from camshaft.serve.requests import fields
from camshaft.serve.requests.errors import HttpError, http_error
from camshaft.serve.requests.respond import Json, beside, body_of

MOST_TEXTS = 2048  # OpenAI's


def _is_texts(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(v, str) for v in value))


_OPENAI: fields.Fields = {
    "model": fields.TEXT,
    "input": fields.PROMPTS,
    "encoding_format": fields.one_of("float", "base64"),
    "dimensions": fields.integer(1, 1 << 20),
    "user": fields.TEXT,
}
_OLLAMA: fields.Fields = {
    "model": fields.TEXT,
    "input": fields.Field(_is_texts, "a text or a list of texts"),
    "truncate": fields.BOOL,
    "dimensions": fields.integer(1, 1 << 20),
    "keep_alive": KEEP_ALIVE,
    "options": fields.OBJECT,
}


@fields.takes(_OPENAI, "input")
async def embeddings(request: Request, embedder: Embedder) -> Response:
    """The vectors of texts or token ids, of length 1."""
    return Json(await beside(request, embedded, body_of(request), embedder))


def embedded(body: Any, embedder: Embedder) -> dict[str, Any]:
    """The answer to the body of a request for vectors. Raises HttpError."""
    given = fields.read_fields(body, _OPENAI)
    _check_dimensions(embedder, given)
    several = fields.listed_prompts(fields.required(given, "input"))
    vectors, n_tokens = _vectors(embedder, several, False)
    as_text = given.get("encoding_format") == "base64"
    data = [
        {
            "object": "embedding",
            "index": i,
            "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_text else vector.tolist(),
        }
        for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": embedder.name, "usage": usage}


@fields.takes(_OLLAMA, "model", "input")
async def embed(request: Request, embedder: Embedder) -> Response:
    """The vectors of texts, of length 1; texts longer than the context are cut unless `truncate` is false."""
    given = fields.read_fields(body_of(request), _OLLAMA)
    fields.required(given, "model")
    keep(request, given.get("keep_alive"))
    _check_dimensions(embedder, given)
    fields.read_fields(given.get("options", {}), {}, "options")
    listed, begun = fields.required(given, "input"), time.perf_counter()
    several = [listed] if isinstance(listed, str) else listed
    vectors, n_tokens = await beside(request, _vectors, embedder, several, given.get("truncate", True))
    return Json(
        {
            "model": embedder.name,
            "embeddings": [vector.tolist() for vector in vectors],
            "total_duration": round((time.perf_counter() - begun) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": n_tokens,
        }
    )


def _check_dimensions(embedder: Embedder, given: dict[str, Any]) -> None:
    """Raise HttpError for vectors of another length than the model's."""
    dim = embedder.model.dim
    if given.get("dimensions", dim) != dim:
        message = f"'dimensions' other than {dim}, the model's, is not supported"
        raise HttpError(400, message, code="unsupported_parameter", param="dimensions")


def _vectors(embedder: Embedder, several: list[Any], truncate: bool) -> tuple[np.ndarray[Any, Any], int]:
    """The vectors, and the number of tokens."""
    if len(several) > MOST_TEXTS:
        message = f"{len(several)} texts in one request; wanted at most {MOST_TEXTS}"
        raise HttpError(400, message, code="invalid_value", param="input")
    model = embedder.model
    try:
        ids = [model.tokenize(each, truncate=truncate) if isinstance(each, str) else each for each in several]
        return model.embed_ids(ids), sum(map(len, ids))
    except CamshaftError as error:
        status = http_error(error)
        raise HttpError(status.status, str(error), code=status.code, param="input") from None
