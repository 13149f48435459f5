"""log_softmax: y = x - max(x) - log(sum(exp(x - max(x)))) over the last axis."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops.checks import FLOATS
from camshaft.ops.gradient import rule_in_f32
from camshaft.ops.norm import softmax
from camshaft.ops.norm.frame import row_op
from camshaft.ops.parameters import Parameters


def log_sum_of_powers(k: Tracer, x: Array, row: ir.Value, dim: ir.Operand) -> tuple[ir.Value, ir.Value]:
    """The largest element m of a row and log(sum(exp(x - m))), of 16-bit floats in f32. A NaN makes the second NaN."""
    top, total = softmax.greatest(k, x, row, dim), k.accumulator("sum", ir.arithmetic_dtype(x.dtype))
    for c in k.lanes(dim):
        total += k.exp(x[row, c] - top)
    return top, k.log(k.lanes_sum(total))


@kernel
def one_row_per_program(k: Tracer, x: Array, out: Array, *, dim: int, inner: int) -> None:
    # y[r, c] = x[r, c] - m[r] - log(sum_c exp(x[r, c] - m[r])); m = max_c x[r]
    row = k.program(0) * inner + k.program(1)
    top, powers = log_sum_of_powers(k, x, row, dim)
    for c in k.lanes(dim):
        out[row, c] = (x[row, c] - top) - powers


def _reference(x: Any) -> Any:
    lower = x - x.max(-1, keepdims=True)
    return lower - np.log(np.exp(lower).sum(-1, keepdims=True))


def _decompose(f: Any, x: Any) -> Any:
    lower = x - f.max(x, axes=-1, keepdims=True)
    return lower - f.log(f.sum(f.exp(lower), axes=-1, keepdims=True))


@rule_in_f32
def _vjp(f: Any, dy: Any, y: Any, x: Any) -> Any:
    return dy - f.exp(y) * f.sum(dy, axes=-1, keepdims=True)


OP = row_op(
    name="log_softmax",
    formula="y = x - max(x) - log(sum(exp(x - max(x))))",
    parameters=Parameters("x"),
    kernel=one_row_per_program,
    vectors=2,
    sizes=("dim",),
    inputs={"x": "rc"},
    dtypes=FLOATS,
    numpy=_reference,
    special=softmax.special,
    flops=lambda node: 5.0 * prod(node.inputs[0].bounds),
    decompose=_decompose,
    vjp=_vjp,
)
