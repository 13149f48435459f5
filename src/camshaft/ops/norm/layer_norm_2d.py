"""layer_norm_2d: y = (x - mean) / sqrt(var + eps) * w[c] + b[c] over the channels of each pixel of [N, C, ..], as in SAM."""

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

# Pixels of a program: 128 KiB of 256 channels, which the passes over them read from a cache.
BLOCK = 128


@kernel
def one_block_of_pixels_per_program(
    k: Tracer, x: Array, w: Array, b: Array, out: Array, *, channels: int, pixels: int, eps: float, block: int
) -> None:
    # y[n, c, p] = (x[n, c, p] - m[n, p]) / sqrt(v[n, p] + eps) * w[c] + b[c]; m = mean_c(x[n]), v = mean_c((x[n] - m)^2)
    n, first, dtype = k.program(0), k.program(1) * block, ir.arithmetic_dtype(x.dtype)
    stop = k.minimum(first + block, pixels)
    means, errors, squares = (k.scratch(dtype, block) for _ in range(3))
    for p in k.lanes(first, stop):
        for sums in (means, errors, squares):
            sums[p - first] = 0.0
    for c in k.range(channels):
        for p in k.lanes(first, stop):
            means[p - first] = means[p - first] + x[n, c, p]
    for p in k.lanes(first, stop):
        means[p - first] = means[p - first] / k.number(channels, dtype)
    for c in k.range(channels):  # as in layer_norm: the differences' own mean corrects the rounded mean
        for p in k.lanes(first, stop):
            difference = x[n, c, p] - means[p - first]
            errors[p - first] = errors[p - first] + difference
            squares[p - first] = k.fma(difference, difference, squares[p - first])
    for p in k.lanes(first, stop):
        error = errors[p - first] / k.number(channels, dtype)
        scale = k.rsqrt(squares[p - first] / k.number(channels, dtype) - error * error + eps)
        squares[p - first] = scale
        errors[p - first] = -error * scale
    for c in k.range(channels):
        factor, term = w[c], b[c]
        for p in k.lanes(first, stop):
            y = k.fma(x[n, c, p] - means[p - first], squares[p - first], errors[p - first])
            out[n, c, p] = k.fma(y, factor, term)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    return (checked_channels("layer_norm_2d", specs, attrs),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, w, b = (a.astype(np.longdouble if a.dtype == np.float64 else np.float64) for a in inputs)
    difference = x - x.mean(1, keepdims=True)
    y = difference / np.sqrt((difference**2).mean(1, keepdims=True) + attrs.get("eps", 1e-5))
    one_each = (-1, *[1] * (x.ndim - 2))
    return (np.asarray(y * w.reshape(one_each) + b.reshape(one_each), np.float64),)


def _decompose(f: Any, x: Any, w: Any, b: Any, eps: float = 1e-5) -> Any:
    difference = x - f.mean(x, axes=1, keepdims=True)
    difference = difference - f.mean(difference, axes=1, keepdims=True)  # what rounding the first mean left
    y = difference / f.sqrt(f.mean(difference * difference, axes=1, keepdims=True) + eps)
    one_each = (x.shape[1], *[1] * (len(x.shape) - 2))
    return y * w.reshape(one_each) + b.reshape(one_each)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x = node.inputs[0]
    channels, pixels = x.bounds[1], prod(x.bounds[2:])
    shape = (x.bounds[0], channels, pixels)
    arrays = (ops.read(0, shape=shape), ops.read(1), ops.read(2), ops.write(0, shape=shape))
    constants = {"channels": channels, "pixels": pixels, "eps": node.attrs.get("eps", 1e-5), "block": BLOCK}
    grid = (ops.Cells(x.shape[0]), ops.Cells(pixels, per=BLOCK))
    sizes = ("channels", "pixels")
    return ops.Build((ops.Launch(one_block_of_pixels_per_program, arrays, grid, constants, sizes=sizes),))


def _samples() -> Iterable[ops.Sample]:
    for shape in ((2, 6, 3, 5), (1, 1, 1, 1), (3, 8), (1, 65, 4, 4), (2, 3, BLOCK + 1)):
        yield ops.Sample(f"{shape}", draw_channels(shape, f32))
    for dtype in (f64, f16, bf16):
        yield ops.Sample(f"{dtype.name}", draw_channels((2, 6, 3, 5), dtype))
    yield ops.Sample("about 100", draw_channels((2, 37, 3, 11), f32, 100.0), {"eps": 1e-3})
    full = ops.Sample("2 of 4", draw_channels((4, 6, 5, 3), f32))
    yield partly_active(full, 2, fixed=(1, 2))


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((2, 6, 3, 3), f32), TensorSpec((6,), f32)
    yield ops.ErrorSample((x, w), {}, "wanted x ")
    yield ops.ErrorSample((TensorSpec((6,), f32), w, w), {}, "wanted x ")
    yield ops.ErrorSample((x, w, TensorSpec((5,), f32)), {}, r"wanted b of f32\[6\]")
    yield ops.ErrorSample((x, w, w), {"eps": 0.0}, "wanted eps above 0")


OP = ops.Op(
    name="layer_norm_2d",
    formula="y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w[c] + b[c] over channels of [N, C, ..]",
    parameters=Parameters("x w b", (Attribute("eps", "float", 1e-5),)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_block_of_pixels_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={**TO_TOLERANCE, "f64": 1e-28},
    flops=lambda node: 8.0 * prod(node.inputs[0].bounds),
    decompose=in_f32(_decompose),
)
