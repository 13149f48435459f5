"""Scans along an axis: cumsum, cumprod, cummax and cummin, a row for each. Kernels are in ops/scan/kernels.py.

A row is scanned in parts; a product in order. What the ops mean is in ops/scan/definition.py.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype
from camshaft.ops import op as ops
from camshaft.ops.gradient import rule_in_f32, zeros
from camshaft.ops.scan.definition import Scan, infer, parameters_of, reference
from camshaft.ops.scan.samples import error_samples, samples
from camshaft.ops.scan.variants import variants


def _cummin(f: Any, x: Any, **attrs: Any) -> Any:
    """cummax of -x; of integers, whose negation may overflow, of all bits inverted."""
    dtype = as_dtype(x.dtype)
    if dtype.is_float:
        return -f.cummax(-x, **attrs)
    ones = -1 if dtype.kind == "i" else 2**dtype.bits - 1
    return ones - f.cummax(ones - x, **attrs)


def _sum_vjp(f: Any, dy: Any, y: Any, x: Any, axis: int = -1, reverse: bool = False, to: str | None = None) -> Any:
    return f.cumsum(dy, axis=axis, reverse=not reverse)


@rule_in_f32
def _product_vjp(f: Any, dy: Any, y: Any, x: Any, axis: int = -1, reverse: bool = False, to: str | None = None) -> Any:
    """The sum of dy y from each element on, by the element; that of the first 0 is as if it were 1, of those after it 0."""
    zero = f.equal(x, 0)
    count = f.cumsum(f.cast(zero, to="i32"), axis=axis, reverse=reverse, to="i32")
    first = f.logical_and(zero, f.equal(count, 1))
    past = f.cumprod(f.where(first, 1, x), axis=axis, reverse=reverse)
    from_here = f.cumsum(dy * y, axis=axis, reverse=not reverse) / f.where(zero, 1, x)
    from_zero = f.cumsum(dy * past, axis=axis, reverse=not reverse)
    return f.where(first, from_zero, f.where(count > 0, 0, from_here))


def _max_vjp(f: Any, dy: Any, y: Any, x: Any, axis: int = -1, reverse: bool = False, to: str | None = None) -> Any:
    """dy to the last element that was the greatest, as torch does."""
    n, more = x.shape[axis], x.ndim - 1 - axis % x.ndim
    step = np.arange(n, dtype=np.int32)[::-1] if reverse else np.arange(n, dtype=np.int32)
    place = f.cummax(f.where(f.equal(x, y), step.reshape(n, *(1,) * more), 0), axis=axis, reverse=reverse)
    return f.scatter_add(zeros(f, x), (n - 1) - place if reverse else place, dy, axis=axis)


def op_of(row: Scan) -> ops.Op:
    """The Op of a row."""
    return ops.Op(
        name=row.name,
        formula=row.text,
        parameters=parameters_of(row),
        infer=lambda specs, attrs: infer(row, specs, attrs),
        reference=lambda inputs, attrs: reference(row, inputs, attrs),
        variants=variants(row),
        samples=lambda: samples(row),
        error_samples=lambda: error_samples(row),
        tolerance=row.tolerance,
        flops=lambda node: float(prod(node.inputs[0].bounds)),
        decompose=row.decompose,
        vjp=row.vjp,
    )


# For targets without 64-bit floats, where a product of 100 factors rounds 100 times.
_IN_F32 = {"f32": 1e-10, "f64": 1e-26, "f16": 1e-8, "bf16": 1e-6}
ROWS = (
    Scan(
        "cumsum",
        "y[i] = sum over j <= i of x[j], or over j >= i if reverse",
        "sum",
        np.add,
        tolerance=_IN_F32,
        vjp=_sum_vjp,
    ),
    Scan(
        "cumprod",
        "y[i] = product over j <= i of x[j], or over j >= i if reverse",
        "product",
        np.multiply,
        tolerance=_IN_F32,
        vjp=_product_vjp,
    ),
    Scan(
        "cummax",
        "y[i] = max over j <= i of x[j], or over j >= i if reverse; NaN from the first NaN on",
        "max",
        np.maximum,
        vjp=_max_vjp,
    ),
    Scan(
        "cummin",
        "y[i] = min over j <= i of x[j], or over j >= i if reverse; NaN from the first NaN on",
        "min",
        np.minimum,
        _cummin,
    ),
)
OPS = {row.name: op_of(row) for row in ROWS}
