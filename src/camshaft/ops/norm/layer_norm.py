"""layer_norm: y = (x - mean(x)) / sqrt(var(x) + eps) * w + b over the last axis (Ba et al., 2016)."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops.checks import FLOATS
from camshaft.ops.gradient import rule_in_f32
from camshaft.ops.kernels import blocks
from camshaft.ops.norm.frame import row_op
from camshaft.ops.parameters import EPS, Parameters


def standardized(
    k: Tracer, x: Array, row: ir.Value, dim: ir.Operand, eps: float, prefetches: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The mean, scale and shift of a row: (x - mean) scale + shift has mean 0 and variance 1."""
    dtype = ir.arithmetic_dtype(x.dtype)
    total, errors, squares = k.accumulator("sum", dtype), k.accumulator("sum", dtype), k.accumulator("sum", dtype)
    for c in k.lanes(dim):
        total += x[row, c]
    mean = k.lanes_sum(total) / k.number(dim, dtype)
    # Sums of differences from the rounded mean stay exact for a large mean; the differences' own mean corrects it.
    for c in k.lanes(dim):
        if prefetches:
            blocks.prefetch_next_row(k, x, row, c)
        difference = x[row, c] - mean
        errors += difference
        squares.set(k.fma(difference, difference, squares.value))
    error = k.lanes_sum(errors) / k.number(dim, dtype)
    scale = k.rsqrt(k.lanes_sum(squares) / k.number(dim, dtype) - error * error + eps)
    return mean, scale, -error * scale


@kernel
def one_row_per_program(
    k: Tracer, x: Array, w: Array, b: Array, out: Array, *, dim: int, inner: int, eps: float, streams: bool
) -> None:
    # fma by name: left to LLVM, whether a product and a sum are fused depends on the length of the row.
    # y[r, c] = (x[r, c] - m[r]) / sqrt(v[r] + eps) * w[c] + b[c]; m = mean_c(x[r]), v = mean_c((x[r] - m[r])^2)
    row = k.program(0) * inner + k.program(1)
    mean, scale, shift = standardized(k, x, row, dim, eps, prefetches=streams)
    for c in k.lanes(dim):
        y = k.fma(k.fma(x[row, c] - mean, scale, shift), w[c], b[c])
        k.store(out, (row, c), y, streamed=streams)


def _reference(x: Any, w: Any, b: Any, eps: float) -> Any:
    difference = x - x.mean(-1, keepdims=True)
    return difference / np.sqrt((difference**2).mean(-1, keepdims=True) + eps) * w + b


def _decompose(f: Any, x: Any, w: Any, b: Any, eps: float) -> Any:
    difference = x - f.mean(x, axes=-1, keepdims=True)
    difference = difference - f.mean(difference, axes=-1, keepdims=True)  # what rounding the first mean left
    return difference / f.sqrt(f.mean(difference * difference, axes=-1, keepdims=True) + eps) * w + b


@rule_in_f32
def _vjp(f: Any, dy: Any, y: Any, x: Any, w: Any, b: Any, eps: float) -> tuple[Any, Any, Any]:
    """With n = (x - mean(x)) s: dx = s (dn - mean(dn) - n mean(dn n)), dw = dy n, db = dy."""
    centered = x - f.mean(x, axes=-1, keepdims=True)
    scale = 1 / f.sqrt(f.mean(centered * centered, axes=-1, keepdims=True) + eps)
    normed, part = centered * scale, dy * w
    along = f.mean(part, axes=-1, keepdims=True) + normed * f.mean(part * normed, axes=-1, keepdims=True)
    return scale * (part - along), dy * normed, dy


OP = row_op(
    name="layer_norm",
    formula="y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b",
    parameters=Parameters("x w b", (EPS,)),
    kernel=one_row_per_program,
    sizes=("dim",),
    inputs={"x": "rc", "w": "c", "b": "c"},
    numpy=_reference,
    positive={"eps": 1e-5},
    dtypes=FLOATS,
    flops=lambda node: 8.0 * prod(node.inputs[0].bounds),
    decompose=_decompose,
    vjp=_vjp,
)
