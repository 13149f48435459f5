"""resize_nearest, resize_bilinear and resize_bicubic of the last two axes of x, [.., H, W].

The weights are torch's: centers of pixels at i + 1/2; where x shrinks and `antialias` is set, the filter is as many times wider
(a triangle of support max(1, 1 / scale), for bicubic Keys' cubic of a = -1/2) and its weights are normalized. Without it bicubic
has a = -3/4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f16, f32, f64, u8
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY, FLOATS, in_f32, rounded, widened
from camshaft.ops.movement.moved import check_attributes, composite
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision.resample import rows_of
from camshaft.ops.vision.windows import each, expect_images

_SIZE = Attribute("size", "tuple[int, int]")
_ANTIALIAS, _CORNERS = Attribute("antialias", "bool", True), Attribute("align_corners", "bool", False)
Taps = tuple[ops.Array, ops.Array]
Filter = Callable[[ops.Array], ops.Array]


# --- weights -------------------------------------------------------------------------------------------------------------
def _triangle(x: ops.Array) -> ops.Array:
    return np.asarray(np.maximum(1 - np.abs(x), 0))


def _cubic(a: float, x: ops.Array) -> ops.Array:
    """Keys' cubic, from Cubic Convolution Interpolation for Digital Image Processing (1981)."""
    x = np.abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _wide_taps(n: int, size: int, support: float, filter: Filter) -> Taps:
    """The first element and the normalized weights of each result, the filter stretched where x shrinks."""
    scale = n / size
    stretch = max(scale, 1.0)
    centers = scale * (np.arange(size) + 0.5)
    first = np.maximum((centers - support * stretch + 0.5).astype(np.int64), 0)
    last = np.minimum((centers + support * stretch + 0.5).astype(np.int64), n)
    taps = int((last - first).max())
    places = first[:, None] + np.arange(taps)
    found = np.where(places < last[:, None], filter((places - centers[:, None] + 0.5) / stretch), 0)
    return _in_bounds(places, found / found.sum(1, keepdims=True), n)


def _near_taps(n: int, size: int, reach: int, corners: bool, filter: Filter) -> Taps:
    """The same without antialiasing: 2 `reach` elements around each place, of which those outside of x repeat its edge."""
    i = np.arange(size)
    places = i * ((n - 1) / (size - 1) if size > 1 else 0.0) if corners else (i + 0.5) * n / size - 0.5
    if reach == 1:
        places = np.clip(places, 0, n - 1)
    around = np.floor(places).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    return _in_bounds(around, filter(around - places[:, None]), n)


def _in_bounds(places: ops.Array, weights: ops.Array, n: int) -> Taps:
    """Weights of consecutive elements of x, those of places outside of it added to its edges."""
    inside = np.clip(places, 0, n - 1)
    taps = min(places.shape[1], n)
    first = np.clip(inside[:, 0], 0, n - taps)
    made = np.zeros((len(places), taps))
    np.add.at(made, (np.arange(len(places))[:, None], np.minimum(inside - first[:, None], taps - 1)), weights)
    return first.astype(np.int32), made


# Op -> (support, filter with antialiasing, filter without).
_FILTERS: dict[str, tuple[int, Filter, Filter]] = {
    "resize_bilinear": (1, _triangle, _triangle),
    "resize_bicubic": (2, partial(_cubic, -0.5), partial(_cubic, -0.75)),
}


def _taps(op: str, n: int, size: int, attrs: ops.Attrs) -> Taps:
    support, wide, near = _FILTERS[op]
    if attrs.get("antialias", True):
        return _wide_taps(n, size, support, wide)
    return _near_taps(n, size, support, attrs.get("align_corners", False), near)


# --- resize --------------------------------------------------------------------------------------------------------------
def _infer_resize(op: str, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, op, specs, "one tensor x [.., H, W]")
    check_attributes(op, attrs, "size antialias align_corners")
    expect_images(op, specs, FLOATS, "[.., H, W]", max(len(specs[0].shape), 2))
    size = each(op, "size", attrs.get("size"), 2)
    flags = attrs.get("antialias", True), attrs.get("align_corners", False)
    ops.expect(all(isinstance(flag, bool) for flag in flags), op, flags, "antialias and align_corners True or False")
    ops.expect(flags != (True, True), op, "antialias with align_corners", "one of the two")
    return (TensorSpec((*specs[0].shape[:-2], *size), specs[0].dtype),)


def _reference_resize(op: str, inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    y, dtype = widened(inputs[0]), as_dtype(inputs[0].dtype)
    for axis, size in zip((-1, -2), reversed(each(op, "size", attrs["size"], 2)), strict=True):
        first, weights = _taps(op, y.shape[axis], size, attrs)
        seen = np.take(np.moveaxis(y, axis, 0), rows_of(y, first, weights.shape[1], axis), 0)
        y = np.moveaxis(np.einsum("it,it...->i...", weights.astype(y.dtype), seen), 0, axis)
    return (rounded(y, dtype),)


def _decompose_resize(op: str, f: Any, x: Any, **attrs: Any) -> Any:
    for axis, size in zip((-1, -2), reversed(each(op, "size", attrs["size"], 2)), strict=True):
        first, weights = _taps(op, x.shape[axis], size, attrs)
        x = f.resample(x, first, weights.astype(x.dtype.numpy), axis=axis)
    return x


def _scales(attrs: ops.Attrs) -> tuple[int, ...]:
    return each("resize_nearest", "scale", attrs.get("scale"), 2)


def _infer_nearest(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "resize_nearest", specs, "one tensor x [.., H, W]")
    check_attributes("resize_nearest", attrs, "scale")
    expect_images("resize_nearest", specs, EVERY, "[.., H, W]", max(len(specs[0].shape), 2))
    sizes = (n * s for n, s in zip(specs[0].bounds[-2:], _scales(attrs), strict=True))
    return (TensorSpec((*specs[0].shape[:-2], *sizes), specs[0].dtype),)


def _decompose_nearest(f: Any, x: Any, scale: int | tuple[int, int]) -> Any:
    (down, across), (rows, columns), lead = _scales({"scale": scale}), x.shape[-2:], tuple(x.shape[:-2])
    apart = x.reshape((*lead, rows, 1, columns, 1))
    wide = f.broadcast_to(apart, shape=(*lead, rows, down, columns, across))
    return wide.reshape((*lead, rows * down, columns * across))


def _nearest_reference(x: ops.Array, scale: int | tuple[int, int]) -> ops.Array:
    down, across = _scales({"scale": scale})
    return np.repeat(np.repeat(x, down, -2), across, -1)


# --- samples ------------------------------------------------------------------------------------------------------------
def _draw(shape: tuple[int, ...], dtype: DType = f32, seed: int = 51) -> ops.Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype.numpy)


def _samples_resize() -> Iterable[ops.Sample]:
    cases: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
        ((1, 2, 12, 15), {"size": (5, 4)}),
        ((3, 5, 4), {"size": (9, 17)}),
        ((1, 1, 9, 8), {"size": (4, 20), "antialias": False}),
        ((5, 4), {"size": (9, 7), "antialias": False, "align_corners": True}),
        ((2, 1, 3), {"size": 2}),
    )
    for shape, attrs in cases:
        yield ops.Sample(f"{shape} {attrs}", (_draw(shape),), attrs)
    for dtype in (f64, f16, bf16):
        yield ops.Sample(f"of {dtype.name}", (_draw((2, 6, 5), dtype),), {"size": (3, 7)})


def _errors_resize() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8, 8), f32)
    yield ops.ErrorSample((x, x), {"size": 4}, "wanted one tensor x")
    yield ops.ErrorSample((x,), {}, "got size None; wanted an integer of 1 or more, or 2")
    yield ops.ErrorSample((x,), {"size": (0, 3)}, "wanted an integer of 1 or more")
    yield ops.ErrorSample((x,), {"size": 4, "align_corners": True}, "wanted one of the two")
    yield ops.ErrorSample((TensorSpec((8,), f32),), {"size": 4}, "H, W")


def _samples_nearest() -> Iterable[ops.Sample]:
    for shape, scale in (((1, 2, 3, 5), 2), ((3, 4), (1, 3)), ((2, 3, 17), (3, 1))):
        yield ops.Sample(f"{shape} by {scale}", (_draw(shape),), {"scale": scale})
    for dtype in (f64, bf16, u8):
        yield ops.Sample(f"of {dtype.name}", (np.abs(9 * _draw((2, 3, 4))).astype(dtype.numpy),), {"scale": 2})


def _errors_nearest() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8, 8), f32)
    yield ops.ErrorSample((x,), {"scale": 0.5}, "got scale 0.5; wanted an integer of 1 or more")
    yield ops.ErrorSample((TensorSpec((8,), f32),), {"scale": 2}, "H, W")


def _resize(name: str, formula: str) -> ops.Op:
    return ops.Op(
        name=name,
        formula=formula,
        parameters=Parameters("x", (_SIZE, _ANTIALIAS, _CORNERS)),
        infer=partial(_infer_resize, name),
        reference=partial(_reference_resize, name),
        samples=_samples_resize,
        error_samples=_errors_resize,
        tolerance={"f32": 1e-12, "f64": 1e-29, "f16": 1e-7, "bf16": 1e-5},
        decompose=in_f32(partial(_decompose_resize, name)),
    )


OPS = {
    "resize_nearest": composite(
        "resize_nearest",
        "y[.., i, j] = x[.., floor(i / scale), floor(j / scale)]",
        Parameters("x", (Attribute("scale", "int | tuple[int, int]"),)),
        _infer_nearest,
        _nearest_reference,
        _decompose_nearest,
        _samples_nearest,
        _errors_nearest,
    ),
    "resize_bilinear": _resize("resize_bilinear", "y = x resized to `size` by triangle filters, wider where x shrinks"),
    "resize_bicubic": _resize("resize_bicubic", "y = x resized to `size` by cubic filters, wider where x shrinks"),
}
