"""conv1d and conv_transpose2d, by conv2d.

conv1d is conv2d of one row. conv_transpose2d with stride s is the conv2d without stride whose channels are the s x s results
between two elements of x, which are then put beside each other: no product with a zero that stands for a stride.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f32, f64
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS, rounded, widened
from camshaft.ops.movement.moved import check_attributes, expect_whole
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision import conv2d
from camshaft.ops.vision.windows import (
    DILATION,
    GROUPS,
    PADDING,
    STRIDE,
    Windows,
    conv_of,
    each,
    expect_images,
    paddings,
)  # fmt: skip

_AFTER = Attribute("output_padding", "int | tuple[int, int]", 0)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType = f32) -> ops.Array:
    return rng.normal(size=shape).astype(dtype.numpy)


# --- conv1d --------------------------------------------------------------------------------------------------------------
def _row_attrs(attrs: ops.Attrs) -> dict[str, Any]:
    """The attributes of the conv2d of one row."""
    ((before, after),) = paddings("conv1d", attrs.get("padding", 0), 1)
    return {
        "stride": (1, *each("conv1d", "stride", attrs.get("stride", 1), 1)),
        "dilation": (1, *each("conv1d", "dilation", attrs.get("dilation", 1), 1)),
        "padding": ((0, 0), (before, after)),
        "groups": attrs.get("groups", 1),
    }


def _row(spec: TensorSpec) -> TensorSpec:
    return TensorSpec((*spec.shape[:-1], 1, spec.shape[-1]), spec.dtype)


def _infer_1d(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "conv1d", specs, "x [N, C, L] and w [O, C / groups, K]")
    check_attributes("conv1d", attrs, "stride padding dilation groups")
    expect_images("conv1d", specs, FLOATS, "of three axes", 3)
    c = conv_of([_row(spec) for spec in specs], _row_attrs(attrs), "conv1d")
    return (TensorSpec((c.images, c.groups * c.per_group, c.windows.places[1]), specs[0].dtype),)


def _reference_1d(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    (y,) = conv2d.OP.reference([a[..., None, :] for a in inputs], _row_attrs(attrs))
    return (y[..., 0, :],)


def _decompose_1d(f: Any, x: Any, w: Any, **attrs: Any) -> Any:
    rows = (t.reshape((*t.shape[:-1], 1, t.shape[-1])) for t in (x, w))
    y = f.conv2d(*rows, **_row_attrs(attrs))
    return y.reshape((*y.shape[:-2], y.shape[-1]))


def _samples_1d() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(49)
    cases: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
        ((2, 3, 19), (5, 3, 3), {"padding": 1}),
        ((1, 4, 20), (4, 2, 5), {"stride": 2, "groups": 2, "dilation": 2, "padding": ((3, 1),)}),
    )
    for x, w, attrs in cases:
        yield ops.Sample(f"{x} by {w} {attrs}", (_draw(rng, x), _draw(rng, w)), attrs)
    yield ops.Sample("of bf16", (_draw(rng, (1, 2, 9), bf16), _draw(rng, (3, 2, 2), bf16)))


def _errors_1d() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((1, 4, 9), f32), TensorSpec((6, 4, 3), f32)
    yield ops.ErrorSample((x,), {}, "wanted x")
    yield ops.ErrorSample((x, TensorSpec((6, 3, 3), f32)), {}, "wanted w with 4 channels per group")
    yield ops.ErrorSample((x, w), {"stride": (1, 1)}, "wanted an integer of 1 or more")
    yield ops.ErrorSample((x, TensorSpec((6, 4, 10), f32)), {}, "wanted no window larger than the padded x")


# --- conv_transpose2d ----------------------------------------------------------------------------------------------------
def _transposed(specs: Sequence[TensorSpec], attrs: ops.Attrs) -> tuple[Windows, int, tuple[int, ...]]:
    """The windows of the convolution from the result to x, the groups, and the sizes of the result."""
    name, (x, w) = "conv_transpose2d", (spec.bounds for spec in specs)
    groups = expect_whole(name, "groups", attrs.get("groups", 1))
    fits = x[1] % groups == 0 and w[0] == x[1]
    ops.expect(fits, name, tuple(specs), f"w [{x[1]}, O / groups, R, S] and groups that divide {x[1]}")
    after = each(name, "output_padding", attrs.get("output_padding", 0), 2, least=0)
    m = Windows(
        tuple(x[2:]),
        tuple(w[2:]),
        each(name, "stride", attrs.get("stride", 1), 2),
        each(name, "dilation", attrs.get("dilation", 1), 2),
        paddings(name, attrs.get("padding", 0), 2),
    )
    steps = zip(m.sizes, m.stride, m.reach, m.padding, after, strict=True)
    sizes = tuple((n - 1) * s + r - sum(pair) + more for n, s, r, pair, more in steps)
    limits = (max(s, d) for s, d in zip(m.stride, m.dilation, strict=True))
    ops.expect(
        all(a < n for a, n in zip(after, limits, strict=True)),
        name,
        f"output_padding {after}",
        "less than stride or dilation",
    )
    ops.expect(min(sizes) > 0, name, f"padding {m.padding}", "less, so that the result has elements")
    return m, groups, sizes


def _infer_transposed(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "conv_transpose2d", specs, "x [N, C, H, W] and w [C, O / groups, R, S]")
    check_attributes("conv_transpose2d", attrs, "stride padding output_padding dilation groups")
    expect_images("conv_transpose2d", specs, FLOATS, "of four axes", 4)
    _, groups, sizes = _transposed(specs, attrs)
    return (TensorSpec((specs[0].shape[0], groups * specs[1].bounds[1], *sizes), specs[0].dtype),)


def _reference_transposed(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    """Each element of x adds its share of w to the result."""
    x, w = map(widened, inputs)
    m, groups, sizes = _transposed([TensorSpec(a.shape, as_dtype(a.dtype)) for a in inputs], attrs)
    grouped = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    shares = np.einsum("ngcij,gcors->ngoijrs", grouped, w.reshape(groups, -1, *w.shape[1:]))
    shares = shares.reshape(x.shape[0], -1, *shares.shape[3:])
    whole = [
        max(p[0] + n, (k - 1) * s + r)
        for p, n, k, s, r in zip(m.padding, sizes, m.sizes, m.stride, m.reach, strict=True)
    ]
    y = np.zeros((*shares.shape[:2], *whole), x.dtype)
    for r in range(m.kernel[0]):
        for c in range(m.kernel[1]):
            at = (r * m.dilation[0], c * m.dilation[1])
            cuts: list[Any] = [slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(at, m.sizes, m.stride, strict=True)]
            y[(..., *cuts)] += shares[..., r, c]
    (top, _), (left, _) = m.padding
    return (rounded(y[..., top : top + sizes[0], left : left + sizes[1]], as_dtype(inputs[0].dtype)),)


def _stretched(f: Any, w: Any, gaps: Sequence[int]) -> Any:
    """w with gap - 1 zeros between its elements along the last two axes."""
    rows, columns = w.shape[-2:]
    lead = tuple(w.shape[:-2])
    apart = w.reshape((*lead, rows, 1, columns, 1))
    widths = (*((0, 0),) * (len(lead) + 1), (0, gaps[0] - 1), (0, 0), (0, gaps[1] - 1))
    wide = f.pad(apart, pad_width=widths).reshape((*lead, rows * gaps[0], columns * gaps[1]))
    return wide[..., : (rows - 1) * gaps[0] + 1, : (columns - 1) * gaps[1] + 1]


def _decompose_transposed(f: Any, x: Any, w: Any, **attrs: Any) -> Any:
    """result[q s + p] = sum_u x[q - u] w[u s + p]: for all p together one convolution, with the elements of w reversed."""
    m, groups, sizes = _transposed((x.spec, w.spec), attrs)
    gaps = m.dilation
    if max(m.stride) > 1 and max(gaps) > 1:
        w, gaps = _stretched(f, w, gaps), (1, 1)
    (sy, sx), (rows, columns) = m.stride, w.shape[-2:]
    u, v = -(-rows // sy), -(-columns // sx)
    c, o = w.shape[0] // groups, w.shape[1]
    if (u * sy, v * sx) != (rows, columns):
        w = f.pad(w, pad_width=((0, 0), (0, 0), (0, u * sy - rows), (0, v * sx - columns)))
    split = f.transpose(w.reshape((groups, c, o, u, sy, v, sx)), axes=(0, 2, 4, 6, 1, 3, 5))
    kernels = split.reshape((groups * o * sy * sx, c, u, v))[:, :, ::-1, ::-1]
    starts = [pair[0] for pair in m.padding]
    counts = [-(-(a + n) // s) for a, n, s in zip(starts, sizes, m.stride, strict=True)]
    reach = (u - 1) * gaps[0], (v - 1) * gaps[1]
    widths = tuple((r, count - n) for r, count, n in zip(reach, counts, m.sizes, strict=True))
    seen = f.pad(x, pad_width=((0, 0), (0, 0), *widths)) if any(map(any, widths)) else x
    y = f.conv2d(seen, kernels, dilation=gaps, groups=groups)
    y = y.reshape((x.shape[0], groups * o, sy, sx, *counts))
    if sy * sx > 1:
        y = f.transpose(y, axes=(0, 1, 4, 2, 5, 3))
    y = y.reshape((x.shape[0], groups * o, counts[0] * sy, counts[1] * sx))
    return y[:, :, starts[0] : starts[0] + sizes[0], starts[1] : starts[1] + sizes[1]]


def _samples_transposed() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(50)
    cases: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
        ((1, 2, 4, 5), (2, 3, 3, 3), {}),
        ((2, 3, 4, 5), (3, 2, 4, 4), {"stride": 2, "padding": 1}),
        ((1, 4, 3, 4), (4, 3, 3, 2), {"stride": (3, 2), "groups": 2, "output_padding": (1, 0), "padding": (1, 0)}),
        ((1, 2, 4, 3), (2, 2, 3, 2), {"stride": 2, "dilation": 3, "output_padding": 2, "padding": (2, 1)}),
        ((1, 2, 6, 5), (2, 2, 3, 3), {"dilation": 2, "padding": (3, 4)}),
        ((1, 1, 2, 3), (1, 1, 1, 1), {"stride": 3}),
    )
    for x, w, attrs in cases:
        yield ops.Sample(f"{x} by {w} {attrs}", (_draw(rng, x), _draw(rng, w)), attrs)
    for dtype in (f64, bf16):
        yield ops.Sample(
            f"of {dtype.name}", (_draw(rng, (1, 2, 3, 4), dtype), _draw(rng, (2, 3, 2, 2), dtype)), {"stride": 2}
        )


def _errors_transposed() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((1, 4, 5, 5), f32), TensorSpec((4, 6, 3, 3), f32)
    yield ops.ErrorSample((x,), {}, "wanted x")
    yield ops.ErrorSample((x, TensorSpec((6, 4, 3, 3), f32)), {}, "wanted w .4, O / groups, R, S.")
    yield ops.ErrorSample((x, w), {"output_padding": 1}, "wanted less than stride or dilation")
    yield ops.ErrorSample((x, w), {"padding": 4}, "wanted less, so that the result has elements")


def _flops(node: ops.NodeSpec) -> float:
    x, w = (spec.bounds for spec in node.inputs)
    return 2.0 * prod(x) * prod(w[1:])


OPS = {
    "conv1d": ops.Op(
        name="conv1d",
        formula="y[n, o, i] = sum_(c, r) x[n, c, i stride + r dilation] w[o, c, r]",
        parameters=Parameters("x w", (STRIDE, PADDING, DILATION, GROUPS)),
        infer=_infer_1d,
        reference=_reference_1d,
        samples=_samples_1d,
        error_samples=_errors_1d,
        tolerance=conv2d.TOLERANCE,
        flops=lambda node: 2.0 * prod(node.inputs[1].bounds[1:]) * prod(node.outputs[0].bounds),
        decompose=_decompose_1d,
    ),
    "conv_transpose2d": ops.Op(
        name="conv_transpose2d",
        formula="y[n, o, i stride + r dilation, j stride + s dilation] += x[n, c, i, j] w[c, o, r, s]",
        parameters=Parameters("x w", (STRIDE, PADDING, _AFTER, DILATION, GROUPS)),
        infer=_infer_transposed,
        reference=_reference_transposed,
        samples=_samples_transposed,
        error_samples=_errors_transposed,
        tolerance=conv2d.TOLERANCE,
        flops=_flops,
        decompose=_decompose_transposed,
    ),
}
