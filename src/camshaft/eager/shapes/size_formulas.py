"""Formulas of sizes: what a function computes from a call's sizes, recorded on one call and valid for others.

The function runs once with a Size for each size. Arithmetic on Sizes is recorded, and so is the answer of every comparison: the
formulas hold for sizes that give the same answers. A Size that is needed as a number, an index or a key must have that value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, NoReturn

# Statements of a recording: a function of more would take longer than to compute the values without formulas.
MOST_STATEMENTS = 400
Formulas = Callable[..., Any]
_LITERALS = (int, float, bool, str, type(None))


class Unrecorded(Exception):
    """The function has too many statements, or a value that has no text in Python, as infinity."""


class Recording:
    """Statements in Python: a name for each value computed, and a return of None where an answer differs."""

    def __init__(self, values: Sequence[int]) -> None:
        self.names = [f"s{i}" for i in range(len(values))]
        self.sizes: list[Any] = [Size(self, name, value) for name, value in zip(self.names, values, strict=True)]
        self._lines: list[str] = []
        self._known: dict[str, Size] = {}
        self._answered: set[str] = set()

    def value(self, text: str, value: int) -> Size:
        """The Size with this formula, which is computed once."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = Size(self, f"t{len(self._known)}", value)
            self._add(f"{found.text} = {text}")
        return found

    def answer(self, text: str, value: bool) -> bool:
        """The answer, which other sizes must give as well."""
        if text not in self._answered:
            self._answered.add(text)
            self._add(f"if not ({text}): return None" if value else f"if {text}: return None")
        return value

    def _add(self, line: str) -> None:
        if len(self._lines) >= MOST_STATEMENTS:
            raise Unrecorded
        self._lines.append(line)

    def function(self, result: object) -> Formulas:
        """f(*sizes): the result, of tuples, numbers and Sizes, for other sizes, or None where an answer differs."""
        body = [*self._lines, f"return {_text(result)}"]
        source = f"def formulas({', '.join(self.names)}):\n" + "".join(f"    {line}\n" for line in body)
        made: dict[str, Formulas] = {}
        exec(source, made)
        return made["formulas"]


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"({''.join(f'{_text(part)}, ' for part in value)})"
    if type(value) is Size:
        return value.text
    if type(value) not in _LITERALS or (type(value) is float and not isfinite(value)):
        raise Unrecorded
    return repr(value)


def number(value: Any) -> Any:
    """The number of a Size, also inside tuples; others as they are."""
    if isinstance(value, tuple):
        return tuple(number(part) for part in value)
    return value.value if type(value) is Size else value


class Size:
    """An integer of a recorded call with its formula, `text`. It is an int to isinstance, not to C code, which would take its
    number without a word."""

    __slots__ = ("_recording", "text", "value")

    def __init__(self, recording: Recording, text: str, value: int) -> None:
        self._recording, self.text, self.value = recording, text, value

    __class__ = property(lambda self: int)

    def _known(self) -> int:
        self._recording.answer(f"{self.text} == {self.value}", True)
        return self.value

    __index__ = __int__ = _known

    def __float__(self) -> float:
        return float(self._known())

    def __hash__(self) -> int:
        return hash(self._known())

    def __bool__(self) -> bool:
        return self._recording.answer(f"{self.text} != 0", self.value != 0)

    def __repr__(self) -> str:  # for messages; a key made of it would differ from that of the number
        return f"<{self.text}>"

    def __neg__(self) -> Size:
        return self._recording.value(f"-{self.text}", -self.value)

    def __pos__(self) -> Size:
        return self

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a recorded size has no {name}")


_ARITHMETIC = {
    "add": (operator.add, "+"),
    "sub": (operator.sub, "-"),
    "mul": (operator.mul, "*"),
    "floordiv": (operator.floordiv, "//"),
    "mod": (operator.mod, "%"),
    "and": (operator.and_, "&"),
    "lshift": (operator.lshift, "<<"),
    "rshift": (operator.rshift, ">>"),
}
_COMPARISONS = {
    "eq": (operator.eq, "=="),
    "ne": (operator.ne, "!="),
    "lt": (operator.lt, "<"),
    "le": (operator.le, "<="),
    "gt": (operator.gt, ">"),
    "ge": (operator.ge, ">="),
}
# Operands on the right that leave the left one as it is.
_NEUTRAL = {"+": 0, "-": 0, "*": 1, "//": 1}


def _arithmetic(function: Callable[[int, int], int], sign: str, reflected: bool) -> Callable[[Size, Any], Any]:
    def method(self: Size, other: Any) -> Any:
        if type(other) is not Size and type(other) is not int:
            return NotImplemented
        if type(other) is int and _NEUTRAL.get(sign) == other and (not reflected or sign in "+*"):
            return self
        a, b = (other, self) if reflected else (self, other)
        return self._recording.value(f"{_text(a)} {sign} {_text(b)}", function(number(a), number(b)))

    return method


def _comparison(function: Callable[[Any, Any], bool], sign: str) -> Callable[[Size, Any], Any]:
    def method(self: Size, other: Any) -> Any:
        if type(other) not in (Size, int, float):
            return NotImplemented
        if other is self:
            return function(0, 0)
        return self._recording.answer(f"{self.text} {sign} {_text(other)}", function(self.value, number(other)))

    return method


for _name, (_function, _sign) in _ARITHMETIC.items():
    setattr(Size, f"__{_name}__", _arithmetic(_function, _sign, False))
    setattr(Size, f"__r{_name}__", _arithmetic(_function, _sign, True))
for _name, (_function, _sign) in _COMPARISONS.items():
    setattr(Size, f"__{_name}__", _comparison(_function, _sign))
