"""Loops over explicit vectors that several hot kernels share.

They are in this folder because every kernel's cache key covers it: a change here recompiles the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.dtypes import i32, u32
from camshaft.lang.ir import Value
from camshaft.lang.tracing.tracer import Number, Tracer, Variable

# 2^r for r in [-1/2, 1/2]: the minimax polynomial of degree 5 that is 1 at 0; relative error 9.2e-8.
_POWER_OF_TWO = (
    0.0013264727224390313,
    0.00967151267112565,
    0.05550733743473982,
    0.24022242084894058,
    0.6931469775988681,
    1.0,
)
_SMALLEST_EXPONENT = -126.0
# Adding it to a float below 2^22 in magnitude rounds to the nearest integer, in the lowest bits.
_ROUNDER, _ROUNDER_BITS = 1.5 * 2.0**23, 0x4B400000


def tile_of(k: Tracer, rows: int, vectors: int, width: int) -> list[list[Variable]]:
    """Return a tile of zeros in registers: `rows` times `vectors` variables of `width` elements."""
    return [[k.var(k.splat(0.0, width)) for _ in range(vectors)] for _ in range(rows)]


def add_products(k: Tracer, tile: list[list[Variable]], left: Sequence[Value], right: Sequence[Value]) -> None:
    """tile[r][v] += left[r] * right[v]: one step of an outer product; `left` are scalars, `right` explicit vectors."""
    for row, scalar in zip(tile, left, strict=True):
        for total, vector in zip(row, right, strict=True):
            total.set(k.fma(scalar, vector, total.value))


def greater(k: Tracer, a: Value, b: Value) -> Value:
    """a where a > b, else b: one instruction on most CPUs; k.maximum takes several to propagate NaN."""
    return k.select(b < a, a, b)


def power_of_two(k: Tracer, x: Value) -> Value:
    """2^x for x <= 0, with 2e-7 relative error; exactly 1 at 0 and 0 below 2^-126. Half the instructions of k.exp. NaN stays NaN.

    x = n + r with integer n: a polynomial in r, then n added to its exponent.
    """
    rounded = x + _ROUNDER
    # On integers: WebGPU drivers may simplify x + c - c to x.
    r = x - (k.bitcast(rounded, i32) - _ROUNDER_BITS).to(x.dtype)
    result: Number = _POWER_OF_TWO[0]
    for coefficient in _POWER_OF_TWO[1:]:
        result = k.fma(result, r, coefficient)
    assert isinstance(result, Value)
    exponent = k.bitcast(rounded, u32) << 23
    power = k.bitcast(k.bitcast(result, u32) + exponent, x.dtype)
    return k.select(x < _SMALLEST_EXPONENT, 0.0, power)


def first_elements(k: Tracer, count: Value, width: int) -> Value:
    """Return the mask of the first `count` (any integer) elements of a vector."""
    return k.iota(width, i32) < k.splat(count.to(i32), width, i32)
