"""Sampling: how a token is picked from the logits, under llama.cpp's names, checked when it is made."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from camshaft.errors import SettingError
from camshaft.generate.checks import Rules, are_texts, check_fields, integer, is_bool, number

DRY_SEQUENCE_BREAKERS = ("\n", ":", '"', "*")
MOST_BREAKERS, MOST_BREAKER_BYTES = 32, 40  # llama.cpp cuts longer ones


@dataclass(frozen=True, repr=False)
class Sampling:
    """Parameters for sampling a token from the logits. Raises SettingError for an invalid value.

    Those after `greedy` are off by default. They apply in llama.cpp's order: logit_bias, penalties, dry, top_n_sigma, top_k,
    typical_p, top_p, min_p, xtc, temperature. Without top_n_sigma, typical_p and xtc, the temperature comes before top_p.

    temperature: divides the logits; above 1 flattens the distribution, below 1 sharpens it; 0 picks the most probable token.
    top_k: keep the k most probable tokens; 0 keeps all.
    top_p: of those, keep the most probable ones that together reach this probability; 1 keeps all.
    min_p: of those, keep tokens with at least this fraction of the highest probability; 0 keeps all.
    repeat_penalty: above 1 makes tokens among the last `repeat_last_n` less probable; 1 has no effect.
    repeat_last_n: number of recent tokens, including the prompt's, to penalize; 0 penalizes none, -1 all of the context.
    seed: an integer below 2^64; equal seeds give equal text on every backend. None picks a random seed each time.
    greedy: always pick the most probable token, after logit_bias, penalties and dry, ignoring the other fields.
    typical_p: keep the tokens that are nearest to the expected surprise and together exceed this probability; 1 keeps all.
    top_n_sigma: keep tokens whose logit is at most this many standard deviations below the largest; 0 or less keeps all.
    xtc_probability: how often to remove all tokens with at least `xtc_threshold` but the least probable of them; 0 is never.
    xtc_threshold: a probability; above 0.5 removes nothing.
    presence_penalty: subtracted from the logits of tokens among the last `repeat_last_n`.
    frequency_penalty: the same times the number of occurrences.
    dry_multiplier: penalty of a token that would continue a repetition of `dry_allowed_length` tokens; 0 is none.
    dry_base: the penalty grows by this factor with each further token of the repetition.
    dry_allowed_length: repetitions that are shorter have no penalty.
    dry_penalty_last_n: number of recent tokens in which to look for repetitions; 0 is none, -1 all of the context.
    dry_sequence_breakers: texts that no repetition goes across.
    mirostat: 2 keeps the surprise of the tokens near `mirostat_ent`, in place of all other filters and penalties; 0 is off.
    mirostat_lr: how fast mirostat learns.
    mirostat_ent: the surprise in bits that mirostat aims at.
    logit_bias: numbers to add to the logits of tokens, by id; -inf removes a token.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None
    greedy: bool = False
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: str | Sequence[str] = DRY_SEQUENCE_BREAKERS
    mirostat: int = 0
    mirostat_lr: float = 0.1
    mirostat_ent: float = 5.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_fields(self, SAMPLING_RULES)
        breakers = self.dry_sequence_breakers
        object.__setattr__(self, "dry_sequence_breakers", (breakers,) if isinstance(breakers, str) else tuple(breakers))
        object.__setattr__(self, "logit_bias", {int(i): float(bias) for i, bias in self.logit_bias.items()})
        beside = next((name for name, is_on in self._beside_mirostat().items() if is_on), None)
        if self.mirostat and beside is not None:
            came = f"{beside}={getattr(self, beside)!r}"
            raise SettingError(
                f"Sampling {came} with mirostat={self.mirostat}: wanted one of them; mirostat replaces it"
            )

    def __repr__(self) -> str:
        defaults = vars(Sampling())
        return f"Sampling({', '.join(f'{k}={v!r}' for k, v in vars(self).items() if v != defaults[k])})"

    def _beside_mirostat(self) -> dict[str, bool]:
        """Which of the options that mirostat replaces, and that are off by default, are on."""
        return {
            "repeat_penalty": self.repeat_penalty != 1,
            "presence_penalty": self.presence_penalty != 0,
            "frequency_penalty": self.frequency_penalty != 0,
            "dry_multiplier": self.dry_multiplier != 0,
            "typical_p": self.typical_p < 1,
            "top_n_sigma": self.top_n_sigma > 0,
            "xtc_probability": self.xtc_probability > 0,
        }

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is picked without a random draw."""
        return self.greedy or self.temperature == 0

    @property
    def has_penalty(self) -> bool:
        """Whether repeat_penalty has any effect."""
        return self.repeat_penalty != 1 and self.repeat_last_n != 0

    @property
    def has_counts(self) -> bool:
        """Whether presence_penalty or frequency_penalty has any effect."""
        return (self.presence_penalty != 0 or self.frequency_penalty != 0) and self.repeat_last_n != 0

    @property
    def has_dry(self) -> bool:
        """Whether dry_multiplier has any effect."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def has_xtc(self) -> bool:
        """Whether xtc_probability has any effect: of tokens above 0.5 there is only one."""
        return not self.greedy and self.xtc_probability > 0 and self.xtc_threshold <= 0.5

    @property
    def has_typical(self) -> bool:
        """Whether typical_p has any effect."""
        return not self.greedy and self.typical_p < 1

    @property
    def has_top_n_sigma(self) -> bool:
        """Whether top_n_sigma has any effect; the most probable token is always kept."""
        return not self.is_greedy and self.top_n_sigma > 0

    @property
    def has_mirostat(self) -> bool:
        """Whether mirostat has any effect; the most probable token is always kept."""
        return not self.is_greedy and self.mirostat != 0

    def start_seed(self) -> int:
        """The seed for one generation: the given one, or a random one."""
        return int.from_bytes(os.urandom(8), "little") if self.seed is None else int(self.seed)


class SamplingKeywords(TypedDict, total=False):
    """The fields of Sampling as keywords of a call: `lm.generate("Hi", temperature=0.5)`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    seed: int | None
    greedy: bool
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: str | Sequence[str]
    mirostat: int
    mirostat_lr: float
    mirostat_ent: float
    logit_bias: Mapping[int, float]


def _are_breakers(value: Any) -> bool:
    each = [value] if isinstance(value, str) else value
    return (
        are_texts(value)
        and len(each) <= MOST_BREAKERS
        and all(0 < len(text.encode("utf-8", "surrogatepass")) <= MOST_BREAKER_BYTES for text in each)
    )


def _are_biases(value: Any) -> bool:
    is_id, is_number = integer(0, 2**31 - 1), number(-1e6, 1e6)
    fits = isinstance(value, Mapping) and all(is_id(i) for i in value)
    return fits and all(is_number(bias) or bias in (-math.inf, math.inf) for bias in value.values())


_FRACTION = (number(0, 1), "a number from 0 to 1")
_WINDOW = (integer(-1, 2**31 - 1), "a whole number of tokens, 0 for none or -1 for all of the context")
_FINITE = (number(-1e6, 1e6), "a number from -1e6 to 1e6")

SAMPLING_RULES: Rules = {
    "temperature": (number(0, 1e6), "a number from 0 to 1e6"),
    "top_k": (integer(0, 2**31 - 1), "a whole number of tokens, or 0 for all"),
    "top_p": (number(0, 1, above=True), "a number above 0 and up to 1"),
    "min_p": _FRACTION,
    "repeat_penalty": (number(0, 1e6, above=True), "a number above 0 and up to 1e6"),
    "repeat_last_n": _WINDOW,
    "seed": (lambda v: v is None or integer(0, 2**64 - 1)(v), "a whole number from 0 to 2^64-1, or None"),
    "greedy": (is_bool, "True or False"),
    "typical_p": (number(0, 1, above=True), "a number above 0 and up to 1"),
    "top_n_sigma": (number(-1, 1e6), "a number up to 1e6, or 0 or -1 for none"),
    "xtc_probability": _FRACTION,
    "xtc_threshold": _FRACTION,
    "presence_penalty": _FINITE,
    "frequency_penalty": _FINITE,
    "dry_multiplier": (number(0, 1e6), "a number from 0 to 1e6"),
    "dry_base": (number(1, 1e6), "a number from 1 to 1e6"),
    "dry_allowed_length": (integer(1, 2**31 - 1), "a whole number of tokens from 1"),
    "dry_penalty_last_n": _WINDOW,
    "dry_sequence_breakers": (_are_breakers, f"up to {MOST_BREAKERS} texts of 1 to {MOST_BREAKER_BYTES} bytes"),
    "mirostat": (lambda v: integer(0, 2)(v) and v != 1, "2, or 0 for none; version 1 is not supported"),
    "mirostat_lr": (number(0, 1e6), "a number from 0 to 1e6"),
    "mirostat_ent": (number(0, 1e6), "a number of bits from 0 to 1e6"),
    "logit_bias": (_are_biases, "numbers from -1e6 to 1e6, or infinite ones, by token id, such as {5: -1.5}"),
}
