"""residual_norm: s = a + b and y = s / sqrt(mean(s^2) + eps) * (w + offset) in one pass over the row; both are results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import bf16, f16, f32
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops.norm.frame import row_op, weight
from camshaft.ops.parameters import EPS, OFFSET, TO, Parameters
from camshaft.ops.rule import Builder, Match, Rule, Stage, Use, Uses


@kernel
def one_row_per_program(
    k: Tracer, a: Array, b: Array, w: Array, norm: Array, total: Array, *, dim: int, eps: float, offset: float
) -> None:
    # s[r, c] = a[r, c] + b[r, c]; y[r, c] = s[r, c] / sqrt(mean_c(s[r]^2) + eps) * (w[c] + offset)
    row, squares = k.program(0), k.accumulator("sum")
    for c in k.lanes(dim):
        value = a[row, c] + b[row, c]
        total[row, c] = value
        squares.set(k.fma(value, value, squares.value))  # fused for every length of the row
    scale = k.rsqrt(k.lanes_sum(squares) / k.number(dim, f32) + eps)
    exact = total.dtype == ir.arithmetic_dtype(total.dtype)
    for c in k.lanes(dim):  # a lane reads what it wrote itself: no barrier
        value = total[row, c] if exact else a[row, c] + b[row, c]
        norm[row, c] = value * scale * weight(w, c, offset)


def _reference(a: Any, b: Any, w: Any, eps: float, offset: float = 0.0) -> Any:
    s = a + b
    return s / np.sqrt((s**2).mean(-1, keepdims=True) + eps) * (w + offset), s


def _decompose(f: Any, a: Any, b: Any, w: Any, **attrs: Any) -> Any:
    total = a + b
    return f.rms_norm(total, w, **attrs), total


def _fused(use: Use, uses: Uses) -> Match | None:
    """add, then an rms_norm of the sum on the same device with a constant weight."""
    total = use.outputs[0]
    for norm in uses.readers(total):
        x, *weights = norm.inputs
        if norm.op.name != "rms_norm" or x is not total or norm.device != use.device:
            continue
        inputs = (*use.inputs, *weights)
        if all(w.kind == "constant" for w in weights) and OP.accepts(tuple(t.spec for t in inputs), norm.attrs):
            return Match(_building(inputs, norm, total), (norm,))
    return None


def _building(inputs: tuple[Any, ...], norm: Use, total: Any) -> Callable[[Builder], Mapping[Any, Any]]:
    return lambda new: dict(zip((norm.outputs[0], total), new.apply(OP, inputs, norm.attrs, norm.name), strict=True))


OP = row_op(
    name="residual_norm",
    formula="s = a + b; y = s / sqrt(mean(s^2) + eps) * (w + offset)",
    parameters=Parameters("a b w", (EPS, OFFSET, TO), results=2),
    kernel=one_row_per_program,
    sizes=("dim",),
    inputs={"a": "rc", "b": "rc", "w": "c"},
    numpy=_reference,
    positive={"eps": 1e-5},
    finite={"offset": 1.0},
    dtypes=(f32, f16, bf16),
    to=True,
    rank=2,
    gives="rc rc",
    vectors=1,
    flops=lambda node: 5.0 * prod(node.inputs[0].bounds),
    decompose=_decompose,
    rules=(Rule(Stage.FUSE, ("add",), _fused),),
)
