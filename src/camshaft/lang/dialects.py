"""Columns c, wgsl and msl of the instruction table.

lang/instructions.py joins these columns to its rows by name.

A cell is a template of one expression: {0} {1} {2} are the operands (names, or literals that need no parentheses), {T} is the
result's type in the dialect. "expand": lang/expand/functions.py replaces the instruction by others. "expand:NAME": a call of
NAME + "_" + the first operand's dtype, a function of the dialect's file. Operands are scalars; for an explicit vector the
template applies to each element. C is compiled with -fwrapv (integers wrap) and -ffp-contract=fast. minimum and maximum
propagate NaN; the built-in functions of the dialects do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Absent:
    """The cell of an instruction that a target lacks, with the reason that a refusal reports."""

    reason: str


Cell: TypeAlias = str | Absent
Column: TypeAlias = Mapping[str, Cell]  # operand kind ('f', 'i', 'u', 'b') -> cell


def _operator(text: str, kinds: str) -> dict[str, Column]:
    """Return the cells of an infix operator, equal in all three dialects."""
    return _in_all(dict.fromkeys(kinds, f"{{0}} {text} {{1}}"))


def _in_all(column: Column) -> dict[str, Column]:
    """Return a row with the same cells in all three dialects."""
    return dict.fromkeys(("c", "wgsl", "msl"), column)


def _expanded(name: str, kinds: str) -> dict[str, Column]:
    return _in_all(dict.fromkeys(kinds, f"expand:{name}"))


def _function(name: str, kinds: str = "f", msl: str = "", wgsl: str = "") -> dict[str, Column]:
    """Return the cells of a built-in of WGSL and Metal; C expands it, as its functions differ by dtype."""
    return {
        "c": dict.fromkeys(kinds, f"expand:{name}"),
        "wgsl": dict.fromkeys(kinds, f"{wgsl or name}({{0}})"),
        "msl": dict.fromkeys(kinds, f"{msl or name}({{0}})"),
    }


def _extreme(name: str, function: str) -> dict[str, Column]:
    """Return the cells of min or max; float kinds expand because the built-ins drop NaN."""
    own: dict[str, Cell] = {"f": f"expand:{name}", **dict.fromkeys("iu", f"{function}({{0}}, {{1}})")}
    return {"c": dict.fromkeys("fiu", f"expand:{name}"), "wgsl": own, "msl": own}


_EXPAND: Column = {"f": "expand"}
_FLOOR_DIVIDE: Column = {"i": "expand:floor_divide", "u": "{0} / {1}"}
_REMAINDER: Column = {"i": "expand:remainder", "u": "{0} % {1}"}
_FMA: Column = {"f": "fma({0}, {1}, {2})"}
_XOR: Column = {"i": "{0} ^ {1}", "u": "{0} ^ {1}", "b": "{0} != {1}"}
_CAST: Column = {"f": "expand:cast", **dict.fromkeys("iub", "{T}({0})")}
_SHIFT_LEFT: Column = {"i": "{0} << u32({1})", "u": "{0} << {1}"}
_SHIFT_RIGHT: Column = {"i": "{0} >> u32({1})", "u": "{0} >> {1}"}
_DOT2_SHORTS = "{0} + (I32({1}) >> 16u) * (I32({2}) >> 16u) + (I32({1} << 16u) >> 16u) * (I32({2} << 16u) >> 16u)"
_DOT2 = "fma(FLOAT({1} << 16u), FLOAT({2} << 16u), fma(FLOAT({1} & 0xffff0000u), FLOAT({2} & 0xffff0000u), {0}))"

_NO_PAIRS = Absent("sums of byte products in 16 bits are for CPUs; dot4 is for GPUs")

C_FAMILY: dict[str, dict[str, Column]] = {
    "add": _operator("+", "fiu"),
    "subtract": _operator("-", "fiu"),
    "multiply": _operator("*", "fiu"),
    "divide": _operator("/", "f"),
    "floor_divide": _in_all(_FLOOR_DIVIDE),
    "remainder": _in_all(_REMAINDER),
    "negate": _in_all(dict.fromkeys("fi", "-{0}")),
    "fma": {"c": {"f": "expand:fma"}, "wgsl": _FMA, "msl": _FMA},
    "minimum": _extreme("minimum", "min"),
    "maximum": _extreme("maximum", "max"),
    "abs": _function("abs", msl="fabs"),
    "sqrt": _function("sqrt", msl="precise::sqrt"),
    "rsqrt": _function("rsqrt", msl="precise::rsqrt", wgsl="inverseSqrt"),
    "floor": _function("floor"),
    "ceil": _function("ceil"),
    "trunc": _function("trunc"),
    "round": _function("round", msl="rint"),
    # no WGSL or Metal built-in prevents a driver from fusing across it
    "rounded": {"c": {"f": "expand:rounded"}, "wgsl": {"f": "{0}"}, "msl": {"f": "{0}"}},
    "exp": {**_function("exp", msl="precise::exp"), "c": _EXPAND},
    "log": {**_function("log", msl="precise::log"), "c": _EXPAND},
    # the built-in of WGSL, and of some Metal versions, may overflow to NaN
    "tanh": {**_expanded("tanh", "f"), "c": _EXPAND},
    "erf": _in_all(_EXPAND),
    "scale": _in_all(_EXPAND),
    # the WGSL built-ins are accurate only for |x| <= pi
    "sin": {**_function("sin", msl="precise::sin"), "wgsl": {"f": "expand:sin"}},
    "cos": {**_function("cos", msl="precise::cos"), "wgsl": {"f": "expand:cos"}},
    # WGSL implementations may assume that there is no NaN
    "isnan": {"c": {"f": "{0} != {0}"}, "wgsl": {"f": "expand:isnan"}, "msl": {"f": "isnan({0})"}},
    "and": _operator("&", "iub"),
    "or": _operator("|", "iub"),
    "xor": _in_all(_XOR),
    "shift_left": {**_operator("<<", "iu"), "wgsl": _SHIFT_LEFT},
    "shift_right": {**_operator(">>", "iu"), "wgsl": _SHIFT_RIGHT},
    "less": _operator("<", "fiu"),
    "less_equal": _operator("<=", "fiu"),
    "equal": _operator("==", "fiu"),
    # naga's != of floats is false for NaN
    "not_equal": {**_operator("!=", "fiu"), "wgsl": {"f": "!({0} == {1})", **dict.fromkeys("iu", "{0} != {1}")}},
    "select": {
        "c": dict.fromkeys("fiub", "{0} ? {1} : {2}"),
        "wgsl": dict.fromkeys("fiub", "select({2}, {1}, {0})"),
        "msl": dict.fromkeys("fiub", "{0} ? {1} : {2}"),
    },
    "cast": {"c": {**_CAST, **dict.fromkeys("iub", "({T}){0}")}, "wgsl": _CAST, "msl": _CAST},
    "bitcast": {
        "c": dict.fromkeys("fiu", "expand:bitcast"),
        "wgsl": dict.fromkeys("fiu", "bitcast<{T}>({0})"),
        "msl": dict.fromkeys("fiu", "as_type<{T}>({0})"),
    },
    "dot4": _expanded("dot4", "iu"),
    "dot2": {
        "c": {"f": "expand:dot2", "i": "expand:dot2"},
        "wgsl": {"f": _DOT2.replace("FLOAT", "bitcast<f32>"), "i": _DOT2_SHORTS.replace("I32", "bitcast<i32>")},
        "msl": {"f": _DOT2.replace("FLOAT", "as_type<float>"), "i": _DOT2_SHORTS.replace("I32", "as_type<int>")},
    },
    "byte_lookup": _expanded("byte_lookup", "u"),
    "byte_pairs": {"c": {"u": "expand:byte_pairs"}, "wgsl": {"u": _NO_PAIRS}, "msl": {"u": _NO_PAIRS}},
    "byte_signs": {"c": {"u": "expand:byte_signs"}, "wgsl": {"u": _NO_PAIRS}, "msl": {"u": _NO_PAIRS}},
}
