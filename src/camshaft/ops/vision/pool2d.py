"""pool2d: the maximum or the average of each window over the last two axes of x [N, C, H, W].

Padding never is a maximum. An average divides by the elements of a window, padding included, or with include_pad=False by those
that are in x, as torch's count_include_pad. f16 and bf16 are computed in f32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DTYPES, DType, as_dtype, bf16, f16, f32, f64
from camshaft.lang import Array, Constant, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS, in_f32, rounded, widened
from camshaft.ops.kernels import blocks
from camshaft.ops.movement.moved import check_attributes
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision.windows import (
    DILATION,
    PADDING,
    Windows,
    expect_images,
    padded_array,
    padded_input,
    tap,
    views,
    windows_of,
)  # fmt: skip

BLOCK, UNROLL = 1024, 8
_FILL = {"max": -np.inf, "average": 0.0}
_ATTRIBUTES = (
    Attribute("kernel", "int | tuple[int, int]"),
    Attribute("mode", "str", "max"),
    Attribute("stride", "int | tuple[int, int] | None", None),
    PADDING,
    DILATION,
    Attribute("include_pad", "bool", True),
)


@kernel
def pooled(
    k: Tracer, x: Array, out: Array, *, mode: str, include_pad: bool, height: int, width: int, kernel: tuple[int, int],
    stride: tuple[int, int], dilation: tuple[int, int], before: tuple[int, int], inside: tuple[int, int], out_rows: int,
    out_columns: int, block: int, dtype: str,
) -> None:  # fmt: skip
    # out[p, i, j] = max or average over (r, s) of x[p, i stride + r dilation, j stride + s dilation], of the padded x
    plane, i, first = k.program(0), k.program(1), k.program(2) * block
    stop, wide = k.minimum(first + block, out_columns), DTYPES[dtype]
    found = k.scratch(wide, block)
    for j in k.lanes(first, stop):
        found[j - first] = k.const(_FILL[mode], wide)
    for r in k.range(kernel[0]):
        start = (plane * height + i * stride[0] + r * dilation[0]) * width

        def fold(s: Value | int, n: int, start: Value = start) -> None:
            for j in k.lanes(first, stop):
                total = found[j - first]
                for t in range(n):
                    place = start + (s + t) * dilation[1]
                    value = x[place + j] if stride[1] == 1 else k.gather(x, j * stride[1] + place)
                    total = k.maximum(total, value) if mode == "max" else total + value
                found[j - first] = total

        full = kernel[1] // UNROLL * UNROLL
        for s in k.range(0, full, UNROLL):
            fold(s, UNROLL)
        if full < kernel[1]:
            fold(full, kernel[1] - full)

    def count(at: Value, axis: int) -> Value:
        low = at * stride[axis] - before[axis]
        return (k.minimum(low + kernel[axis], inside[axis]) - k.maximum(low, 0)).to(wide)

    rows = count(i, 0)
    for j in k.lanes(first, stop):
        total = found[j - first]
        if mode == "average":
            total = total / (float(kernel[0] * kernel[1]) if include_pad else rows * count(j, 1))
        out[(plane * out_rows + i) * out_columns + j] = total


def _windows(x: Sequence[int], attrs: ops.Attrs) -> Windows:
    size = attrs.get("kernel")
    return windows_of("pool2d", x[2:], size, {**attrs, "stride": attrs.get("stride") or size})


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "pool2d", specs, "one tensor x [N, C, H, W]")
    check_attributes("pool2d", attrs, " ".join(a.name for a in _ATTRIBUTES))
    expect_images("pool2d", specs, FLOATS, "[N, C, H, W]", 4)
    mode, include = attrs.get("mode", "max"), attrs.get("include_pad", True)
    ops.expect(mode in _FILL, "pool2d", f"mode {mode!r}", " or ".join(_FILL))
    ops.expect(isinstance(include, bool), "pool2d", f"include_pad {include!r}", "True or False")
    w = _windows(specs[0].bounds, attrs)
    fits = all(2 * max(pair) <= n for pair, n in zip(w.padding, w.reach, strict=True))
    ops.expect(fits, "pool2d", f"padding {w.padding} of windows {w.kernel}", "at most half a window")
    ops.expect(mode == "max" or set(w.dilation) == {1}, "pool2d", f"dilation {w.dilation}", "1 for averages")
    return (TensorSpec((*specs[0].shape[:2], *w.places), specs[0].dtype),)


def _counts(w: Windows) -> ops.Array:
    """The elements of x in each window."""
    ones = padded_array(np.ones(w.sizes), w)
    return np.asarray(views(ones, w).sum((-2, -1)))


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    (x,), mode = inputs, attrs.get("mode", "max")
    w = _windows(x.shape, attrs)
    with np.errstate(invalid="ignore"):
        seen = views(padded_array(widened(x), w, _FILL[mode]), w)
        counts = prod(w.kernel) if attrs.get("include_pad", True) else _counts(w)
        y = seen.max((-2, -1)) if mode == "max" else seen.sum((-2, -1)) / counts
    return (rounded(y, as_dtype(x.dtype)),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (x,), mode = node.inputs, node.attrs.get("mode", "max")
    w = _windows(x.bounds, node.attrs)
    launches, padded, scratch = padded_input(x, w, _FILL[mode])
    block = blocks.even_block(w.places[1], BLOCK)
    constants: dict[str, Constant] = {
        "mode": mode,
        "include_pad": node.attrs.get("include_pad", True),
        "height": w.padded[0],
        "width": w.padded[1],
        "kernel": w.kernel,
        "stride": w.stride,
        "dilation": w.dilation,
        "before": tuple(pair[0] for pair in w.padding),
        "inside": w.sizes,
        "out_rows": w.places[0],
        "out_columns": w.places[1],
        "block": block,
        "dtype": "f64" if x.dtype == f64 else "f32",
    }
    grid = ops.Cells(prod(x.bounds[:2])), ops.Cells(w.places[0]), ops.Cells(w.places[1], per=block)
    out = ops.write(0, shape=(prod(node.outputs[0].bounds),))
    return ops.Build((*launches, ops.Launch(pooled, (padded, out), grid, constants)), scratch)


def _decompose(f: Any, x: Any, **attrs: Any) -> Any:
    mode = attrs.get("mode", "max")
    w = _windows(x.shape, attrs)
    widths = ((0, 0), (0, 0), *w.padding)
    seen = f.pad(x, pad_width=widths, constant_values=_FILL[mode]) if w.is_padded else x
    first, *others = (tap(f, seen, w, at) for at in product(*map(range, w.kernel)))
    for part in others:
        first = f.maximum(first, part) if mode == "max" else first + part
    if mode == "max":
        return first
    counts = np.full(w.places, prod(w.kernel)) if attrs.get("include_pad", True) else _counts(w)
    return first / counts.astype(x.dtype.numpy)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(47)

    def draw(shape: tuple[int, ...], dtype: DType = f32) -> ops.Array:
        return rng.normal(size=shape).astype(dtype.numpy)

    cases: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
        ((2, 3, 8, 34), {"kernel": 2}),
        ((1, 2, 7, 19), {"kernel": 3, "stride": 2, "padding": 1}),
        ((1, 2, 7, 9), {"kernel": (3, 2), "stride": 2, "padding": (1, 1), "mode": "average", "include_pad": False}),
        ((1, 2, 6, 9), {"kernel": 3, "stride": 1, "padding": 1, "mode": "average"}),
        ((1, 3, 7, 17), {"kernel": (7, 17), "mode": "average"}),
        ((1, 1, 7, 9), {"kernel": 2, "dilation": (2, 3), "stride": 1}),
    )
    for shape, attrs in cases:
        yield ops.Sample(f"{shape} {attrs}", (draw(shape),), attrs)
    for dtype in (f64, f16, bf16):
        attrs = {"kernel": 2, "mode": "average"}
        yield ops.Sample(f"of {dtype.name}", (draw((1, 2, 4, 6), dtype),), attrs)
    x = draw((1, 1, 4, 6))
    x[0, 0, 0, 0], x[0, 0, 0, 4] = -np.inf, np.inf
    yield ops.Sample("infinities", (x,), {"kernel": 2, "padding": 1, "stride": 1})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((1, 4, 5, 5), f32)
    yield ops.ErrorSample((x, x), {"kernel": 2}, "wanted one tensor x")
    yield ops.ErrorSample((x,), {}, "got kernel None; wanted an integer of 1 or more")
    yield ops.ErrorSample((x,), {"kernel": 6}, "wanted no window larger than the padded x")
    yield ops.ErrorSample((x,), {"kernel": 3, "padding": 2}, "wanted at most half a window")
    yield ops.ErrorSample((x,), {"kernel": 2, "mode": "min"}, "wanted max or average")
    yield ops.ErrorSample((x,), {"kernel": 2, "mode": "average", "dilation": 2}, "wanted 1 for averages")


OP = ops.Op(
    name="pool2d",
    formula="y[n, c, i, j] = max or average over (r, s) of x[n, c, i stride + r dilation, j stride + s dilation]",
    parameters=Parameters("x", _ATTRIBUTES),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("row_blocks", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12, "f64": 1e-29, "f16": 1e-7, "bf16": 1e-5},
    flops=lambda node: float(prod(_windows(node.inputs[0].bounds, node.attrs).kernel) * prod(node.outputs[0].bounds)),
    decompose=in_f32(_decompose),
)
