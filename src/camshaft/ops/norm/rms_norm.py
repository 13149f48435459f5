"""rms_norm: y = x / sqrt(mean(x^2) + eps) * (w + offset) over the last axis (Zhang and Sennrich, 2019).

The offset is 1 for Gemma, whose weights are stored as differences from 1, else 0.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from camshaft.lang import Array, Tracer, kernel
from camshaft.ops.checks import FLOATS
from camshaft.ops.gradient import rule_in_f32
from camshaft.ops.kernels import blocks
from camshaft.ops.norm.frame import inverse_rms, row_op, weight
from camshaft.ops.parameters import EPS, OFFSET, TO, Parameters


@kernel
def one_row_per_program(
    k: Tracer, x: Array, w: Array, out: Array, *, dim: int, inner: int, eps: float, offset: float, streams: bool
) -> None:
    # y[r, c] = x[r, c] / sqrt(mean_c(x[r]^2) + eps) * (w[c] + offset)
    row = k.program(0) * inner + k.program(1)
    scale = inverse_rms(k, x, row, dim, eps)
    for c in k.lanes(dim):
        if streams:
            blocks.prefetch_next_row(k, x, row, c)
        k.store(out, (row, c), x[row, c] * scale * weight(w, c, offset), streamed=streams)


def _reference(x: Any, w: Any, eps: float, offset: float = 0.0) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (w + offset)


def _decompose(f: Any, x: Any, w: Any, eps: float, offset: float = 0.0, to: str = "f32") -> Any:
    y = x / f.sqrt(f.mean(x * x, axes=-1, keepdims=True) + eps) * (w + offset if offset else w)
    return y if to == "f32" else f.cast(y, to=to)


@rule_in_f32
def _vjp(f: Any, dy: Any, y: Any, x: Any, w: Any, eps: float, offset: float = 0.0, to: str = "f32") -> tuple[Any, Any]:
    """With n = x s and s = 1 / sqrt(mean(x^2) + eps): dx = s (dn - n mean(dn n)), and dw = dy n."""
    scale = 1 / f.sqrt(f.mean(x * x, axes=-1, keepdims=True) + eps)
    normed, part = x * scale, dy * (w + offset if offset else w)
    return scale * (part - normed * f.mean(part * normed, axes=-1, keepdims=True)), dy * normed


OP = row_op(
    name="rms_norm",
    formula="y = x / sqrt(mean(x^2) + eps) * (w + offset)",
    parameters=Parameters("x w", (EPS, OFFSET, TO)),
    kernel=one_row_per_program,
    sizes=("dim",),
    inputs={"x": "rc", "w": "c"},
    numpy=_reference,
    positive={"eps": 1e-5},
    finite={"offset": 1.0},
    dtypes=FLOATS,
    to=True,
    flops=lambda node: 4.0 * prod(node.inputs[0].bounds),
    decompose=_decompose,
    vjp=_vjp,
)
