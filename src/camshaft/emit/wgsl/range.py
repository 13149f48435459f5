"""Which u32 values are known to be below 2^31: only these become indexes in WGSL, whose i64 is an i32."""

from __future__ import annotations

from collections.abc import Callable

from camshaft.lang import ir

HALF = 1 << 31


def below_half(value: ir.Value) -> bool:
    """Whether a u32 value is below 2^31, by what made it. False where that is not known."""
    rule = _RULES.get(value.op)
    return rule is not None and rule(value)


def _any(value: ir.Value) -> bool:
    return any(map(below_half, value.args))


def _all(value: ir.Value) -> bool:
    return all(map(below_half, value.args))


def _number(value: ir.Value) -> int:
    """A constant's number, 0 for another value."""
    return int(value.attr) if value.op == "const" else 0


_RULES: dict[str, Callable[[ir.Value], bool]] = {
    "const": lambda v: _number(v) < HALF,
    "load": lambda v: bool(v.attr[0].dtype.nbytes < 4),
    "cast": lambda v: v.args[0].dtype.kind == "b" or (v.args[0].dtype.kind == "u" and v.args[0].dtype.nbytes < 4),
    "and": _any,
    "minimum": _any,
    "or": _all,
    "xor": _all,
    "maximum": _all,
    "select": lambda v: all(map(below_half, v.args[1:])),
    "remainder": _any,
    "shift_right": lambda v: _number(v.args[1]) > 0 or below_half(v.args[0]),
    "floor_divide": lambda v: _number(v.args[1]) > 1 or below_half(v.args[0]),
}
