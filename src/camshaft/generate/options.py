"""The options of a language model, of generating text and of sampling, checked when they are made."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypedDict

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32
from camshaft.errors import ContextError, SettingError, count
from camshaft.settings import setting, settings

MOST_RECENT = 4096

# Field -> (whether a value is valid, what is wanted)
_Rules: TypeAlias = Mapping[str, tuple[Callable[[Any], bool], str]]


def _check(options: object, rules: _Rules) -> None:
    for name, (fits, wanted) in rules.items():
        value = getattr(options, name)
        if not fits(value):
            raise SettingError(f"{type(options).__name__} {name}={value!r}: wanted {wanted}")


def _number(low: float, high: float, *, above: bool = False) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            return False
        return bool((low < value if above else low <= value) and value <= high)  # False for NaN

    return fits


def _integer(low: int, high: float) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, (int, np.integer)) and not isinstance(v, bool) and bool(low <= v <= high)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _are_texts(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, (Sequence, Set)) and all(isinstance(text, str) for text in value)
    )


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
        _check(self, SAMPLING_RULES)

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
        return int.from_bytes(os.urandom(8), "little") if self.seed is None else int(self.seed)


SAMPLING_RULES: _Rules = {
    "temperature": (_number(0, 1e6), "a number from 0 to 1e6"),
    "top_k": (_integer(0, 2**31 - 1), "a whole number of tokens, or 0 for all"),
    "top_p": (_number(0, 1, above=True), "a number above 0 and up to 1"),
    "min_p": (_number(0, 1), "a number from 0 to 1"),
    "repeat_penalty": (_number(0, 1e6, above=True), "a number above 0 and up to 1e6"),
    "repeat_last_n": (_integer(0, MOST_RECENT), f"a whole number from 0 to {MOST_RECENT}"),
    "seed": (lambda v: v is None or _integer(0, 2**64 - 1)(v), "a whole number from 0 to 2^64-1, or None"),
    "greedy": (_is_bool, "True or False"),
}


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """How to generate text, and when to end it. Raises SettingError for an invalid value.

    max_tokens: the most tokens to generate; -1: until the model ends the text or the context is full.
    sampling: how to pick a token from the logits.
    stop: a string, or several; the text ends before the first that appears.
    ignore_eos: continue past the model's end token.
    raw: take a text prompt as it is, without the chat template.
    logprobs: record the log probability of each token and those of this many most probable tokens; None records none.
    """

    max_tokens: int = 128
    sampling: Sampling = Sampling()
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    raw: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _check(self, GENERATE_RULES)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def merge(self, keywords: GenerateKeywords) -> GenerateOptions:
        """These options with those of `keywords` replaced. Raises TypeError for an unknown name."""
        return replace(self, **keywords) if keywords else self


class GenerateKeywords(TypedDict, total=False):
    """The fields of GenerateOptions as keywords of a call: `lm.generate("Hi", max_tokens=5)`."""

    max_tokens: int
    sampling: Sampling
    stop: str | Sequence[str]
    ignore_eos: bool
    raw: bool
    logprobs: int | None


GENERATE_RULES: _Rules = {
    "max_tokens": (_integer(-1, math.inf), "a whole number, 0 or more, or -1 for no limit"),
    "sampling": (lambda v: isinstance(v, Sampling), "a camshaft.Sampling"),
    "stop": (_are_texts, "a text or a list of texts"),
    "ignore_eos": (_is_bool, "True or False"),
    "raw": (_is_bool, "True or False"),
    "logprobs": (lambda v: v is None or _integer(0, math.inf)(v), "a whole number, 0 or more, or None"),
}


def generate_options(
    options: GenerateOptions | None, keywords: GenerateKeywords, defaults: GenerateOptions = GenerateOptions()
) -> GenerateOptions:
    """The options of a call: `options`, or `defaults` if None, with the keywords replaced."""
    options = defaults if options is None else options
    if not isinstance(options, GenerateOptions):
        raise SettingError(f"options came as {type(options).__name__}; wanted a camshaft.GenerateOptions")
    return options.merge(keywords)


# Option of a model -> whether the inputs of quantized matmuls are quantized to 8 bits.
ACTIVATIONS = {"auto": True, "q8": True, "f32": False}
# Option of a model -> dtype or block format of the KV cache.
KV_CACHES: dict[str, DType | str] = {"f16": f16, "bf16": bf16, "f32": f32, "q8_0": "Q8_0", "q4_0": "Q4_0"}


def activations_of(name: str) -> str:
    """Resolve 'auto' by the setting; return a name of ACTIVATIONS. Raises SettingError for another name."""
    name = settings().activations if name == "auto" else name
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise SettingError(f"activations {name!r}; wanted one of {', '.join(ACTIVATIONS)}")
    return name


def kv_cache_of(name: str, activations: str) -> str:
    """Resolve 'auto' by the setting, else to f16, or f32 with f32 activations; return a name of KV_CACHES.

    Raises SettingError for another name.
    """
    name = settings().kv_cache if name == "auto" else name
    if name == "auto":
        return "f16" if ACTIVATIONS[activations] else "f32"
    if not isinstance(name, str) or name not in KV_CACHES:
        raise SettingError(f"kv_cache {name!r}; wanted one of auto, {', '.join(KV_CACHES)}")
    return name


def check_sizes(context: int, sessions: int) -> None:
    """Raise SettingError unless both are positive integers, ContextError if positions would exceed 31 bits."""
    if any(type(n) is not int or n < 1 for n in (context, sessions)):
        raise SettingError(f"context {context!r}, sessions {sessions!r}; wanted whole numbers from 1 up")
    if context * sessions >= 1 << 31:  # positions and rows of the cache are i32
        raise ContextError(
            f"{count(sessions, 'session')} with a context of {count(context, 'token')}; wanted fewer than 2^31 tokens in all"
        )


def backend_of(name: str | None) -> str | None:
    """The checked backend name, or None if any may be used."""
    if name is None and setting("backend") is None and "camshaft.selection.override" not in sys.modules:
        return None  # no override is possible: skip importing most of camshaft
    from camshaft.selection.override import check_override, get_backend_override

    return get_backend_override() if name is None else check_override(name)
