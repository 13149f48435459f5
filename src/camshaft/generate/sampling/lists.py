"""Lists of tokens that a sampling plan reads, of fixed lengths: NO_TOKEN stands where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    return padded(dict.fromkeys(last(tokens, last_n)), width)


def padded(ids: Iterable[int], width: int) -> Array:
    """Ids, int32 [width], with NO_TOKEN after the last."""
    found = np.full(width, NO_TOKEN, np.int32)
    listed = list(ids)
    found[: len(listed)] = listed
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
