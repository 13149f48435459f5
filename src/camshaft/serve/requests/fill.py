"""Prompts between whose parts a model fills in, by the control tokens of its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.serve.models.served import Served
from camshaft.serve.requests.errors import HttpError

_NEEDED = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}  # the tokens without which there is no infill


def text_ids(served: Served, text: str, param: str) -> list[int]:
    """The tokens of a text inside a prompt, whose control tokens are text. Raises HttpError for one that cannot fit."""
    served.check_text(text, param)
    return served.lm.tokenizer.encode(text, add_special=False, parse_special=False, at_start=False)


def filled(served: Served, prefix: Sequence[int], suffix: Sequence[int], extra: Sequence[int] = ()) -> list[int]:
    """The prompt after which the model writes what belongs between. Raises HttpError that names the tokens for it that the
    model lacks."""
    fill, tokenizer = served.lm.fill_tokens, served.lm.tokenizer
    missing = [f"fim_{word}" for name, word in _NEEDED.items() if name not in fill]
    if missing:
        message = f"the model {served.name!r} has no tokens to fill in: {', '.join(missing)}"
        raise HttpError(400, message, code="unsupported_model", param="model")
    before = [] if tokenizer.bos_id is None or not tokenizer.vocabulary.add_bos else [tokenizer.bos_id]
    return [*before, *extra, fill["fim_pre"], *prefix, fill["fim_suf"], *suffix, fill["fim_mid"]]
