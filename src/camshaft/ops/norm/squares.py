"""Norms by the sum of squares of a row, alone or with what follows them: a row for each op.

l2_norm is for the queries and keys of a delta rule; norm_gate is the gated norm of Qwen3-Next; norm_add follows a layer (Gemma).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from camshaft.lang import Array, Tracer, kernel
from camshaft.lang.kernel import Kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS
from camshaft.ops.norm.frame import inverse_rms, row_op, sum_of_squares, weight
from camshaft.ops.parameters import EPS, OFFSET, Attribute, Parameters


@kernel
def l2_row(k: Tracer, x: Array, out: Array, *, dim: int, inner: int, eps: float) -> None:
    # y[r, c] = x[r, c] / sqrt(sum_c x[r, c]^2 + eps)
    row = k.program(0) * inner + k.program(1)
    scale = k.rsqrt(sum_of_squares(k, x, row, dim) + eps)
    for c in k.lanes(dim):
        out[row, c] = x[row, c] * scale


@kernel
def gated_row(
    k: Tracer, x: Array, w: Array, z: Array, out: Array, *, dim: int, inner: int, eps: float, offset: float
) -> None:
    # y[r, c] = x[r, c] / sqrt(mean_c(x[r]^2) + eps) * (w[c] + offset) * z[r, c] / (1 + exp(-z[r, c]))
    row = k.program(0) * inner + k.program(1)
    scale = inverse_rms(k, x, row, dim, eps)
    for c in k.lanes(dim):
        gate = z[row, c]
        out[row, c] = x[row, c] * scale * weight(w, c, offset) * (gate / (1.0 + k.exp(-gate)))


def _norm_gate(x: Any, w: Any, z: Any, eps: float, offset: float = 0.0) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (w + offset) * (z / (1 + np.exp(-z)))


@kernel
def added_row(
    k: Tracer, x: Array, w: Array, residual: Array, out: Array, *, dim: int, inner: int, eps: float, offset: float
) -> None:
    # y[r, c] = residual[r, c] + x[r, c] / sqrt(mean_c(x[r]^2) + eps) * (w[c] + offset)
    row = k.program(0) * inner + k.program(1)
    scale = inverse_rms(k, x, row, dim, eps)
    for c in k.lanes(dim):
        out[row, c] = k.fma(x[row, c] * scale, weight(w, c, offset), residual[row, c])


def _norm_add(x: Any, w: Any, residual: Any, eps: float, offset: float = 0.0) -> Any:
    return residual + x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (w + offset)


def _with_norm(name: str, formula: str, third: str, kernel: Kernel, numpy: Any, decompose: Any, flops: float) -> ops.Op:
    """An op of rms_norm(x, w) and a `third` tensor of x's shape; `flops` per element."""
    return row_op(
        name=name,
        formula=formula,
        parameters=Parameters(f"x w {third}", (EPS, OFFSET)),
        kernel=kernel,
        sizes=("dim",),
        inputs={"x": "rc", "w": "c", third: "rc"},
        numpy=numpy,
        positive={"eps": 1e-5},
        finite={"offset": 1.0},
        dtypes=FLOATS,
        flops=lambda node: flops * prod(node.inputs[0].bounds),
        decompose=decompose,
    )


OPS = {
    op.name: op
    for op in (
        row_op(
            name="l2_norm",
            formula="y = x / sqrt(sum(x^2) + eps)",
            parameters=Parameters("x", (Attribute("eps", "float", 1e-6),)),
            kernel=l2_row,
            sizes=("dim",),
            inputs={"x": "rc"},
            numpy=lambda x, eps: x / np.sqrt((x**2).sum(-1, keepdims=True) + eps),
            positive={"eps": 1e-6},
            dtypes=FLOATS,
            flops=lambda node: 3.0 * prod(node.inputs[0].bounds),
            decompose=lambda f, x, eps=1e-6: x / f.sqrt(f.sum(x * x, axes=-1, keepdims=True) + eps),
        ),
        _with_norm(
            "norm_gate",
            "y = x / sqrt(mean(x^2) + eps) * (w + offset) * z / (1 + exp(-z))",
            "z",
            gated_row,
            _norm_gate,
            lambda f, x, w, z, **attrs: f.rms_norm(x, w, **attrs) * f.silu(z),
            10.0,
        ),
        _with_norm(
            "norm_add",
            "y = residual + x / sqrt(mean(x^2) + eps) * (w + offset)",
            "residual",
            added_row,
            _norm_add,
            lambda f, x, w, residual, **attrs: residual + f.rms_norm(x, w, **attrs),
            5.0,
        ),
    )
}
