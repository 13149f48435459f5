"""softmax: y = exp(x - max(x)) / sum(exp(x - max(x))) over the last axis."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS
from camshaft.ops.gradient import rule_in_f32
from camshaft.ops.kernels import blocks
from camshaft.ops.kernels.bits import ordered
from camshaft.ops.norm.frame import row_op
from camshaft.ops.parameters import Parameters


def greatest_lane(k: Tracer, value: ir.Value) -> ir.Value:
    """The greatest of the lanes' values, none of them NaN. f32 as integers: a step of halving is one instruction, not five."""
    if value.dtype != f32:
        return k.lanes_max(value)
    return k.bitcast(ordered(k, k.lanes_max(ordered(k, value, i32)), i32), f32)


def greatest(k: Tracer, x: Array, row: ir.Value, dim: ir.Operand) -> ir.Value:
    """The largest element of a row. It may skip a NaN, for one instruction instead of three: sums of powers have it."""
    found = k.accumulator("max", ir.arithmetic_dtype(x.dtype))
    for c in k.lanes(dim):
        value, before = x[row, c], found.value
        found.set(k.select(value > before, value, before))
    return greatest_lane(k, found.value)


@kernel
def one_row_per_program(
    k: Tracer, x: Array, out: Array, *, dim: int, inner: int, streams: bool, prefetch: bool
) -> None:
    # y[r, c] = exp(x[r, c] - max_c x[r]) / sum_c exp(x[r, c] - max_c x[r]); a NaN in a row makes all of it NaN
    row, dtype = k.program(0) * inner + k.program(1), ir.arithmetic_dtype(x.dtype)
    top, total = greatest(k, x, row, dim), k.accumulator("sum", dtype)
    # A row for nontemporal stores stays on the stack until its sum is known.
    powers = k.scratch(dtype, dim) if streams and dim <= blocks.MAX_ROW else None
    rounds = out.dtype != dtype  # 16-bit powers are computed twice, so that they are rounded once
    for c in k.lanes(dim):
        if prefetch:
            blocks.prefetch_next_row(k, x, row, c)
        power = k.exp(x[row, c] - top)
        if powers is not None:
            powers[c] = power
        elif not rounds:
            out[row, c] = power
        total += power
    scale = 1.0 / k.lanes_sum(total)
    for c in k.lanes(dim):  # a lane reads what it wrote itself: no barrier
        if powers is None:
            out[row, c] = (k.exp(x[row, c] - top) if rounds else out[row, c]) * scale
        else:
            k.stream(out, powers[c] * scale, row, c)


def _reference(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def special() -> Iterable[ops.Sample]:
    x = np.random.default_rng(13).normal(size=(4, 33)).astype(np.float32)
    x[0] += 1e4
    x[1, 5:] = -np.inf
    x[2, 7] = np.nan
    x[3] *= 100
    yield ops.Sample("large, masked and NaN", (x,))


def _decompose(f: Any, x: Any) -> Any:
    powers = f.exp(x - f.max(x, axes=-1, keepdims=True))
    return powers / f.sum(powers, axes=-1, keepdims=True)


@rule_in_f32
def _vjp(f: Any, dy: Any, y: Any, x: Any) -> Any:
    product = dy * y
    return product - y * f.sum(product, axes=-1, keepdims=True)


OP = row_op(
    name="softmax",
    formula="y = exp(x - max(x)) / sum(exp(x - max(x)))",
    parameters=Parameters("x"),
    kernel=one_row_per_program,
    vectors=2,
    sizes=("dim",),
    inputs={"x": "rc"},
    dtypes=FLOATS,
    numpy=_reference,
    special=special,
    flops=lambda node: 5.0 * prod(node.inputs[0].bounds),
    decompose=_decompose,
    vjp=_vjp,
)
