"""The form of a sampling plan, which is what it depends on, and the lists of tokens that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.generate.sampling.breakers import Breakers
from camshaft.generate.sampling.parameters import Sampling

Array = np.ndarray[Any, Any]
NO_TOKEN = -1


@dataclass(frozen=True)
class SamplingForm:
    """The number of tokens in each list, 0 where there is none, and which filters there are.

    Numbers are powers of two, so that few plans serve many options.

    biased: tokens with a logit_bias; those with a presence or frequency penalty too, unless repeat_penalty comes between.
    recent: tokens with the repeat penalty.
    counted: tokens with a presence or frequency penalty after the repeat penalty.
    repeated: the text in which dry looks for repetitions.
    """

    biased: int = 0
    recent: int = 0
    counted: int = 0
    repeated: int = 0
    top_n_sigma: bool = False
    typical: bool = False
    xtc: bool = False
    mirostat: bool = False
    masked: bool = False

    @property
    def has_filters(self) -> bool:
        """Whether the temperature comes after top_p, with filters between them."""
        return self.top_n_sigma or self.typical or self.xtc


def window(last_n: int, context: int) -> int:
    """The number of recent tokens that an option means: -1 is all of the context."""
    return context if last_n < 0 else min(last_n, context)


def form_of(
    sampling: Sampling, context: int, *, has_long_breakers: bool = False, is_masked: bool = False
) -> SamplingForm:
    """The form of the plan for `sampling`. `has_long_breakers` if some of dry's breakers are several tokens, `is_masked` if a
    grammar says which tokens may be drawn."""
    n_recent = window(sampling.repeat_last_n, context)
    n_counted = n_recent if sampling.has_counts else 0
    n_repeated = window(sampling.dry_penalty_last_n, context) if sampling.has_dry else 0
    together = 0 if sampling.has_penalty else n_counted
    return SamplingForm(
        biased=_padded(len(sampling.logit_bias) + together),
        recent=_padded(n_recent if sampling.has_penalty else 0),
        counted=_padded(n_counted - together),
        repeated=_padded(n_repeated * 2 if has_long_breakers else n_repeated),
        top_n_sigma=sampling.has_top_n_sigma,
        typical=sampling.has_typical,
        xtc=sampling.has_xtc,
        mirostat=sampling.has_mirostat,
        masked=is_masked,
    )


def _padded(n: int) -> int:
    """The smallest power of two that is at least `n`; 0 for 0."""
    return 1 << (n - 1).bit_length() if n else 0


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
