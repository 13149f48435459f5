"""Lists of tokens that a sampling plan reads, of fixed lengths: NO_TOKEN stands where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from camshaft.generate.sampling.breakers import Breakers

Array = np.ndarray[Any, Any]
NO_TOKEN = -1


def last(tokens: Sequence[int], n: int) -> Sequence[int]:
    """The last `n` tokens, or as many as there are."""
    return tokens[-n:] if n else ()


def recent_tokens(tokens: Sequence[int], last_n: int, width: int) -> Array:
    """The distinct ids among the last `last_n` tokens, int32 [width]."""
    ids = list(dict.fromkeys(last(tokens, last_n)))
    found = np.full(width, NO_TOKEN, np.int32)
    found[: len(ids)] = ids
    return found


def padded(pairs: Sequence[tuple[int, float]], which: int, rest: float, like: Array) -> Array:
    """The ids (`which` 0) or numbers (1) of pairs, then `rest`: as many, and of the same dtype, as in a row of `like`."""
    found = np.full(like.shape[1], rest, like.dtype)
    found[: len(pairs)] = [pair[which] for pair in pairs]
    return found


def counted(tokens: Sequence[int], presence: float, frequency: float) -> list[tuple[int, float]]:
    """(id, what is added to its logit) for each distinct token: presence once, frequency for each occurrence, subtracted."""
    numbers: dict[int, int] = {}
    for token in tokens:
        numbers[token] = numbers.get(token, 0) + 1
    return [(token, -(n * frequency + presence)) for token, n in numbers.items()]


def text_to_repeat(tokens: Sequence[int], breakers: Breakers, width: int) -> Array:
    """The text in which dry looks for a repetition of its end, int32 [width], the latest token last.

    Tokens with a breaker in them are NO_TOKEN. If the last breaker is several tokens, what follows it is there twice, after a
    NO_TOKEN: dry then compares this end with the whole text, but not beyond the breaker.
    """
    text = [NO_TOKEN if token in breakers.single else token for token in tokens]
    n_after = breakers.n_after(tokens)
    if n_after is not None:
        text += [NO_TOKEN, *text[len(text) - n_after :]]
    found = np.full(width, NO_TOKEN, np.int32)
    found[width - len(text) :] = text
    return found
