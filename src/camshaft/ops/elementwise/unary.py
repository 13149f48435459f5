"""Elementwise functions of one tensor: a row for each op."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, pi, sqrt
from typing import Any

import numpy as np

from camshaft.dtypes import PARTS, boolean, f16, f64, i8, i32, i64
from camshaft.lang import Tracer, ir
from camshaft.ops.checks import COMPLEX, EVERY, FLOATS, NUMBERS
from camshaft.ops.elementwise import samples as draws
from camshaft.ops.elementwise.binary import wrapping
from camshaft.ops.elementwise.frame import EXACT, TOLERANCE, Formula, family
from camshaft.ops.gradient import OF_INTEGERS


def _function(
    name: str,
    text: str,
    function: Callable[..., Any],
    draw: draws.Draw = draws.normal,
    compute: Callable[..., ir.Value] | None = None,
    **other: Any,
) -> Formula:
    """A function of floats. `compute` is the instruction of the same name by default."""
    given = compute or (lambda k, x: k.apply(name, x))
    made: dict[str, Any] = {"dtypes": FLOATS, "sampled": (f64, f16), **other}
    return Formula(name, text, given, function, arity=1, draws=(draw,), **made)


def _to_integer(name: str, text: str, function: Callable[..., Any], **other: Any) -> Formula:
    """A rounding function, which leaves integers and booleans as they are."""

    def compute(k: Tracer, x: ir.Value) -> ir.Value:
        return k.apply(name, x) if x.dtype.is_float else x

    return _function(
        name, text, function, compute=compute, tolerance=EXACT, dtypes=EVERY, sampled=(f64, f16, i64), **other
    )


def erf_of(x: Any) -> Any:
    """math.erf of each element, because NumPy has no erf."""
    return np.array([erf(v) for v in np.ravel(x).astype(np.float64).tolist()]).reshape(np.shape(x))


# The reference's erf is in f64 itself.
ERF_TOLERANCE = {**TOLERANCE, "f64": 1e-29}


def _abs(k: Tracer, x: ir.Value) -> ir.Value:
    if x.dtype.kind == "f":
        return k.abs(x)
    return x if x.dtype.kind in "ub" else k.select(x < 0, -x, x)


def _abs_of(f: Any, x: Any) -> Any:
    if x.dtype in COMPLEX:
        parts = f.maximum(x.pairs(), 0 - x.pairs())
        low, high = f.min(parts, axes=-1), f.max(parts, axes=-1)
        ratio = f.where(f.less(low, high), low / high, 1.0)
        infinite = f.max(f.cast(f.equal(parts, np.inf), to="i32"), axes=-1) > 0  # |inf + nan i| is inf
        return f.where(infinite, np.inf, high * f.sqrt(1 + ratio * ratio))
    return x if x.dtype.kind in "ub" else f.where(x > 0, x, 0 - x)  # 0 - x: so that |-0| is 0


def _abs_of_pair(k: Tracer, x: tuple[ir.Value, ir.Value]) -> ir.Value:
    """|x|, scaled by the larger part so that no square overflows."""
    a, b = k.abs(x[0]), k.abs(x[1])
    low, high = k.minimum(a, b), k.maximum(a, b)
    ratio = k.select(low < high, low / high, 1.0)
    infinite = (a == float("inf")) | (b == float("inf"))  # |inf + nan i| is inf
    return k.select(infinite, float("inf"), high * k.sqrt(k.fma(ratio, ratio, 1.0)))


def _abs_vjp(f: Any, dy: Any, y: Any, x: Any) -> Any:
    """dy sign x, 0 at 0; of complex numbers dy x / |x|."""
    if x.dtype not in COMPLEX:
        return f.where(x > 0, dy, f.where(x < 0, -dy, 0))
    each = (dy / f.where(f.equal(y, 0), 1, y)).reshape((*y.shape, 1))
    return (x.pairs() * each).as_complex()


def _ceil_of(f: Any, x: Any) -> Any:
    return -f.floor(-x) if x.dtype.is_float else x


def _trunc_of(f: Any, x: Any) -> Any:
    return f.where(x < 0, f.ceil(x), f.floor(x)) if x.dtype.is_float else x


def _reciprocal_of(x: Any) -> Any:
    """np.reciprocal, and 0 for the integer 0, of which NumPy's result depends on the machine."""
    return np.reciprocal(x) if x.dtype.kind not in "iu" else np.where(np.abs(x) == 1, x, 0)


def _square(k: Tracer, x: ir.Value) -> ir.Value:
    return wrapping("multiply", k, x, x)


def _reciprocal(k: Tracer, x: ir.Value) -> ir.Value:
    """1 / x; of integers towards 0, and 0 for 0."""
    if x.dtype.is_float:
        return 1.0 / x
    return k.select((x == 1) | (x == -1), x, 0) if x.dtype.kind == "i" else k.select(x == 1, x, 0)


def _isnan(k: Tracer, x: ir.Value) -> ir.Value:
    return k.isnan(x) if x.dtype.is_float else (x ^ x if x.dtype == boolean else x != x)


ROWS = (
    Formula(
        "negate",
        "y = -x",
        lambda k, x: k.number(0, x.dtype) - x if x.dtype.kind == "u" else -x,
        np.negative,
        (*NUMBERS, *COMPLEX),
        arity=1,
        pairs=lambda k, x: (-x[0], -x[1]),
        tolerance=EXACT,
        decompose=lambda f, x: 0 - x if x.dtype.kind == "u" else x * -1,
        vjp=lambda f, dy, y, x: -dy,
    ),
    Formula(
        "abs",
        "y = |x|",
        _abs,
        np.abs,
        (*EVERY, *COMPLEX),
        arity=1,
        gives=lambda dtype, attrs: PARTS.get(dtype, dtype),
        pairs=_abs_of_pair,
        tolerance={"f32": 1e-13, "f64": 1e-31},  # of complex numbers
        sampled=(f64, i8, i32, i64),
        decompose=_abs_of,
        vjp=_abs_vjp,
    ),
    _function("exp", "y = e^x", np.exp, flops=10.0, vjp=lambda f, dy, y, x: dy * y),
    _function("log", "y = ln x", np.log, draws.positive, flops=10.0, vjp=lambda f, dy, y, x: dy / x),
    _function("sqrt", "y = sqrt(x)", np.sqrt, draws.positive, vjp=lambda f, dy, y, x: dy / (2 * y)),
    _function(
        "rsqrt",
        "y = 1 / sqrt(x)",
        lambda x: 1 / np.sqrt(x),
        draws.positive,
        flops=2.0,
        decompose=lambda f, x: 1 / f.sqrt(x),
        vjp=lambda f, dy, y, x: dy * y / x * -0.5,
    ),
    _function(
        "square",
        "y = x^2",
        np.square,
        compute=_square,
        dtypes=NUMBERS,
        sampled=(f64, f16, i64),
        decompose=lambda f, x: x * x,
        vjp=lambda f, dy, y, x: dy * (2 * x),
    ),
    _function(
        "reciprocal",
        "y = 1 / x; of integers 0 but for 1 and -1",
        _reciprocal_of,
        compute=_reciprocal,
        dtypes=NUMBERS,
        sampled=(f64, f16, i32),
        decompose=lambda f, x: 1 / x if x.dtype.is_float else f.where(f.abs(x) == 1, x, 0),
        vjp=lambda f, dy, y, x: -(dy * y * y),
    ),
    _function("tanh", "y = tanh x", np.tanh, flops=12.0, vjp=lambda f, dy, y, x: dy * (1 - y * y)),
    _function(
        "erf",
        "y = erf x",
        erf_of,
        tolerance=ERF_TOLERANCE,
        flops=20.0,
        vjp=lambda f, dy, y, x: dy * f.exp(-(x * x)) * (2 / sqrt(pi)),
    ),
    _function("sin", "y = sin x", np.sin, draws.any_magnitude, flops=20.0, vjp=lambda f, dy, y, x: dy * f.cos(x)),
    _function("cos", "y = cos x", np.cos, draws.any_magnitude, flops=20.0, vjp=lambda f, dy, y, x: -(dy * f.sin(x))),
    Formula(
        "tan",
        "y = tan x",
        None,
        np.tan,
        FLOATS,
        arity=1,
        draws=(draws.normal,),
        sampled=(f64, f16),
        flops=41.0,
        decompose=lambda f, x: f.sin(x) / f.cos(x),
        vjp=lambda f, dy, y, x: dy * (1 + y * y),
    ),
    Formula(
        "isnan",
        "y = whether x is NaN",
        _isnan,
        np.isnan,
        EVERY,
        arity=1,
        gives=lambda dtype, attrs: boolean,
        tolerance=EXACT,
        sampled=(f16,),
        vjp=OF_INTEGERS,
    ),
    _to_integer("ceil", "y = the least integer >= x", np.ceil, decompose=_ceil_of),
    _to_integer("trunc", "y = the integer part of x", np.trunc, decompose=_trunc_of),
    _to_integer("floor", "y = the greatest integer <= x", np.floor, vjp=lambda f, dy, y, x: None),
    _function(
        "round",
        "y = the nearest integer, ties to even",
        np.rint,
        draws.halves,
        tolerance=EXACT,
        vjp=lambda f, dy, y, x: None,
    ),
)
OPS = family(ROWS, __name__)
