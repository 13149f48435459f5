"""Activations of a tensor, some times another, and functions that they are made of: a row for each op.

Only those that other ops would compute with several passes over memory, or inexactly, have kernels; the others are composite ops.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, isfinite, pi, sqrt
from typing import Any

import numpy as np

from camshaft.dtypes import DType, f16, f64, i32
from camshaft.lang import Tracer, ir
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS, NUMBERS
from camshaft.ops.elementwise import samples as draws
from camshaft.ops.elementwise.frame import EXACT, Formula, family
from camshaft.ops.elementwise.unary import ERF_TOLERANCE, erf_of
from camshaft.ops.parameters import Attribute

_TANH_SLOPE, _TANH_CUBE = sqrt(2 / pi), 0.044715
# |x| below which log1p and expm1 are series, because 1 + x and exp(x) - 1 lose digits there.
_NEAR = 0.3


def _polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    """c0 + x (c1 + x (c2 + ..))."""
    total: Any = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


def _log1p(f: Any, where: Callable[..., Any], x: Any) -> Any:
    """2 atanh(x / (2 + x)) near 0, else log(1 + x). `f` has log and abs: a Tracer or the ops."""
    s = x / (2.0 + x)
    terms = 11 if x.dtype == f64 else 6
    near = 2.0 * s * _polynomial(s * s, tuple(1 / (2 * n + 1) for n in range(terms)))
    return where(f.abs(x) < _NEAR, near, f.log(1.0 + x))


def _expm1(f: Any, where: Callable[..., Any], x: Any) -> Any:
    """x + x^2 / 2 + .. near 0, else exp(x) - 1. `f` has exp and abs: a Tracer or the ops."""
    terms = 14 if x.dtype == f64 else 8
    near = x * _polynomial(x, tuple(1 / factorial(n + 1) for n in range(terms)))
    return where(f.abs(x) < _NEAR, near, f.exp(x) - 1.0)


def expm1(k: Tracer, x: ir.Value) -> ir.Value:
    """exp(x) - 1 in a kernel, exact near 0."""
    found: ir.Value = _expm1(k, k.select, x)
    return found


def _capped(dtype: DType, attrs: ops.Attrs) -> DType:
    cap = attrs.get("cap")
    ops.expect(isinstance(cap, float) and cap > 0, "softcap", f"cap {cap}", "cap, a float above 0")
    return dtype


def _silu_vjp(f: Any, dy: Any, y: Any, x: Any) -> Any:
    s = f.sigmoid(x)
    return dy * (s + y * (1 - s))


def _sigmoid_of(f: Any, x: Any) -> Any:
    """e^x / (1 + e^x) below 0, else 1 / (1 + e^-x): no power overflows, so gradients of it are finite too."""
    power = f.exp(f.where(x < 0, x, -x))
    return f.where(x < 0, power, 1) / (1 + power)


def gelu(k: Tracer, x: ir.Value) -> ir.Value:
    """The tanh form of gelu in a kernel."""
    return 0.5 * x * (1.0 + k.tanh(_TANH_SLOPE * (x + _TANH_CUBE * x * x * x)))


def _softplus(k: Tracer, x: ir.Value) -> ir.Value:
    found: ir.Value = k.maximum(x, k.number(0.0, x.dtype)) + _log1p(k, k.select, k.exp(-k.abs(x)))
    return found


def _softplus_of(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _function(
    name: str, text: str, function: Callable[..., Any], decompose: Callable[..., Any], **other: Any
) -> Formula:
    """A function of floats; a composite op unless `compute` is given."""
    made: dict[str, Any] = {"compute": None, "dtypes": FLOATS, "sampled": (f64, f16), "draws": (draws.normal,), **other}
    return Formula(name, text, numpy=function, arity=1, decompose=decompose, **made)


def _gelu_of(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.longdouble(np.pi)) * (x + 0.044715 * x**3)))


def _finite(op: str, name: str) -> Callable[[DType, ops.Attrs], DType]:
    """Checks that an attribute is a finite number."""

    def same(dtype: DType, attrs: ops.Attrs) -> DType:
        value = attrs.get(name, 0.0)
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
        ops.expect(fits, op, f"{name} {value!r}", f"{name}, a finite number")
        return dtype

    return same


def _leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    return np.where(x < 0, x * negative_slope, x)


def _elu(x: Any, alpha: float = 1.0) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(x))


ROWS = (
    _function(
        "sigmoid",
        "y = 1 / (1 + exp(-x))",
        lambda x: 1 / (1 + np.exp(-x)),
        _sigmoid_of,
        compute=lambda k, x: 1.0 / (1.0 + k.exp(-x)),
        vjp=lambda f, dy, y, x: dy * y * (1 - y),
        draws=(draws.between(40, -86),),
        flops=12.0,
    ),
    _function(
        "silu",
        "y = x / (1 + exp(-x))",
        lambda x: x / (1 + np.exp(-x)),
        lambda f, x: x * f.sigmoid(x),
        compute=lambda k, x: x / (1.0 + k.exp(-x)),
        vjp=_silu_vjp,
        draws=(draws.between(40, -86),),
        structure=True,
        flops=4.0,
    ),
    _function(
        "gelu",
        "y = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))",
        _gelu_of,
        lambda f, x: 0.5 * x * (1 + f.tanh(_TANH_SLOPE * (x + _TANH_CUBE * x * x * x))),
        compute=gelu,
        flops=20.0,
    ),
    _function(
        "gelu_erf",
        "y = x / 2 (1 + erf(x / sqrt(2)))",
        lambda x: 0.5 * x * (1 + erf_of(x / np.sqrt(np.longdouble(2)))),
        lambda f, x: 0.5 * x * (1 + f.erf(x * sqrt(0.5))),
        compute=lambda k, x: 0.5 * x * (1.0 + k.erf(x * sqrt(0.5))),
        tolerance=ERF_TOLERANCE,
        flops=20.0,
    ),
    _function(
        "softcap",
        "y = cap tanh(x / cap)",
        lambda x, cap: cap * np.tanh(x / cap),
        lambda f, x, cap: cap * f.tanh(x / cap),
        compute=lambda k, x, cap: cap * k.tanh(x / cap),
        vjp=lambda f, dy, y, x, cap: dy * (1 - f.square(y / cap)),
        attrs=(Attribute("cap", "float"),),
        given={"cap": 2.5},
        gives=_capped,
        flops=14.0,
    ),
    _function(
        "log1p",
        "y = ln(1 + x), exact near 0",
        np.log1p,
        lambda f, x: _log1p(f, f.where, x),
        compute=lambda k, x: _log1p(k, k.select, x),
        vjp=lambda f, dy, y, x: dy / (1 + x),
        draws=(draws.between(3, -0.99),),
        flops=14.0,
    ),
    _function(
        "expm1",
        "y = e^x - 1, exact near 0",
        np.expm1,
        lambda f, x: _expm1(f, f.where, x),
        compute=expm1,
        vjp=lambda f, dy, y, x: dy * (y + 1),
        flops=14.0,
    ),
    _function(
        "softplus",
        "y = ln(1 + e^x)",
        _softplus_of,
        lambda f, x: f.maximum(x, 0) + f.log1p(f.exp(-f.abs(x))),
        compute=_softplus,
        vjp=lambda f, dy, y, x: dy * f.sigmoid(x),
        flops=26.0,
    ),
    _function(
        "relu",
        "y = max(x, 0)",
        lambda x: np.maximum(x, x.dtype.type(0)),
        lambda f, x: f.maximum(x, 0),
        dtypes=NUMBERS,
        sampled=(f64, f16, i32),
        tolerance=EXACT,
        vjp=lambda f, dy, y, x: f.where(x > 0, dy, 0),
    ),
    _function(
        "leaky_relu",
        "y = x, below 0 negative_slope x",
        _leaky_relu,
        lambda f, x, negative_slope=0.01: f.where(x < 0, x * negative_slope, x),
        vjp=lambda f, dy, y, x, negative_slope=0.01: f.where(x > 0, dy, dy * negative_slope),
        attrs=(Attribute("negative_slope", "float", 0.01),),
        gives=_finite("leaky_relu", "negative_slope"),
        flops=2.0,
    ),
    _function(
        "elu",
        "y = x, below 0 alpha (e^x - 1)",
        _elu,
        lambda f, x, alpha=1.0: f.where(x > 0, x, alpha * f.expm1(x)),
        vjp=lambda f, dy, y, x, alpha=1.0: f.where(x > 0, dy, dy * (y + alpha)),
        attrs=(Attribute("alpha", "float", 1.0),),
        given={"alpha": 1.5},
        gives=_finite("elu", "alpha"),
        flops=16.0,
    ),
    _function(
        "hard_swish",
        "y = x min(max(x / 6 + 1/2, 0), 1)",
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        lambda f, x: x * f.minimum(f.maximum(x / 6 + 0.5, 0), 1),
        flops=5.0,
    ),
    _function(
        "mish",
        "y = x tanh(ln(1 + e^x))",
        lambda x: x * np.tanh(_softplus_of(x)),
        lambda f, x: x * f.tanh(f.softplus(x)),
        flops=40.0,
    ),
    Formula(
        "sigmoid_multiply",
        "y = x / (1 + exp(-gate))",
        lambda k, x, gate: x / (1.0 + k.exp(-gate)),
        lambda x, gate: x * (1 / (1 + np.exp(-gate))),
        FLOATS,
        operands="x gate",
        draws=(draws.normal,),
        sampled=(f64, f16),
        flops=5.0,
        decompose=lambda f, x, gate: x * f.sigmoid(gate),
    ),
    Formula(
        "gelu_multiply",
        "y = gate / 2 (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) up",
        lambda k, gate, up: gelu(k, gate) * up,
        lambda gate, up: _gelu_of(gate) * up,
        FLOATS,
        operands="gate up",
        draws=(draws.normal,),
        sampled=(f64, f16),
        flops=21.0,
        decompose=lambda f, gate, up: f.gelu(gate) * up,
    ),
)
OPS = family(ROWS, __name__)
