"""Elementwise arithmetic on two tensors that broadcast: a row for each op."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.dtypes import PARTS, DType, as_dtype, boolean, f16, f64, i8, i32, i64, u8, u64
from camshaft.lang import Tracer, ir
from camshaft.ops import op as ops
from camshaft.ops.checks import COMPLEX, EVERY, FLOATS, NUMBERS, SIGNED, UNSIGNED
from camshaft.ops.elementwise import pow_mod
from camshaft.ops.elementwise import samples as draws
from camshaft.ops.elementwise.frame import EXACT, TOLERANCE, Formula, Pair, family

INTEGERS = (*SIGNED, *UNSIGNED)


def wrapping(instruction: str, k: Tracer, a: ir.Value, b: ir.Value) -> ir.Value:
    """Wrapping arithmetic: i64 as u64, because the kernel language's i64 are indexes and must not overflow. Of booleans a sum is
    `or`, a product `and`, as in NumPy."""
    if a.dtype == boolean:
        return a | b if instruction == "add" else a & b
    if a.dtype != i64:
        return k.apply(instruction, a, b)
    return k.bitcast(k.apply(instruction, k.bitcast(a, u64), k.bitcast(b, u64)), i64)


def _product_vjp(f: Any, dy: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Of complex numbers dy times the conjugates."""
    left, right = (f.conj(x) if x.dtype in COMPLEX else x for x in (a, b))
    return dy * right, dy * left


def _extreme_vjp(f: Any, dy: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Half of dy to each of two equal operands, as torch does."""
    each = f.where(f.equal(a, b), dy * 0.5, dy)
    return f.where(f.equal(a, y), each, 0), f.where(f.equal(b, y), each, 0)


def _power_vjp(f: Any, dy: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """b a^(b - 1) and y ln a; 0 where b is 0, and where a is 0 and b is not negative."""
    of_a = f.where(f.equal(b, 0), 0, dy * b * f.power(a, f.where(f.equal(b, 0), 1, b) - 1))
    still = f.logical_and(f.equal(a, 0), b >= 0)
    return of_a, f.where(still, 0, dy * y * f.log(f.where(still, 1, a)))


def _arithmetic(
    name: str, sign: str, function: Callable[..., Any], vjp: Callable[..., Any], structure: bool = False
) -> Formula:
    compute = functools.partial(wrapping, name)
    sampled = NUMBERS[1:] if structure else ()
    dtypes = (*(NUMBERS if name == "subtract" else EVERY), *COMPLEX)
    tolerance = {d.name: TOLERANCE[PARTS[d].name] for d in COMPLEX} if name == "multiply" else EXACT
    return Formula(
        name, f"y = a {sign} b", compute, function, dtypes, tolerance=tolerance, sampled=sampled, structure=structure,
        pairs=functools.partial(_of_pairs, name), vjp=vjp,
    )  # fmt: skip


def _of_pairs(name: str, k: Tracer, a: Pair, b: Pair) -> Pair:
    if name == "multiply":
        return k.fma(a[0], b[0], -(a[1] * b[1])), k.fma(a[0], b[1], a[1] * b[0])
    return k.apply(name, a[0], b[0]), k.apply(name, a[1], b[1])


def _extreme_of(name: str, k: Tracer, a: ir.Value, b: ir.Value) -> ir.Value:
    if a.dtype == boolean:
        return a & b if name == "minimum" else a | b
    return k.apply(name, a, b)


def _extreme(name: str, function: Callable[..., Any], sampled: tuple[DType, ...]) -> Formula:
    return Formula(
        name,
        f"y = {name[:3]}(a, b), NaN where either is",
        functools.partial(_extreme_of, name),
        function,
        EVERY,
        tolerance=EXACT,
        sampled=sampled,
        vjp=_extreme_vjp,
    )


def _divided(instruction: str, k: Tracer, a: ir.Value, b: ir.Value) -> ir.Value:
    """Division as in NumPy: an integer by 0 gives 0, the minimum integer by -1 wraps. Neither reaches the instruction."""
    if a.dtype.is_float:
        return (pow_mod.floor_divide if instruction == "floor_divide" else pow_mod.remainder)(k, a, b)
    zero = b == 0
    if a.dtype.kind == "u":
        return k.select(zero, 0, k.apply(instruction, a, k.select(zero, 1, b)))
    minus_one = b == -1
    quotient = k.apply(instruction, a, k.select(zero | minus_one, 1, b))
    by_minus_one = -a if instruction == "floor_divide" else a - a
    return k.select(zero, 0, k.select(minus_one, by_minus_one, quotient))


def _rounds_once(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Why the target cannot compute exact remainders of floats, or None."""
    if target.backend == "webgpu" and as_dtype(node.inputs[0].dtype).is_float:
        return "an exact remainder needs a fused multiply-add; WGSL drivers round the product and the sum"
    return None


def _floor_division(
    name: str, text: str, function: Callable[..., Any], draw: draws.Draw, vjp: Callable[..., Any]
) -> Formula:
    return Formula(
        name,
        text,
        functools.partial(_divided, name),
        function,
        NUMBERS,
        tolerance=TOLERANCE,
        sampled=NUMBERS[1:],
        draws=(draw, draws.small),
        supports=_rounds_once,
        flops=8.0,
        vjp=vjp,
    )


def _power(a: Any, b: Any) -> Any:
    """np.power, and integers to negative powers, which NumPy refuses."""
    if a.dtype.kind != "i":
        return np.power(a, b)
    ones = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0))
    return np.where(b < 0, ones, np.power(a, np.maximum(b, 0)))


ROWS = (
    _arithmetic("add", "+", np.add, lambda f, dy, y, a, b: (dy, dy), structure=True),
    _arithmetic("subtract", "-", np.subtract, lambda f, dy, y, a, b: (dy, -dy)),
    _arithmetic("multiply", "*", np.multiply, _product_vjp),
    Formula(
        "divide",
        "y = a / b",
        lambda k, a, b: a / b,
        np.divide,
        FLOATS,
        tolerance=TOLERANCE,
        vjp=lambda f, dy, y, a, b: (dy / b, -(dy * y / b)),
    ),
    _extreme("minimum", np.minimum, INTEGERS[:3]),
    _extreme("maximum", np.maximum, (*INTEGERS[4:7], boolean)),
    _floor_division(
        "floor_divide",
        "y = floor(a / b); of integers 0 where b is 0",
        np.floor_divide,
        draws.full_range,
        lambda f, dy, y, a, b: (None, None),
    ),
    _floor_division(
        "remainder",
        "y = a - floor(a / b) b; of integers 0 where b is 0",
        np.remainder,
        draws.wide,
        lambda f, dy, y, a, b: (dy, -(dy * f.floor_divide(a, b))),
    ),
    Formula(
        "power",
        "y = a^b; of integers to a negative power 0, but for 1 and -1",
        pow_mod.power,
        _power,
        NUMBERS,
        tolerance=TOLERANCE,
        sampled=(f64, f16, i8, i32, i64, u8),
        draws=(draws.bases, draws.powers),
        flops=60.0,
        vjp=_power_vjp,
    ),
)
OPS = family(ROWS, __name__)
