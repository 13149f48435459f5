"""Norms of [N, C, ..] with a weight and a bias per channel: a row for each op.

group_norm is over groups of channels (Wu and He, 2018), layer_norm_2d over the channels of each pixel, as in SAM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f16, f32, f64
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS, TO_TOLERANCE, expect_tensor, in_f32, partly_active
from camshaft.ops.norm.layer_norm import standardized
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

_EPS = Attribute("eps", "float", 1e-5)
# Pixels per program of layer_norm_2d: with 256 channels 128 KiB, which later passes read from the L2 cache.
BLOCK = 128


# --- group_norm ----------------------------------------------------------------------------------------------------------
@kernel
def one_group_per_program(
    k: Tracer, x: Array, w: Array, b: Array, out: Array, *, groups: int, channels: int, size: int, eps: float
) -> None:
    # y[r, c, i] = (x[r, c, i] - m[r]) / sqrt(v[r] + eps) * w[g, c] + b[g, c]; m, v: mean and variance of x[r]; r = n groups + g
    group = k.program(1)
    row = k.program(0) * groups + group
    mean, scale, shift = standardized(k, x, row, channels * size, eps)
    for c in k.range(channels):
        factor, term, first = w[group, c], b[group, c], c * size
        for i in k.lanes(size):
            y = k.fma(x[row, first + i] - mean, scale, shift)
            out[row, first + i] = k.fma(y, factor, term)


def _group_infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    x = _checked("group_norm", specs, attrs)
    groups = attrs.get("groups", 0)
    fits = type(groups) is int and groups > 0 and x.bounds[1] % groups == 0
    ops.expect(fits, "group_norm", f"groups {groups!r}", f"groups above 0 that divide the {x.bounds[1]} channels")
    return (x,)


def _group_reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, w, b = (a.astype(np.longdouble if a.dtype == np.float64 else np.float64) for a in inputs)
    rows = x.reshape(len(x), attrs["groups"], -1)
    difference = rows - rows.mean(-1, keepdims=True)
    y = difference / np.sqrt((difference**2).mean(-1, keepdims=True) + attrs.get("eps", 1e-5))
    one_each = (-1, *[1] * (x.ndim - 2))
    return (np.asarray(y.reshape(x.shape) * w.reshape(one_each) + b.reshape(one_each), np.float64),)


def _group_decompose(f: Any, x: Any, w: Any, b: Any, groups: int, eps: float = 1e-5) -> Any:
    n, channels, size = x.shape[0], x.shape[1] // groups, prod(x.shape[2:])
    rows = x.reshape((n, groups, channels * size))
    difference = rows - f.mean(rows, axes=-1, keepdims=True)
    difference = difference - f.mean(difference, axes=-1, keepdims=True)  # corrects the rounding of the first mean
    y = difference / f.sqrt(f.mean(difference * difference, axes=-1, keepdims=True) + eps)
    by_channel = y.reshape((n, groups * channels, size)) * w.reshape((x.shape[1], 1)) + b.reshape((x.shape[1], 1))
    return by_channel.reshape(x.shape)


def _group_build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, groups = node.inputs[0], node.attrs["groups"]
    channels, size = x.bounds[1] // groups, prod(x.bounds[2:])
    flat, weights = (x.bounds[0] * groups, channels * size), (groups, channels)
    arrays = (ops.read(0, shape=flat), *(ops.read(i, shape=weights) for i in (1, 2)), ops.write(0, shape=flat))
    constants = {"groups": groups, "channels": channels, "size": size, "eps": node.attrs.get("eps", 1e-5)}
    grid = (ops.Cells(x.shape[0]), ops.Cells(groups))
    sizes = ("groups", "channels", "size")
    return ops.Build((ops.Launch(one_group_per_program, arrays, grid, constants, sizes=sizes),))


def _group_samples() -> Iterable[ops.Sample]:
    for shape, groups in (((2, 6, 3, 5), 3), ((1, 4, 1, 1), 4), ((3, 8), 2), ((1, 4, 7, 9), 1), ((2, 32, 33), 32)):
        yield ops.Sample(f"{shape} in {groups}", _draw(shape, f32), {"groups": groups})
    for dtype in (f64, f16, bf16):
        yield ops.Sample(f"{dtype.name}", _draw((2, 6, 3, 5), dtype), {"groups": 2})
    yield ops.Sample("about 100", _draw((2, 4, 9, 11), f32, 100.0), {"groups": 2, "eps": 1e-3})
    full = ops.Sample("2 of 4", _draw((4, 6, 5, 3), f32), {"groups": 3})
    yield partly_active(full, 2, fixed=(1, 2))


def _group_error_samples() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((2, 6, 3, 3), f32), TensorSpec((6,), f32)
    yield ops.ErrorSample((x, w), {"groups": 2}, "wanted x ")
    yield ops.ErrorSample((x, w, TensorSpec((5,), f32)), {"groups": 2}, r"wanted b of f32\[6\]")
    yield ops.ErrorSample((x, w, w), {"groups": 4}, "wanted groups above 0 that divide the 6 channels")
    yield ops.ErrorSample((x, w, w), {}, "wanted groups above 0")
    yield ops.ErrorSample((x, w, w), {"groups": 2, "eps": 0.0}, "wanted eps above 0")


# --- layer_norm_2d -------------------------------------------------------------------------------------------------------
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


def _pixel_infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    return (_checked("layer_norm_2d", specs, attrs),)


def _pixel_reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, w, b = (a.astype(np.longdouble if a.dtype == np.float64 else np.float64) for a in inputs)
    difference = x - x.mean(1, keepdims=True)
    y = difference / np.sqrt((difference**2).mean(1, keepdims=True) + attrs.get("eps", 1e-5))
    one_each = (-1, *[1] * (x.ndim - 2))
    return (np.asarray(y * w.reshape(one_each) + b.reshape(one_each), np.float64),)


def _pixel_decompose(f: Any, x: Any, w: Any, b: Any, eps: float = 1e-5) -> Any:
    difference = x - f.mean(x, axes=1, keepdims=True)
    difference = difference - f.mean(difference, axes=1, keepdims=True)  # corrects the rounding of the first mean
    y = difference / f.sqrt(f.mean(difference * difference, axes=1, keepdims=True) + eps)
    one_each = (x.shape[1], *[1] * (len(x.shape) - 2))
    return y * w.reshape(one_each) + b.reshape(one_each)


def _pixel_build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x = node.inputs[0]
    channels, pixels = x.bounds[1], prod(x.bounds[2:])
    shape = (x.bounds[0], channels, pixels)
    arrays = (ops.read(0, shape=shape), ops.read(1), ops.read(2), ops.write(0, shape=shape))
    constants = {"channels": channels, "pixels": pixels, "eps": node.attrs.get("eps", 1e-5), "block": BLOCK}
    grid = (ops.Cells(x.shape[0]), ops.Cells(pixels, per=BLOCK))
    sizes = ("channels", "pixels")
    return ops.Build((ops.Launch(one_block_of_pixels_per_program, arrays, grid, constants, sizes=sizes),))


def _pixel_samples() -> Iterable[ops.Sample]:
    for shape in ((2, 6, 3, 5), (1, 1, 1, 1), (3, 8), (1, 65, 4, 4), (2, 3, BLOCK + 1)):
        yield ops.Sample(f"{shape}", _draw(shape, f32))
    for dtype in (f64, f16, bf16):
        yield ops.Sample(f"{dtype.name}", _draw((2, 6, 3, 5), dtype))
    yield ops.Sample("about 100", _draw((2, 37, 3, 11), f32, 100.0), {"eps": 1e-3})
    full = ops.Sample("2 of 4", _draw((4, 6, 5, 3), f32))
    yield partly_active(full, 2, fixed=(1, 2))


def _pixel_error_samples() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((2, 6, 3, 3), f32), TensorSpec((6,), f32)
    yield ops.ErrorSample((x, w), {}, "wanted x ")
    yield ops.ErrorSample((TensorSpec((6,), f32), w, w), {}, "wanted x ")
    yield ops.ErrorSample((x, w, TensorSpec((5,), f32)), {}, r"wanted b of f32\[6\]")
    yield ops.ErrorSample((x, w, w), {"eps": 0.0}, "wanted eps above 0")


# --- both ----------------------------------------------------------------------------------------------------------------
def _checked(op: str, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> TensorSpec:
    """Returns x of the inputs x [N, C, ..], w [C] and b [C]. ShapeError for others, or an eps that is not above 0."""
    ops.expect(len(specs) == 3, op, specs, "x [N, C, ..], w [C], b [C]")
    x, *others = specs
    expect_tensor(op, x, FLOATS)
    ops.expect(len(x.shape) > 1, op, x, "x [N, C, ..]")
    for name, spec in zip("wb", others, strict=True):
        want = TensorSpec(x.shape[1:2], as_dtype(x.dtype))
        ops.expect(spec == want, op, spec, f"{name} of {want}")
    eps = attrs.get("eps", 1e-5)
    ops.expect(eps > 0, op, eps, "eps above 0")
    return x


def _draw(shape: tuple[int, ...], dtype: DType, mean: float = 0.0) -> tuple[ops.Array, ...]:
    """Normal x of that shape around the mean, w and b."""
    rng = np.random.default_rng(sum(shape))
    drawn = mean + rng.normal(size=shape), *(rng.normal(size=shape[1]) for _ in range(2))
    return tuple(a.astype(dtype.numpy) for a in drawn)


OPS = {
    op.name: op
    for op in (
        ops.Op(
            name="group_norm",
            formula="y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w[c] + b[c] over each group of channels of [N, C, ..]",
            parameters=Parameters("x w b", (Attribute("groups", "int"), _EPS)),
            infer=_group_infer,
            reference=_group_reference,
            variants=(ops.KernelVariant("one_group_per_program", ops.EVERYWHERE, _group_build),),
            samples=_group_samples,
            error_samples=_group_error_samples,
            tolerance={**TO_TOLERANCE, "f64": 1e-28},
            flops=lambda node: 8.0 * prod(node.inputs[0].bounds),
            decompose=in_f32(_group_decompose),
        ),
        ops.Op(
            name="layer_norm_2d",
            formula="y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w[c] + b[c] over channels of [N, C, ..]",
            parameters=Parameters("x w b", (_EPS,)),
            infer=_pixel_infer,
            reference=_pixel_reference,
            variants=(ops.KernelVariant("one_block_of_pixels_per_program", ops.EVERYWHERE, _pixel_build),),
            samples=_pixel_samples,
            error_samples=_pixel_error_samples,
            tolerance={**TO_TOLERANCE, "f64": 1e-28},
            flops=lambda node: 8.0 * prod(node.inputs[0].bounds),
            decompose=in_f32(_pixel_decompose),
        ),
    )
}
