"""`/v1/rerank`: scores of documents for a query, in the format of Jina, Cohere, llama.cpp's server and vLLM."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from camshaft.errors import CamshaftError
from camshaft.serve.models.served import Ranker
from camshaft.serve.requests.errors import HttpError, http_error
from camshaft.serve.requests.fields import BOOL, LIST, TEXT, Field, Fields, integer, read_fields, required, takes
from camshaft.serve.requests.respond import Json, beside, body_of

MOST_DOCUMENTS = 2048  # as many as texts for vectors


def _are_documents(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(_text(v), str) for v in value)


def _text(document: Any) -> Any:
    """The text of a document, which Cohere's clients may wrap in an object."""
    return document.get("text") if isinstance(document, dict) and len(document) == 1 else document


_FIELDS: Fields = {
    "model": TEXT,
    "query": TEXT,
    "documents": Field(_are_documents, 'a list of texts, or of objects {"text": ...}', LIST.schema),
    "top_n": integer(1, 1 << 20),
    "return_documents": BOOL,
    "truncate": BOOL,
}


@takes(_FIELDS, "query", "documents")
async def rerank(request: Request, ranker: Ranker) -> Response:
    """Answers with the documents' scores for the query, from 0 to 1, best first."""
    return Json(await beside(request, ranked, body_of(request), ranker))


def ranked(body: Any, ranker: Ranker) -> dict[str, Any]:
    """The answer to the body of a request for scores. Raises HttpError."""
    given = read_fields(body, _FIELDS)
    query, documents = required(given, "query"), [_text(document) for document in required(given, "documents")]
    scores, n_tokens = _scores(ranker, query, documents, truncate=given.get("truncate", False))
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: given.get("top_n")]
    with_text = given.get("return_documents", False)
    results = [
        {"index": i, "relevance_score": scores[i]} | ({"document": {"text": documents[i]}} if with_text else {})
        for i in order
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {
        "id": f"rerank-{uuid4().hex}",
        "object": "list",
        "model": ranker.name,
        "results": results,
        "usage": usage,
    }


def _scores(ranker: Ranker, query: str, documents: list[str], *, truncate: bool) -> tuple[list[float], int]:
    """The scores, and the number of tokens."""
    if len(documents) > MOST_DOCUMENTS:
        message = f"{len(documents)} documents in one request; wanted at most {MOST_DOCUMENTS}"
        raise HttpError(400, message, code="invalid_value", param="documents")
    try:
        pairs = [ranker.model.pair(query, document, truncate=truncate) for document in documents]
        return ranker.model.rank_pairs(pairs).tolist(), sum(len(pair.ids) for pair in pairs)
    except CamshaftError as error:
        status = http_error(error)
        raise HttpError(status.status, str(error), code=status.code, param="documents") from None
