"""norm_add: y = residual + x / sqrt(mean(x^2) + eps) * (w + offset) over the last axis, where a norm follows a layer (Gemma)."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops.checks import FLOATS
from camshaft.ops.norm.frame import row_op, sum_of_squares, weight
from camshaft.ops.parameters import EPS, OFFSET, Parameters


@kernel
def one_row_per_program(
    k: Tracer, x: Array, w: Array, residual: Array, out: Array, *, dim: int, inner: int, eps: float, offset: float
) -> None:
    # y[r, c] = residual[r, c] + x[r, c] / sqrt(mean_c(x[r]^2) + eps) * (w[c] + offset)
    row, dtype = k.program(0) * inner + k.program(1), ir.arithmetic_dtype(x.dtype)
    scale = k.rsqrt(sum_of_squares(k, x, row, dim) / k.number(dim, dtype) + eps)
    for c in k.lanes(dim):
        out[row, c] = k.fma(x[row, c] * scale, weight(w, c, offset), residual[row, c])


def _reference(x: Any, w: Any, residual: Any, eps: float, offset: float = 0.0) -> Any:
    return residual + x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (w + offset)


OP = row_op(
    name="norm_add",
    formula="y = residual + x / sqrt(mean(x^2) + eps) * (w + offset)",
    parameters=Parameters("x w residual", (EPS, OFFSET)),
    kernel=one_row_per_program,
    sizes=("dim",),
    inputs={"x": "rc", "w": "c", "residual": "rc"},
    numpy=_reference,
    positive={"eps": 1e-5},
    finite={"offset": 1.0},
    dtypes=FLOATS,
    flops=lambda node: 5.0 * prod(node.inputs[0].bounds),
    decompose=lambda f, x, w, residual, **attrs: residual + f.rms_norm(x, w, **attrs),
)
