"""`/tokenize` and `/detokenize`, in llama.cpp's shape and in vLLM's: text to token ids and back; `/tokenizer_info`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from camshaft.errors import CamshaftError, ModelError
from camshaft.serve.models.served import Served
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.fields import BOOL, TEXT, Field, Fields, is_integer, read_fields, required, takes
from camshaft.serve.requests.respond import Json, beside, body_of


def _are_integers(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_integer, value))


_LLAMA_CPP: Fields = {"model": TEXT, "content": TEXT, "add_special": BOOL, "parse_special": BOOL, "with_pieces": BOOL}
_VLLM: Fields = {"model": TEXT, "prompt": TEXT, "add_special_tokens": BOOL}
_DETOKENIZE: Fields = {"model": TEXT, "tokens": Field(_are_integers, "a list of token ids")}


@takes({**_LLAMA_CPP, **_VLLM})
async def tokenize(request: Request, served: Served) -> Response:
    """The token ids of `content`, with their texts if `with_pieces`, or those of `prompt`."""
    body = body_of(request)
    is_vllm = isinstance(body, dict) and body.get("prompt") is not None
    given = read_fields(body, _VLLM if is_vllm else _LLAMA_CPP)
    served.check_model(given.get("model"))
    text, tokenizer = required(given, "prompt" if is_vllm else "content"), served.lm.tokenizer
    add_special = given.get("add_special_tokens", True) if is_vllm else given.get("add_special", False)
    special = {"add_special": add_special, "parse_special": given.get("parse_special", True)}
    ids = await beside(request, lambda: tokenizer.encode(text, **special))
    tokens: list[Any] = ids
    if given.get("with_pieces"):
        tokens = [{"id": i, "piece": tokenizer.spelling(i)} for i in ids]
    return Json({"tokens": tokens, "count": len(ids), "max_model_len": served.lm.context})


@takes(_DETOKENIZE, "tokens")
async def detokenize(request: Request, served: Served) -> Response:
    """The text of `tokens`: as `content`, and with the control tokens among them as `prompt`."""
    given = read_fields(body_of(request), _DETOKENIZE)
    served.check_model(given.get("model"))
    ids, decode = required(given, "tokens"), served.lm.tokenizer.decode
    try:
        content, prompt = await beside(request, lambda: (decode(ids), decode(ids, special=True)))
    except CamshaftError as error:
        raise HttpError(400, str(error), code="invalid_value", param="tokens") from None
    return Json({"content": content, "prompt": prompt})


async def tokenizer_info(request: Request, served: Served) -> Response:
    """Answers with the tokenizer's configuration: BOS and EOS tokens and the chat template."""
    lm = served.lm
    return Json(
        {
            **{name: token or None for name, token in control_tokens(served).items()},
            "add_bos_token": lm.tokenizer.vocabulary.add_bos,
            "add_eos_token": lm.tokenizer.vocabulary.add_eos,
            "model_max_length": lm.context,
            "chat_template": template_source(served) or None,
        }
    )


def control_tokens(served: Served) -> dict[str, str]:
    """The texts of the tokens at the beginning and at the end of a text; empty where the model has none."""
    tokenizer = served.lm.tokenizer
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    return {name: "" if token is None else tokenizer.spelling(token) for name, token in ids.items()}


def template_source(served: Served) -> str:
    """The chat template as the model's file has it; empty if it has none."""
    try:
        return served.lm.chat_template.source
    except ModelError:
        return ""
