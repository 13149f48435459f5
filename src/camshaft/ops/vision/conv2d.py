"""conv2d: out[n, o, i, j] = sum_(c, r, s) x[n, c, i stride + r dilation, j stride + s dilation] w[o, c, r, s], of the padded x.

x [N, C, H, W] and w [O, C / groups, R, S] have one dtype, which the result has; f16 and bf16 are added in f32 and rounded once.
Group g takes its C / groups channels of x to its O / groups channels of the result. As in torch, w is not flipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f16, f32, f64
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS, in_f32, rounded, widened
from camshaft.ops.kernels import blocks
from camshaft.ops.movement.moved import check_attributes
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision.conv import bf16_parts, blocked, by_outputs, winograd
from camshaft.ops.vision.conv.kernels import direct
from camshaft.ops.vision.windows import (
    DILATION,
    GROUPS,
    PADDING,
    STRIDE,
    conv_of,
    expect_images,
    image_of,
    padded_array,
    padded_input,
    tap,
    views,
)  # fmt: skip

# Of results above 1e-38: what is subnormal has no more bits, and each variant misses it by steps of 1.4e-45 (winograd.py).
TOLERANCE = {"f32": 1e-12, "f64": 1e-29, "f16": 1e-7, "bf16": 1e-5}
# Columns of a row of the result that a program of `direct` adds up in scratch.
BLOCK = 1024


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "conv2d", specs, "x [N, C, H, W] and w [O, C / groups, R, S]")
    check_attributes("conv2d", attrs, "stride padding dilation groups")
    expect_images("conv2d", specs, FLOATS, "of four axes", 4)
    c = conv_of(specs, attrs)
    return (TensorSpec((c.images, c.groups * c.per_group, *c.windows.places), specs[0].dtype),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, w = inputs
    c = conv_of([TensorSpec(a.shape, as_dtype(a.dtype)) for a in inputs], attrs)
    seen = views(padded_array(widened(x), c.windows), c.windows)
    grouped = seen.reshape(c.images, c.groups, c.channels, *seen.shape[2:])
    weights = widened(w).reshape(c.groups, c.per_group, *w.shape[1:])
    y = np.einsum("ngcijrs,gocrs->ngoij", grouped, weights)
    return (rounded(y.reshape(c.images, w.shape[0], *c.windows.places), as_dtype(x.dtype)),)


# --- variants ------------------------------------------------------------------------------------------------------------
def _build_direct(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    c = conv_of(node.inputs, node.attrs)
    m, (launches, x, scratch) = c.windows, padded_input(node.inputs[0], c.windows)
    block = blocks.even_block(m.places[1], BLOCK)
    dtype = node.inputs[0].dtype
    constants: dict[str, Constant] = {
        "groups": c.groups,
        "channels": c.channels,
        "per_group": c.per_group,
        **image_of(m),
        "out_rows": m.places[0],
        "out_columns": m.places[1],
        "block": block,
        "dtype": "f64" if dtype == f64 else "f32",
    }
    flat = ops.read(1, shape=(prod(node.inputs[1].bounds),)), ops.write(0, shape=(prod(node.outputs[0].bounds),))
    grid = ops.Cells(node.outputs[0].bounds[0] * node.outputs[0].bounds[1]), ops.Cells(m.places[0])
    launch = ops.Launch(direct, (x, *flat), (*grid, ops.Cells(m.places[1], per=block)), constants)
    return ops.Build((*launches, launch), scratch)


def _cost_direct(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured: a multiply-add per lane and nanosecond, as each one reads the image."""
    return conv_of(node.inputs, node.attrs).multiply_adds / (1.0 * target.lanes) + 100.0


# --- decomposition and samples -------------------------------------------------------------------------------------------
def _decompose(f: Any, x: Any, w: Any, **attrs: Any) -> Any:
    """The sum over the elements of a window of matrix products."""
    c = conv_of((x.spec, w.spec), attrs)
    m = c.windows
    places = prod(m.places)
    seen = f.pad(x, pad_width=((0, 0), (0, 0), *m.padding)) if m.is_padded else x
    weights = w.reshape((c.groups, c.per_group, c.channels, *m.kernel))
    total = None
    for at in product(*map(range, m.kernel)):
        part = tap(f, seen, m, at).reshape((c.images, c.groups, c.channels, places))
        added = f.matmul(weights[(..., *at)], part)
        total = added if total is None else total + added
    assert total is not None
    return total.reshape((c.images, c.groups * c.per_group, *m.places))


_CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((2, 3, 5, 19), (7, 3, 3, 3), {"padding": 1}),
    ((1, 4, 9, 7), (6, 2, 3, 2), {"stride": (1, 2), "groups": 2, "padding": (1, 0)}),
    ((1, 17, 6, 11), (9, 17, 1, 1), {}),
    ((1, 5, 12, 13), (9, 5, 1, 1), {}),
    ((1, 3, 12, 13), (5, 3, 2, 3), {"dilation": (2, 3), "stride": 2, "padding": ((0, 1), (2, 1))}),
    ((1, 4, 1, 40), (4, 1, 1, 19), {"groups": 4, "padding": (0, 9)}),
)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(46)

    def draw(shape: tuple[int, ...], dtype: DType = f32) -> ops.Array:
        return rng.normal(size=shape).astype(dtype.numpy)

    for image, weights, attrs in _CASES:
        yield ops.Sample(f"{image} by {weights} {attrs}", (draw(image), draw(weights)), attrs)
    yield ops.Sample("a deep one", (draw((1, 60, 5, 5)), draw((13, 60, 3, 3))), {"padding": 1})
    for dtype in (f64, f16, bf16):
        yield ops.Sample(f"of {dtype.name}", (draw((1, 3, 5, 6), dtype), draw((4, 3, 3, 3), dtype)), {"padding": 1})
    x = draw((1, 2, 4, 5))
    x[0, 0, 0, 0], x[0, 1, 3, 4] = np.nan, np.inf
    yield ops.Sample("NaN and infinity", (x, np.abs(draw((2, 2, 3, 3)))))


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((1, 4, 5, 5), f32), TensorSpec((6, 4, 3, 3), f32)
    yield ops.ErrorSample((x,), {}, "wanted x")
    yield ops.ErrorSample((x, TensorSpec((6, 3, 3, 3), f32)), {}, "wanted w with 4 channels per group")
    yield ops.ErrorSample((x, w), {"groups": 3}, "wanted a divisor of both")
    yield ops.ErrorSample((x, TensorSpec((6, 4, 7, 3), f32)), {}, "wanted no window larger than the padded x")
    yield ops.ErrorSample((x, w), {"stride": 0}, "wanted an integer of 1 or more")
    yield ops.ErrorSample((x, w), {"padding": (1, 2, 3)}, "wanted an integer of 0 or more")
    yield ops.ErrorSample((x, TensorSpec((6, 4, 3, 3), f64)), {}, "wanted operands of one dtype")
    yield ops.ErrorSample((TensorSpec((4, 5, 5), f32), w), {}, "wanted a tensor of four axes")


OP = ops.Op(
    name="conv2d",
    formula="y[n, o, i, j] = sum_(c, r, s) x[n, c, i stride + r dilation, j stride + s dilation] w[o, c, r, s]",
    parameters=Parameters("x w", (STRIDE, PADDING, DILATION, GROUPS)),
    infer=_infer,
    reference=_reference,
    variants=(
        ops.KernelVariant("direct", ops.EVERYWHERE, _build_direct, cost=_cost_direct),
        ops.KernelVariant("blocked", frozenset({"simd", "c"}), blocked.build, blocked.supports, blocked.cost),
        ops.KernelVariant("winograd", frozenset({"simd", "c"}), winograd.build, winograd.supports, winograd.cost),
        ops.KernelVariant("by_outputs", frozenset({"simd"}), by_outputs.build, by_outputs.supports, by_outputs.cost),
        ops.KernelVariant("bf16_parts", frozenset({"simd"}), bf16_parts.build, bf16_parts.supports, bf16_parts.cost),
    ),
    packs=(0, 1),
    samples=_samples,
    error_samples=_error_samples,
    tolerance=TOLERANCE,
    flops=lambda node: 2.0 * conv_of(node.inputs, node.attrs).multiply_adds,
    decompose=in_f32(_decompose),
)
