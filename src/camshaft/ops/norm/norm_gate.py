"""norm_gate: y = x / sqrt(mean(x^2) + eps) * (w + offset) * silu(z) over the last axis, the gated norm of Qwen3-Next."""

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
    k: Tracer, x: Array, w: Array, z: Array, out: Array, *, dim: int, inner: int, eps: float, offset: float
) -> None:
    # y[r, c] = x[r, c] / sqrt(mean_c(x[r]^2) + eps) * (w[c] + offset) * z[r, c] / (1 + exp(-z[r, c]))
    row, dtype = k.program(0) * inner + k.program(1), ir.arithmetic_dtype(x.dtype)
    scale = k.rsqrt(sum_of_squares(k, x, row, dim) / k.number(dim, dtype) + eps)
    for c in k.lanes(dim):
        gate = z[row, c]
        out[row, c] = x[row, c] * scale * weight(w, c, offset) * (gate / (1.0 + k.exp(-gate)))


def _reference(x: Any, w: Any, z: Any, eps: float, offset: float = 0.0) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (w + offset) * (z / (1 + np.exp(-z)))


OP = row_op(
    name="norm_gate",
    formula="y = x / sqrt(mean(x^2) + eps) * (w + offset) * z / (1 + exp(-z))",
    parameters=Parameters("x w z", (EPS, OFFSET)),
    kernel=one_row_per_program,
    sizes=("dim",),
    inputs={"x": "rc", "w": "c", "z": "rc"},
    numpy=_reference,
    positive={"eps": 1e-5},
    finite={"offset": 1.0},
    dtypes=FLOATS,
    flops=lambda node: 10.0 * prod(node.inputs[0].bounds),
    decompose=lambda f, x, w, z, **attrs: f.rms_norm(x, w, **attrs) * f.silu(z),
)
