"""Text: an expression in a C-family dialect with its precedence, so that only the necessary parentheses are written.

The rules are WGSL's, the strictest: shifts and bitwise operators take no unparenthesized operators beside them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LOOSE, SUM, PRODUCT, ATOM = range(4)


@dataclass(frozen=True)
class Text:
    """An expression. `level`: its precedence: ATOM (a name, a call, a number), PRODUCT, SUM, or LOOSE (all else)."""

    code: str
    level: int = ATOM

    def at_least(self, level: int) -> str:
        """Return the code, in parentheses if its precedence is lower than `level`."""
        return self.code if self.level >= level else f"({self.code})"


# operator -> (lowest precedence of the left operand, of the right one, precedence of the result)
_OPERATORS: dict[str, tuple[int, int, int]] = {
    "*": (PRODUCT, ATOM, PRODUCT),
    "/": (PRODUCT, ATOM, PRODUCT),
    "%": (ATOM, ATOM, PRODUCT),
    "+": (SUM, PRODUCT, SUM),
    "-": (SUM, PRODUCT, SUM),
    **dict.fromkeys(("<", "<=", "==", "!="), (SUM, SUM, LOOSE)),
}
_BINARY = re.compile(r"\{0\} (\S+) \{1\}")
_HOLE = re.compile(r"\{(\d)\}")
_CALL = re.compile(r"[\w<>:]+\([^()]*\)")


def fill(template: str, operands: Sequence[Text]) -> Text:
    """Fill the operands {0} {1} {2} into a template of lang/dialects.py."""
    operator = _BINARY.fullmatch(template)
    if operator:
        left, right, whole = _OPERATORS.get(operator[1], (ATOM, ATOM, LOOSE))
        return Text(f"{operands[0].at_least(left)} {operator[1]} {operands[1].at_least(right)}", whole)

    def operand(hole: re.Match[str]) -> str:
        alone = template[: hole.start()].rstrip()[-1:] in ("(", ",") and template[hole.end() :][:1] in (")", ",")
        return operands[int(hole[1])].at_least(LOOSE if alone else ATOM)

    return Text(_HOLE.sub(operand, template), ATOM if _CALL.fullmatch(template) else LOOSE)


def call(function: str, *operands: Text) -> Text:
    """function(a, b, ...)."""
    return Text(f"{function}({', '.join(o.code for o in operands)})")


def integer(value: int) -> Text:
    """A number in an index."""
    return Text(str(value), ATOM if value >= 0 else LOOSE)


def add(a: Text, b: Text) -> Text:
    """a + b of indexes, with constants folded."""
    if a.code == "0" or b.code == "0":
        return b if a.code == "0" else a
    if a.code.isdigit() and b.code.isdigit():
        return integer(int(a.code) + int(b.code))
    return Text(f"{a.at_least(SUM)} + {b.at_least(SUM)}", SUM)


def multiply(a: Text, factor: int) -> Text:
    """a * factor of indexes."""
    if factor == 1 or a.code == "0":
        return a
    if a.code.isdigit():
        return integer(int(a.code) * factor)
    return fill("{0} * {1}", (a, integer(factor)))


def polynomial(x: str, coefficients: tuple[float, ...], suffix: str = "") -> str:
    """f32: an expression by Horner's rule, highest power first; `suffix` marks a literal as f32."""
    numbers = [f"{np.float32(c)}{suffix}" for c in coefficients]
    text = numbers[0]
    for number in numbers[1:]:
        text = f"fma({text}, {x}, {number})"
    return text
