"""conv2d: out[n, o, i, j] = sum_(c, r, s) x[n, c, i stride + r dilation, j stride + s dilation] w[o, c, r, s], of the padded x.

x [N, C, H, W] and w [O, C / groups, R, S] have one dtype, which the result has; f16 and bf16 are added in f32 and rounded once.
Group g takes its C / groups channels of x to its O / groups channels of the result. As in torch, w is not flipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f16, f32, f64
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS, in_f32, rounded, widened
from camshaft.ops.kernels import blocks
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.kernels.strides import iteration, strides_of
from camshaft.ops.matmul.blocks import blocked
from camshaft.ops.matmul.shapes import WIDTH, Sizes
from camshaft.ops.movement.moved import check_attributes
from camshaft.ops.movement.transpose import strided
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision import by_outputs, winograd
from camshaft.ops.vision.conv_kernels import direct, multiply_windows
from camshaft.ops.vision.windows import (
    DILATION,
    GROUPS,
    PADDING,
    STRIDE,
    Conv,
    Windows,
    conv_of,
    expect_images,
    padded_array,
    padded_input,
    tap,
    views,
)  # fmt: skip

TOLERANCE = {"f32": 1e-12, "f64": 1e-29, "f16": 1e-7, "bf16": 1e-5}
# Columns of a row of the result that a program of `direct` adds up in scratch.
BLOCK = 1024
# Depth of a packed part: with 64 columns 128 KiB, which stay in the L2 cache.
PART = 512


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
        **_image(m),
        "out_rows": m.places[0],
        "out_columns": m.places[1],
        "block": block,
        "dtype": "f64" if dtype == f64 else "f32",
    }
    flat = ops.read(1, shape=(prod(node.inputs[1].bounds),)), ops.write(0, shape=(prod(node.outputs[0].bounds),))
    grid = ops.Cells(node.outputs[0].bounds[0] * node.outputs[0].bounds[1]), ops.Cells(m.places[0])
    launch = ops.Launch(direct, (x, *flat), (*grid, ops.Cells(m.places[1], per=block)), constants)
    return ops.Build((*launches, launch), scratch)


def _image(m: Windows) -> dict[str, int]:
    (height, width), (rows, columns) = m.padded, m.kernel
    (row_step, column_step), (row_gap, column_gap) = m.stride, m.dilation
    names = ["height", "width", "rows", "columns", "row_step", "column_step", "row_gap", "column_gap"]
    return dict(zip(names, (height, width, rows, columns, row_step, column_step, row_gap, column_gap), strict=True))


def _product(c: Conv) -> Sizes:
    """The convolution as a product of matrices for each image and group: w [per_group, depth] by windows [depth, places]."""
    batch = (c.images, c.groups)
    places = prod(c.windows.places)
    return Sizes(c.per_group, places, c.depth, False, batch, (0, 1), (c.groups, 1), c.groups, c.images * c.groups)


def _build_blocked(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    c = conv_of(node.inputs, node.attrs)
    s, m, dtype = _product(c), c.windows, node.outputs[0].parts[0].dtype
    values = {**blocked.values_of(s, target), "packed": blocked.PACKED_INSIDE, "part": PART}
    a = ops.read(1, shape=(c.groups * c.per_group, c.depth))
    if prod(m.kernel) == 1 and not m.is_padded:
        launches, x, scratch = _places(node.inputs[0], m)
        if _reads_in_place(s, target):
            in_place = replace(x, shape=s.b_shape)
            launch = blocked.multiply_launch(s, {**values, "packed": blocked.IN_PLACE}, a, in_place, dtype)
            return ops.Build((*launches, launch), scratch)
        image: tuple[int, ...] = (c.channels, 1, s.columns, *(1,) * 6, s.columns)
    else:
        launches, x, scratch, m = _by_phases(node.inputs[0], m)
        image = (c.channels, *_image(m).values(), c.windows.places[1])
    block, group = _shares(s, values)
    launch = blocked.multiply_launch(s, {**values, "block": block, "group": group}, a, x, dtype)
    constants = {key: value for key, value in launch.constants.items() if key not in ("copied", "paired_part")}
    made = ops.Launch(multiply_windows, launch.arrays, launch.grid, {**constants, "image": image})
    return ops.Build((*launches, made), scratch)


def _reads_in_place(s: Sizes, target: ops.Target) -> bool:
    """Whether products read the places of windows of one element where they are. Zen 3 loads a last panel's columns under masks
    slowly: 1024 x 14^2 to 256 took 3.5 ms in place, packed 1.4. With AVX-512 rows of whole cache lines and short ones are faster
    in place (128 x 28^2 to 512 by a tenth, 512 x 7^2 to 2048 tenfold), others packed: 1024 x 14^2 to 256 took 1.5 and 1.25 ms."""
    return target.lanes >= WIDTH and (s.columns % WIDTH == 0 or s.columns < 8 * WIDTH)


Read = tuple[tuple[ops.Launch, ...], ops.Operand, tuple[TensorSpec, ...]]


def _places(x: TensorSpec, m: Windows) -> Read:
    """What windows of one element read: x itself, or a copy of the elements where they begin."""
    if prod(m.stride) == 1:
        return (), ops.read(0, shape=(prod(x.bounds),)), ()
    (height, width), spec = m.sizes, TensorSpec((x.bounds[0] * x.bounds[1], *m.places), x.dtype)
    n, steps = prod(spec.bounds), (height * width, m.stride[0] * width, m.stride[1])
    launch = _copy(ops.read(0, shape=(prod(x.bounds),)), ops.scratch(0, "write", (n,)), spec, steps)
    return (launch,), ops.scratch(0, "read", (n,)), (spec,)


def _by_phases(x: TensorSpec, m: Windows) -> tuple[*Read, Windows]:
    """What windows `step` columns apart read: rows of the padded x with every step-th column side by side, so that windows next
    to each other are too. Returns the windows of rows that are padded to a multiple of the step, too."""
    step = m.stride[1]
    if step > 1:
        (before, after), width = m.padding[1], m.padded[1]
        m = replace(m, padding=(m.padding[0], (before, after + -width % step)))
    launches, source, scratch = padded_input(x, m)
    if step == 1:
        return launches, source, scratch, m
    (height, width), lead = m.padded, x.bounds[0] * x.bounds[1]
    spec, at = TensorSpec((lead * height, step, width // step), x.dtype), len(scratch)
    n = prod(spec.bounds)
    launch = _copy(replace(source, shape=(n,)), ops.scratch(at, "write", (n,)), spec, (width, 1, step))
    return (*launches, launch), ops.scratch(at, "read", (n,)), (*scratch, spec), m


def _copy(source: ops.Operand, target: ops.Operand, spec: TensorSpec, steps: tuple[int, ...]) -> ops.Launch:
    """A copy of elements of a flat array, so many apart along each axis of the result."""
    over = iteration(spec.shape, (steps, strides_of(spec, spec.shape)))
    return strided(over, (as_bits(source, spec), as_bits(target, spec)))


def _shares(s: Sizes, values: ops.Values) -> tuple[int, int]:
    """Rows and columns of a program: one panel and all rows, so that it packs its windows once; fewer rows where there would be
    too few programs."""
    width, rows = values["vectors"] * 16, s.rows if isinstance(s.rows, int) else s.rows.bound
    programs = -(-s.columns // width) * s.matrices
    parts = max(min(-(-blocked.UNEVEN // programs), rows // (4 * values["rows"])), 1)
    return -(-rows // parts // values["rows"]) * values["rows"] + values["rows"], width


def _only_short(node: ops.NodeSpec, target: ops.Target) -> str | None:
    return "computes in f32; f64 is computed in f64" if node.inputs[0].dtype == f64 else None


def _cost_direct(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured: a multiply-add per lane and nanosecond, as each one reads the image."""
    return conv_of(node.inputs, node.attrs).multiply_adds / (1.0 * target.lanes) + 100.0


def _cost_blocked(node: ops.NodeSpec, target: ops.Target) -> float:
    """As for matmul, and 1.5 ns for each vector of windows that is packed. With 8 lanes so long for each element of windows of
    several: their vectors are pieces under masks (Zen 3)."""
    c = conv_of(node.inputs, node.attrs)
    s = _product(c)
    vectors = blocked.tile_of(s, target)[1]
    together = 1 if target.lanes < WIDTH and prod(c.windows.kernel) > 1 else target.lanes
    packing = s.b_matrices * c.depth * s.columns * 1.5 / together
    return (
        s.in_panels(vectors * 16) * blocked.measured_on(target).tile_cost[vectors] / (3.4 * target.lanes)
        + packing
        + 500.0
    )


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
        ops.KernelVariant("blocked", frozenset({"simd", "c"}), _build_blocked, _only_short, _cost_blocked),
        ops.KernelVariant("winograd", frozenset({"simd", "c"}), winograd.build, winograd.supports, winograd.cost),
        ops.KernelVariant("by_outputs", frozenset({"simd"}), by_outputs.build, by_outputs.supports, by_outputs.cost),
    ),
    samples=_samples,
    error_samples=_error_samples,
    tolerance=TOLERANCE,
    flops=lambda node: 2.0 * conv_of(node.inputs, node.attrs).multiply_adds,
    decompose=in_f32(_decompose),
)
