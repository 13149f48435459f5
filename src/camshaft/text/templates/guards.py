"""Guards: what a chat template's operator, method or filter may be given, so that its result is not too large."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from camshaft.text.templates.limits import INTEGER_BITS, ITEMS, SIZE, Limits, refuse

MAX_WIDTH = 100_000  # of a field that is padded
MAX_FIELDS, MAX_FORMAT = 10_000, 1_000_000  # fields and characters of a format
_MAX_ATTRIBUTE = 60  # characters of an attribute such as a.b.c, which is looked up for every item of a list
_MAX_PRODUCT = 1 << 30  # characters of a text times those of what is searched in it: some searches are quadratic
_STARRED = re.compile(r"%(\([^)]*\))?[-+ #0\d]*\.?\*")
_WIDE_CONVERSION = re.compile(r"[%.)#0\- +]\d{6}")

Guard = Callable[..., None]


def multiply_guard(limits: Limits, a: Any, b: Any) -> None:
    """Check a * b."""
    if isinstance(a, int) and isinstance(b, int):
        if a.bit_length() + b.bit_length() > INTEGER_BITS:
            refuse(f"an integer of more than {INTEGER_BITS:,} bits")
        return
    sequence, times = (b, a) if isinstance(a, int) else (a, b)
    if isinstance(times, int) and isinstance(sequence, str | bytes | list | tuple):
        weight = max(limits.weigh(sequence), len(sequence)) * times
        if weight > SIZE:
            refuse(f"a text or list of {weight:.4g} characters; at most {SIZE:,} are allowed")


def power_guard(limits: Limits, a: Any, b: Any) -> None:
    """Check a ** b."""
    if isinstance(a, int) and isinstance(b, int) and abs(a) > 1 and a.bit_length() * b > INTEGER_BITS:
        refuse(f"an integer of more than {INTEGER_BITS:,} bits")


def remainder_guard(limits: Limits, a: Any, b: Any) -> None:
    """Check a % b, where a may be a format."""
    if not isinstance(a, str):
        return
    if _STARRED.search(a) or ("%" in a and _WIDE_CONVERSION.search(a)):
        refuse("a field width of more than 100,000 characters")
    n_fields = a.count("%")
    if n_fields > MAX_FIELDS or n_fields * limits.weigh(b) > 4 * SIZE:
        refuse(f"a text of more than {SIZE:,} characters")


def pair_guard(limits: Limits, text: Any, *given: Any, **named: Any) -> None:
    """Check a method that searches its arguments in a text."""
    for other in (*given, *named.values()) if given or named else ():
        if isinstance(text, str) and isinstance(other, str) and len(text) * len(other) > _MAX_PRODUCT:
            refuse("a search for a long text in a long text")


def replace_guard(limits: Limits, text: Any, old: Any = "", new: Any = "", *given: Any, **named: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    pair_guard(limits, text, old)
    if len(new) > len(old) and text.count(old) * len(new) + len(text) > 4 * SIZE:
        refuse(f"a text of more than {SIZE:,} characters")


def width_guard(limits: Limits, text: Any, *given: Any, **named: Any) -> None:
    for width in (*given, *named.values()):
        if isinstance(width, int) and abs(width) > MAX_WIDTH:
            refuse(f"a width of more than {MAX_WIDTH:,} characters")


def lines_guard(limits: Limits, text: Any, *given: Any, **named: Any) -> None:
    width_guard(limits, text, *given, **named)
    widths = [len(w) if isinstance(w, str) else int(w) for w in (*given, *named.values()) if isinstance(w, str | int)]
    if (len(str(text)) + 1) * max([4, *widths]) > 64 * SIZE:
        refuse(f"a text of more than {SIZE:,} characters")


def list_guard(limits: Limits, value: Any, *given: Any, **named: Any) -> None:
    if hasattr(value, "__len__") and len(value) > ITEMS:
        refuse(f"a list of {len(value):,} items; at most {ITEMS:,} are allowed")
    for other in (*given, *named.values()) if given or named else ():
        if isinstance(other, str) and len(other) > _MAX_ATTRIBUTE:
            refuse(f"an argument of more than {_MAX_ATTRIBUTE} characters")


def rows_guard(limits: Limits, value: Any, *given: Any, **named: Any) -> None:
    list_guard(limits, value)
    width_guard(limits, value, *given, **named)


def join_guard(limits: Limits, separator: Any, items: Any) -> None:
    if (limits.weigh(items) if not isinstance(items, str) else len(items)) + len(separator) * len(items) > 4 * SIZE:
        refuse(f"a text of more than {SIZE:,} characters")


def list_join_guard(limits: Limits, value: Any, d: Any = "", attribute: Any = None) -> None:
    list_guard(limits, value, *(() if attribute is None else (str(attribute),)))


def number_guard(limits: Limits, value: Any, *given: Any, **named: Any) -> None:
    for number in (value, *given, *named.values()):
        if isinstance(number, str) and len(number) > 1000:
            refuse("a number of more than 1,000 digits")


def round_guard(limits: Limits, value: Any, precision: Any = 0, method: Any = "common") -> None:
    if isinstance(precision, int) and abs(precision) > 300:
        refuse("a precision of more than 300 digits")


def no_guard(limits: Limits, *given: Any, **named: Any) -> None:
    """The guard of what makes nothing large."""
