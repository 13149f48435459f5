"""rms_norm: y = x / sqrt(mean(x^2) + eps) * w over the last axis (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import f32, f64
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops.kernels import blocks
from camshaft.ops.norm.frame import row_op
from camshaft.ops.parameters import EPS, TO, Parameters


@kernel
def one_row_per_program(
    k: Tracer, x: Array, w: Array, out: Array, *, dim: int, inner: int, eps: float, streams: bool
) -> None:
    # y[r, c] = x[r, c] / sqrt(mean_c(x[r]^2) + eps) * w[c]
    row, squares = k.program(0) * inner + k.program(1), k.accumulator("sum", x.dtype)
    for c in k.lanes(dim):
        squares.set(k.fma(x[row, c], x[row, c], squares.value))  # fused for every length of the row
    scale = k.rsqrt(k.lanes_sum(squares) / k.number(dim, x.dtype) + eps)
    for c in k.lanes(dim):
        if streams:
            blocks.prefetch_next_row(k, x, row, c)
        k.store(out, (row, c), x[row, c] * scale * w[c], streamed=streams)


def _reference(x: Any, w: Any, eps: float) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w


def _decompose(f: Any, x: Any, w: Any, eps: float, to: str = "f32") -> Any:
    y = x / f.sqrt(f.mean(x * x, axes=-1, keepdims=True) + eps) * w
    return y if to == "f32" else f.cast(y, to=to)


OP = row_op(
    name="rms_norm",
    formula="y = x / sqrt(mean(x^2) + eps) * w",
    parameters=Parameters("x w", (EPS, TO)),
    kernel=one_row_per_program,
    sizes=("dim",),
    inputs={"x": "rc", "w": "c"},
    numpy=_reference,
    positive={"eps": 1e-5},
    dtypes=(f32, f64),
    to=True,
    flops=lambda node: 4.0 * prod(node.inputs[0].bounds),
    decompose=_decompose,
)
