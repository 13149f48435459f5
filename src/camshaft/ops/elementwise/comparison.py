"""Comparisons of two tensors, boolean logic, where and clip: a row for each op."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.dtypes import DType, boolean, f16, i8, i32, i64, u8, u32
from camshaft.lang import Tracer, ir
from camshaft.ops.checks import EVERY
from camshaft.ops.elementwise.frame import EXACT, Formula, family
from camshaft.ops.gradient import OF_INTEGERS


def _compared(instruction: str, swapped: bool, k: Tracer, a: ir.Value, b: ir.Value) -> ir.Value:
    """Booleans compare as 0 and 1. `swapped`: the operands are swapped, as greater(a, b) is less(b, a)."""
    if a.dtype == boolean:
        a, b = a.to(u32), b.to(u32)
    return k.apply(instruction, *((b, a) if swapped else (a, b)))


def _comparison(
    name: str, sign: str, instruction: str, *sampled: DType, decompose: Callable[..., Any] | None = None
) -> Formula:
    return Formula(
        name,
        f"y = a {sign} b",
        functools.partial(_compared, instruction, name.startswith("greater")),
        getattr(np, name),
        EVERY,
        gives=lambda dtype, attrs: boolean,
        tolerance=EXACT,
        sampled=sampled,
        decompose=decompose,
        vjp=OF_INTEGERS,
    )


def _less_equal(f: Any, a: Any, b: Any) -> Any:
    return f.logical_or(f.less(a, b), f.equal(a, b))  # not(b < a) would hold for NaN


def _logic(
    name: str,
    text: str,
    compute: Callable[..., ir.Value],
    function: Callable[..., Any],
    decompose: Callable[..., Any],
    arity: int = 2,
) -> Formula:
    return Formula(
        name,
        text,
        compute,
        function,
        (boolean,),
        arity,
        tolerance=EXACT,
        sampled=(boolean,),
        decompose=decompose,
        vjp=OF_INTEGERS,
    )


def _clipped(k: Tracer, x: ir.Value, low: ir.Value, high: ir.Value) -> ir.Value:
    return (x | low) & high if x.dtype == boolean else k.minimum(k.maximum(x, low), high)


def _clip_vjp(f: Any, dy: Any, y: Any, x: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
    """dy to x from low to high, both inclusive, as torch does; else to the limit that y is, `high` where both are passed."""
    above, below = high < low, x < low
    inside = f.logical_and(low <= x, x <= high)
    to_high = f.logical_or(high < x, f.logical_and(above, below))
    to_low = f.logical_and(below, f.logical_not(above))
    return f.where(inside, dy, 0), f.where(to_low, dy, 0), f.where(to_high, dy, 0)


ROWS = (
    _comparison("equal", "=", "equal", i32, boolean),
    _comparison("not_equal", "!=", "not_equal", i64, u8, decompose=lambda f, a, b: f.logical_not(f.equal(a, b))),
    _comparison("less", "<", "less", i32, f16),
    _comparison("less_equal", "<=", "less_equal", i8, boolean, decompose=_less_equal),
    _comparison("greater", ">", "less", u32, i64, decompose=lambda f, a, b: f.less(b, a)),
    _comparison("greater_equal", ">=", "less_equal", i32, u8, decompose=lambda f, a, b: f.less_equal(b, a)),
    _logic("logical_and", "y = a and b", lambda k, a, b: a & b, np.logical_and, lambda f, a, b: f.where(a, b, a)),
    _logic("logical_or", "y = a or b", lambda k, a, b: a | b, np.logical_or, lambda f, a, b: f.where(a, a, b)),
    _logic(
        "logical_xor", "y = a or b, not both", lambda k, a, b: a ^ b, np.logical_xor, lambda f, a, b: f.not_equal(a, b)
    ),
    _logic(
        "logical_not",
        "y = not x",
        lambda k, x: x ^ k.const(True, boolean),
        np.logical_not,
        lambda f, x: f.equal(x, False),
        arity=1,
    ),
    Formula(
        "where",
        "y = a where the condition holds, else b",
        lambda k, c, a, b: k.select(c, a, b),
        np.where,
        EVERY,
        arity=3,
        operands="condition a b",
        conditions=1,
        tolerance=EXACT,
        sampled=EVERY[1:],
        structure=True,
        moves=lambda node: {},
        vjp=lambda f, dy, y, c, a, b: (None, f.where(c, dy, 0), f.where(c, 0, dy)),
    ),
    Formula(
        "clip",
        "y = min(max(x, low), high)",
        _clipped,
        lambda x, low, high: np.minimum(np.maximum(x, low), high),
        EVERY,
        arity=3,
        operands="x low high",
        tolerance=EXACT,
        decompose=lambda f, x, low, high: f.minimum(f.maximum(x, low), high),
        vjp=_clip_vjp,
    ),
)
OPS = family(ROWS, __name__)
