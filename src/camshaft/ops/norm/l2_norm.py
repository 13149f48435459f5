"""l2_norm: y = x / sqrt(sum(x^2) + eps) over the last axis, as on the queries and keys of a delta rule."""

from __future__ import annotations

from math import prod

import numpy as np

from camshaft.lang import Array, Tracer, kernel
from camshaft.ops.checks import FLOATS
from camshaft.ops.norm.frame import row_op, sum_of_squares
from camshaft.ops.parameters import Attribute, Parameters


@kernel
def one_row_per_program(k: Tracer, x: Array, out: Array, *, dim: int, inner: int, eps: float) -> None:
    # y[r, c] = x[r, c] / sqrt(sum_c x[r, c]^2 + eps)
    row = k.program(0) * inner + k.program(1)
    scale = k.rsqrt(sum_of_squares(k, x, row, dim) + eps)
    for c in k.lanes(dim):
        out[row, c] = x[row, c] * scale


OP = row_op(
    name="l2_norm",
    formula="y = x / sqrt(sum(x^2) + eps)",
    parameters=Parameters("x", (Attribute("eps", "float", 1e-6),)),
    kernel=one_row_per_program,
    sizes=("dim",),
    inputs={"x": "rc"},
    numpy=lambda x, eps: x / np.sqrt((x**2).sum(-1, keepdims=True) + eps),
    positive={"eps": 1e-6},
    dtypes=FLOATS,
    flops=lambda node: 3.0 * prod(node.inputs[0].bounds),
    decompose=lambda f, x, eps=1e-6: x / f.sqrt(f.sum(x * x, axes=-1, keepdims=True) + eps),
)
