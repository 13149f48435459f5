"""TranscribeOptions: how speech becomes text, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from camshaft.generate.checks import Rules, check_fields, integer, is_bool, number
from camshaft.generate.speech.plans import TEXTS
from camshaft.generate.speech.tokens import TASKS


@dataclass(frozen=True, kw_only=True)
class TranscribeOptions:
    """How speech becomes text. Raises SettingError for an invalid value. The defaults are those of Whisper's own program.

    language: a code (de) or English name; None finds the likeliest in the first window.
    task: 'transcribe', or 'translate' to English.
    timestamps: let the model say times; windows then end where a sentence does. Without, each window is one segment.
    prompt: a text before the recording: names and words that occur, or a style.
    temperature: a number, or several, each tried where the text of the one before was poor (repetitive or unlikely).
    best_of: texts drawn at a temperature above 0, of which the likeliest is taken.
    seed: of the draws.
    compression_ratio_threshold, logprob_threshold: a text is poor if zlib shrinks it more, or its mean log probability is lower.
    no_speech_threshold: a window is silent if the probability of that is higher, and the text is poor. None turns one off.
    condition_on_previous_text: each window knows the text before it.
    max_tokens: the most tokens of a window; None: half of those that the model knows positions of.
    max_initial_timestamp: the latest time, in seconds, at which a window's first sentence begins.
    """

    language: str | None = None
    task: str = "transcribe"
    timestamps: bool = True
    prompt: str = ""
    temperature: float | Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    best_of: int = TEXTS
    seed: int = 0
    compression_ratio_threshold: float | None = 2.4
    logprob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    condition_on_previous_text: bool = True
    max_tokens: int | None = None
    max_initial_timestamp: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, TRANSCRIBE_RULES)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperatures in the order in which they are tried."""
        given = self.temperature
        return tuple(given) if isinstance(given, Sequence) else (float(given),)


_IS_TEMPERATURE = number(0, 2)


def _are_temperatures(value: Any) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return len(value) > 0 and all(map(_IS_TEMPERATURE, value))
    return _IS_TEMPERATURE(value)


def _optional(low: float, high: float) -> Any:
    fits = number(low, high)
    return lambda value: value is None or fits(value)


TRANSCRIBE_RULES: Rules = {
    "language": (lambda v: v is None or (isinstance(v, str) and bool(v)), "a language's code or name, or None"),
    "task": (lambda v: v in TASKS, "'transcribe' or 'translate'"),
    "timestamps": (is_bool, "True or False"),
    "prompt": (lambda v: isinstance(v, str), "a text"),
    "temperature": (_are_temperatures, "a number from 0 to 2, or several"),
    "best_of": (integer(1, TEXTS), f"a whole number from 1 to {TEXTS}"),
    "seed": (integer(0, 2**64 - 1), "a whole number, 0 or more"),
    "compression_ratio_threshold": (_optional(0, math.inf), "a number, 0 or more, or None"),
    "logprob_threshold": (_optional(-math.inf, 0), "a number, 0 or less, or None"),
    "no_speech_threshold": (_optional(0, 1), "a number from 0 to 1, or None"),
    "condition_on_previous_text": (is_bool, "True or False"),
    "max_tokens": (lambda v: v is None or integer(1, math.inf)(v), "a whole number, 1 or more, or None"),
    "max_initial_timestamp": (number(0, 1e4), "a number of seconds"),
}
