"""`/tokenize` and `/detokenize`: text to token ids and back."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from camshaft.errors import CamshaftError
from camshaft.serve.models.served import Served
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.fields import BOOL, TEXT, Field, Fields, is_integer, read_fields, required, takes
from camshaft.serve.requests.respond import Json, beside, body_of


def _are_integers(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_integer, value))


_TOKENIZE: Fields = {"model": TEXT, "content": TEXT, "add_special": BOOL, "parse_special": BOOL, "with_pieces": BOOL}
_DETOKENIZE: Fields = {"model": TEXT, "tokens": Field(_are_integers, "a list of token ids")}


@takes(_TOKENIZE, "content")
async def tokenize(request: Request, served: Served) -> Response:
    """The token ids of `content`, with their texts if `with_pieces`."""
    given = read_fields(body_of(request), _TOKENIZE)
    served.check_model(given.get("model"))
    text, tokenizer = required(given, "content"), served.lm.tokenizer
    special = {"add_special": given.get("add_special", False), "parse_special": given.get("parse_special", True)}
    ids = await beside(request, lambda: tokenizer.encode(text, **special))
    tokens: list[Any] = ids
    if given.get("with_pieces"):
        tokens = [{"id": i, "piece": tokenizer.spelling(i)} for i in ids]
    return Json({"tokens": tokens, "count": len(ids)})


@takes(_DETOKENIZE, "tokens")
async def detokenize(request: Request, served: Served) -> Response:
    """The text of `tokens`."""
    given = read_fields(body_of(request), _DETOKENIZE)
    served.check_model(given.get("model"))
    try:
        return Json({"content": await beside(request, served.lm.tokenizer.decode, required(given, "tokens"))})
    except CamshaftError as error:
        raise HttpError(400, str(error), code="invalid_value", param="tokens") from None
