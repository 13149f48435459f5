"""Log probabilities of tokens in the JSON of OpenAI's two interfaces."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from camshaft.generate.generation import TokenLogprob
from camshaft.text.tokenizer import Tokenizer


def _entry(each: TokenLogprob, tokenizer: Tokenizer) -> dict[str, Any]:
    return {"token": each.token, "logprob": each.logprob, "bytes": list(tokenizer.spelled_bytes(each.id))}


def of_chat(logprobs: Iterable[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """`logprobs` of a chat completion: an entry per token, with the bytes of those that are not whole characters."""
    rows = [
        _entry(each, tokenizer) | {"top_logprobs": [_entry(top, tokenizer) for top in each.top]} for each in logprobs
    ]
    return {"content": rows, "refusal": None}


def of_completion(logprobs: Iterable[TokenLogprob], offset: int = 0, before: str | None = None) -> dict[str, Any]:
    """`logprobs` of a completion: lists with an item per token; `offset` is that of the first token's text. `before` is the
    first token of an echoed prompt, which follows nothing and has no probability."""
    rows = list(logprobs)
    tokens = [*([] if before is None else [before]), *(each.token for each in rows)]
    none = [None] * (len(tokens) - len(rows))
    return {
        "tokens": tokens,
        "token_logprobs": [*none, *(each.logprob for each in rows)],
        "top_logprobs": [*none, *(_by_text(each.top) for each in rows)],
        "text_offset": [*accumulate(map(len, tokens), initial=offset)][:-1],
    }


def _by_text(top: Iterable[TokenLogprob]) -> dict[str, float]:
    """The log probabilities by text; of tokens with the same text, the more probable one's."""
    found: dict[str, float] = {}
    for each in top:
        found.setdefault(each.token, each.logprob)
    return found
