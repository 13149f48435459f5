"""Limits of one rendering of a chat template: time, output, and the sizes of integers, texts and lists.

Every operation that can make a large value checks it: a value is at most SIZE, counting a list that occurs twice inside of
another twice. So whatever one operation does with values, such as comparing or printing them, takes well under a second, and
checking the clock between operations bounds the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from typing import Any, NoReturn

from jinja2 import TemplateError

SECONDS = 2.0
OUTPUT = 4_000_000  # characters of the result
SIZE = 4_000_000  # characters of a text, or of a list as text
INTEGER_BITS = 1 << 14
MEMORY_NBYTES = 256_000_000  # of all values created
BUFFERED = 16 * OUTPUT  # characters that macros and {% set %} blocks collect
ITEMS = 250_000  # of a list
DEPTH = 100  # of lists in lists: hashing deeply nested tuples overflows the stack
_ITEM = SIZE // ITEMS

clock: Callable[[], float] = time.monotonic
cpu_clock: Callable[[], float] = time.thread_time


class LimitError(TemplateError):
    """A template exceeds a limit."""


def refuse(what: str) -> NoReturn:
    """Raise LimitError."""
    raise LimitError(what)


class Limits:
    """The resources that one rendering has used."""

    def __init__(self) -> None:
        self._deadline, self._cpu_started = clock() + SECONDS, cpu_clock()
        self._nbytes_left, self._buffered = MEMORY_NBYTES, 0
        # (weight, depth) of each list, tuple or dict by id, with the object, so that no other one gets its id.
        self._known: dict[int, tuple[object, int, int]] = {}

    def tick(self, n_characters: int = 0) -> None:
        """Check the clock, at every iteration and call; `n_characters` of fixed text may be output before the next one."""
        if clock() > self._deadline:
            self._check_time()
        self._buffered += n_characters
        if self._buffered > BUFFERED:
            refuse(f"it makes more than {BUFFERED:,} characters of text")

    def _check_time(self) -> None:
        """Raise LimitError if this thread has used its time. On a busy machine it may only have waited."""
        left = SECONDS - (cpu_clock() - self._cpu_started)
        if left <= 0:
            refuse(f"it takes more than {SECONDS:g} s")
        self._deadline = clock() + left

    def charge(self, nbytes: int) -> None:
        """Count memory."""
        self._nbytes_left -= nbytes
        if self._nbytes_left < 0:
            refuse(f"it makes values of more than {MEMORY_NBYTES / 1e6:.0f} MB")

    def text(self, text: str) -> str:
        """Return a text that is output inside of a macro or block."""
        self.tick(len(text))
        self.charge(len(text))
        return text

    def made(self, value: Any) -> Any:
        """Check the clock and a new value; return it. Raises LimitError if it is too large."""
        if clock() > self._deadline:
            self._check_time()
        if type(value) is str and len(value) <= SIZE:  # most values
            self._nbytes_left -= len(value) if value.isascii() else 4 * len(value)
            if self._nbytes_left < 0:
                self.charge(0)
            return value
        if isinstance(value, str):
            self.charge(4 * len(value))
        self.weigh(value)
        return value

    def sliced(self, value: Any) -> Any:
        """Return a part of a value, which is no larger than the value."""
        self.tick()
        if hasattr(value, "__len__"):
            self.charge((4 if isinstance(value, str) else 16) * len(value))
        return value

    def item(self, value: Any) -> Any:
        """Check the clock and return an item of a value, or the result of a comparison."""
        self.tick()
        return value

    def weigh_arguments(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Check the arguments of a call together: a macro gets them as `varargs` and `kwargs`."""
        weight = sum(map(self.weigh, (*given, *named.values())))
        if weight > SIZE:
            refuse(f"arguments of {weight:,} characters; at most {SIZE:,} are allowed")

    def weigh(self, value: Any) -> int:
        """The size of a value: about the number of characters of its text. Raises LimitError if it is above SIZE."""
        weight, _ = self._weigh(value, 0)
        return weight

    def _weigh(self, value: Any, depth: int) -> tuple[int, int]:
        """The weight and depth of a value at `depth`."""
        if isinstance(value, str | bytes):
            weight = len(value)
        elif isinstance(value, int):
            weight = value.bit_length() // 3
            if weight * 3 > INTEGER_BITS:
                refuse(f"an integer of more than {INTEGER_BITS:,} bits")
        elif isinstance(value, list | tuple | Mapping | AbstractSet | ValuesView):
            return self._weigh_container(value, depth)
        else:
            weight = 1
        if weight > SIZE:
            refuse(f"a text of {weight:,} characters; at most {SIZE:,} are allowed")
        return weight, 0

    def _weigh_container(self, value: Any, depth: int) -> tuple[int, int]:
        known = self._known.get(id(value))
        if known is not None:
            if depth + known[2] > DEPTH:
                refuse(f"lists nested more than {DEPTH} deep")
            return known[1:]
        if depth >= DEPTH:
            refuse(f"lists nested more than {DEPTH} deep")
        if len(value) > ITEMS:
            refuse(f"a list of {len(value):,} items; at most {ITEMS:,} are allowed")
        self.charge(256 + (48 if isinstance(value, list | tuple) else 100) * len(value))
        parts: Iterable[Any] = value if not isinstance(value, Mapping) else (x for pair in value.items() for x in pair)
        weight, deepest = _ITEM, 0
        for part in parts:
            if type(part) is str and len(part) < SIZE:  # most parts
                weight += _ITEM + len(part)
                continue
            part_weight, part_depth = self._weigh(part, depth + 1)
            weight, deepest = weight + _ITEM + part_weight, max(deepest, part_depth)
        if weight > SIZE:
            refuse(f"a list of more than {SIZE:,} characters")
        self._known[id(value)] = (value, weight, deepest + 1)
        return weight, deepest + 1
