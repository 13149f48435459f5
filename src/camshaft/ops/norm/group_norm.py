"""group_norm: y = (x - mean) / sqrt(var + eps) * w[c] + b[c], over groups of channels of [N, C, ..] (Wu and He, 2018)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import bf16, f16, f32, f64
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE, in_f32, partly_active
from camshaft.ops.norm.channels import checked_channels, draw_channels
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec


@kernel
def one_group_per_program(
    k: Tracer, x: Array, w: Array, b: Array, out: Array, *, groups: int, channels: int, size: int, eps: float
) -> None:
    # y[r, c, i] = (x[r, c, i] - m[r]) / sqrt(v[r] + eps) * w[g, c] + b[g, c]; m, v: mean and variance of x[r]; r = n groups + g
    group, dtype = k.program(1), ir.arithmetic_dtype(x.dtype)
    row, dim = k.program(0) * groups + group, channels * size
    total, errors, squares = k.accumulator("sum", dtype), k.accumulator("sum", dtype), k.accumulator("sum", dtype)
    for i in k.lanes(dim):
        total += x[row, i]
    mean = k.lanes_sum(total) / k.number(dim, dtype)
    for i in k.lanes(dim):  # as in layer_norm: the differences' own mean corrects the rounded mean
        difference = x[row, i] - mean
        errors += difference
        squares.set(k.fma(difference, difference, squares.value))
    error = k.lanes_sum(errors) / k.number(dim, dtype)
    scale = k.rsqrt(k.lanes_sum(squares) / k.number(dim, dtype) - error * error + eps)
    for c in k.range(channels):
        factor, term, first = w[group, c], b[group, c], c * size
        for i in k.lanes(size):
            y = k.fma(x[row, first + i] - mean, scale, -error * scale)
            out[row, first + i] = k.fma(y, factor, term)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    x = checked_channels("group_norm", specs, attrs)
    groups = attrs.get("groups", 0)
    fits = isinstance(groups, int) and groups > 0 and x.bounds[1] % groups == 0
    ops.expect(fits, "group_norm", f"groups {groups!r}", f"groups above 0 that divide the {x.bounds[1]} channels")
    return (x,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, w, b = (a.astype(np.longdouble if a.dtype == np.float64 else np.float64) for a in inputs)
    rows = x.reshape(len(x), attrs["groups"], -1)
    difference = rows - rows.mean(-1, keepdims=True)
    y = difference / np.sqrt((difference**2).mean(-1, keepdims=True) + attrs.get("eps", 1e-5))
    one_each = (-1, *[1] * (x.ndim - 2))
    return (np.asarray(y.reshape(x.shape) * w.reshape(one_each) + b.reshape(one_each), np.float64),)


def _decompose(f: Any, x: Any, w: Any, b: Any, groups: int, eps: float = 1e-5) -> Any:
    n, channels, size = x.shape[0], x.shape[1] // groups, prod(x.shape[2:])
    rows = x.reshape((n, groups, channels * size))
    difference = rows - f.mean(rows, axes=-1, keepdims=True)
    difference = difference - f.mean(difference, axes=-1, keepdims=True)  # what rounding the first mean left
    y = difference / f.sqrt(f.mean(difference * difference, axes=-1, keepdims=True) + eps)
    by_channel = y.reshape((n, groups * channels, size)) * w.reshape((x.shape[1], 1)) + b.reshape((x.shape[1], 1))
    return by_channel.reshape(x.shape)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, groups = node.inputs[0], node.attrs["groups"]
    channels, size = x.bounds[1] // groups, prod(x.bounds[2:])
    flat, weights = (x.bounds[0] * groups, channels * size), (groups, channels)
    arrays = (ops.read(0, shape=flat), *(ops.read(i, shape=weights) for i in (1, 2)), ops.write(0, shape=flat))
    constants = {"groups": groups, "channels": channels, "size": size, "eps": node.attrs.get("eps", 1e-5)}
    grid = (ops.Cells(x.shape[0]), ops.Cells(groups))
    sizes = ("groups", "channels", "size")
    return ops.Build((ops.Launch(one_group_per_program, arrays, grid, constants, sizes=sizes),))


def _samples() -> Iterable[ops.Sample]:
    for shape, groups in (((2, 6, 3, 5), 3), ((1, 4, 1, 1), 4), ((3, 8), 2), ((1, 4, 7, 9), 1), ((2, 32, 33), 32)):
        yield ops.Sample(f"{shape} in {groups}", draw_channels(shape, f32), {"groups": groups})
    for dtype in (f64, f16, bf16):
        yield ops.Sample(f"{dtype.name}", draw_channels((2, 6, 3, 5), dtype), {"groups": 2})
    yield ops.Sample("about 100", draw_channels((2, 4, 9, 11), f32, 100.0), {"groups": 2, "eps": 1e-3})
    full = ops.Sample("2 of 4", draw_channels((4, 6, 5, 3), f32), {"groups": 3})
    yield partly_active(full, 2, fixed=(1, 2))


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((2, 6, 3, 3), f32), TensorSpec((6,), f32)
    yield ops.ErrorSample((x, w), {"groups": 2}, "wanted x ")
    yield ops.ErrorSample((x, w, TensorSpec((5,), f32)), {"groups": 2}, r"wanted b of f32\[6\]")
    yield ops.ErrorSample((x, w, w), {"groups": 4}, "wanted groups above 0 that divide the 6 channels")
    yield ops.ErrorSample((x, w, w), {}, "wanted groups above 0")
    yield ops.ErrorSample((x, w, w), {"groups": 2, "eps": 0.0}, "wanted eps above 0")


OP = ops.Op(
    name="group_norm",
    formula="y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w[c] + b[c] over each group of channels of [N, C, ..]",
    parameters=Parameters("x w b", (Attribute("groups", "int"), Attribute("eps", "float", 1e-5))),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_group_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={**TO_TOLERANCE, "f64": 1e-28},
    flops=lambda node: 8.0 * prod(node.inputs[0].bounds),
    decompose=in_f32(_decompose),
)
