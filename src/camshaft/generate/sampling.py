"""Sampling parameters, and the input arrays of the ops `sample` and `repeat_penalty`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from camshaft.errors import SettingError

Array: TypeAlias = np.ndarray[Any, Any]
NO_TOKEN = -1
MOST_RECENT = 4096


@dataclass(frozen=True)
class Sampling:
    """Parameters for sampling a token from the logits. Raises SettingError for an invalid value.

    temperature: divides the logits; above 1 flattens the distribution, below 1 sharpens it; 0 is greedy.
    top_k: keep the k most probable tokens; 0 keeps all.
    top_p: of those, keep the most probable ones that together reach this probability; 1 keeps all.
    min_p: of those, keep tokens with at least this fraction of the highest probability; 0 keeps all.
    repeat_penalty: above 1 makes tokens among the last `repeat_last_n` less probable; 1 has no effect.
    repeat_last_n: number of recent tokens, including the prompt's, to penalize; 0 penalizes none.
    seed: an integer below 2^64; equal seeds give equal text on every backend. None picks a random seed each time.
    greedy: always pick the most probable token (after the penalty), ignoring the other fields.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None
    greedy: bool = False

    def __post_init__(self) -> None:
        for name, (fits, wanted) in _RULES.items():
            value = getattr(self, name)
            if not fits(value):
                raise SettingError(f"Sampling {name}={value!r}: wanted {wanted}")

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is picked without a random draw."""
        return self.greedy or self.temperature == 0

    @property
    def has_penalty(self) -> bool:
        """Whether repeat_penalty has any effect."""
        return self.repeat_penalty != 1 and self.repeat_last_n > 0

    def start_seed(self) -> int:
        """The seed for one generation: the given one, or a random one."""
        return int.from_bytes(os.urandom(8), "little") if self.seed is None else self.seed


def _number(low: float, high: float, *, above: bool = False) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            return False
        return bool(math.isfinite(value) and (low < value if above else low <= value) and value <= high)

    return fits


def _integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, (int, np.integer)) and not isinstance(v, bool) and bool(low <= v <= high)


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (_number(0, 1e6), "a number from 0 to 1e6"),
    "top_k": (_integer(0, 2**31 - 1), "a whole number of tokens, or 0 for all"),
    "top_p": (_number(0, 1, above=True), "a number above 0 and up to 1"),
    "min_p": (_number(0, 1), "a number from 0 to 1"),
    "repeat_penalty": (_number(0, 1e6, above=True), "a number above 0 and up to 1e6"),
    "repeat_last_n": (_integer(0, MOST_RECENT), f"a whole number from 0 to {MOST_RECENT}"),
    "seed": (lambda v: v is None or _integer(0, 2**64 - 1)(v), "a whole number from 0 to 2^64-1, or None"),
    "greedy": (lambda v: isinstance(v, bool), "True or False"),
}


def seed_words(seed: int, step: int) -> tuple[int, int, int]:
    """One row of the op sample's seed input: the seed's low and high words, and the step."""
    mask = 2**32 - 1
    return seed & mask, seed >> 32 & mask, step & mask


def recent_tokens(tokens: Sequence[int], last_n: int, width: int) -> Array:
    """The distinct ids among the last `last_n` tokens, int32 [width], padded with NO_TOKEN. Raises SettingError if
    `width` is too small."""
    if last_n > width:
        raise SettingError(f"Sampling repeat_last_n={last_n}: wanted at most {width}, the width of this plan")
    ids = np.full(max(width, 1), NO_TOKEN, np.int32)
    distinct = list(dict.fromkeys(tokens[-last_n:])) if last_n else []
    ids[: len(distinct)] = distinct
    return ids
