"""Rules for the fields of options, and the error of one that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypeAlias

import numpy as np

from camshaft.errors import PromptError, SettingError

# Field -> (whether a value is valid, what is wanted)
Rules: TypeAlias = Mapping[str, tuple[Callable[[Any], bool], str]]


def check_fields(options: object, rules: Rules) -> None:
    """Raise SettingError, with the field's name, its value and what was wanted, for the first value that does not fit."""
    for name, (fits, wanted) in rules.items():
        value = getattr(options, name)
        if not fits(value):
            raise SettingError(f"{type(options).__name__} {name}={value!r}: wanted {wanted}")


def number(low: float, high: float, *, above: bool = False) -> Callable[[Any], bool]:
    """Whether a value is a number from `low` (or above it) to `high`; a NaN is none."""

    def fits(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            return False
        return bool((low < value if above else low <= value) and value <= high)  # False for NaN

    return fits


def integer(low: int, high: float) -> Callable[[Any], bool]:
    """Whether a value is a whole number from `low` to `high`."""
    return lambda v: isinstance(v, (int, np.integer)) and not isinstance(v, bool) and bool(low <= v <= high)


def check_token_id(token: Any, vocab_size: int) -> None:
    """Raise PromptError unless it is an id from 0 to vocab_size - 1."""
    whole = isinstance(token, (int, np.integer)) and not isinstance(token, bool)
    if not whole or not 0 <= token < vocab_size:
        raise PromptError(f"token id {token!r}; wanted a whole number from 0 to {vocab_size - 1}")


def is_bool(value: Any) -> bool:
    """Whether a value is True or False."""
    return isinstance(value, bool)


def are_texts(value: Any) -> bool:
    """Whether a value is a text or a collection of texts."""
    return isinstance(value, str) or (
        isinstance(value, (Sequence, Set)) and all(isinstance(text, str) for text in value)
    )
