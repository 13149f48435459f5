"""The variant of conv2d as products of matrices in blocks: w by windows, which a program packs or reads where they are."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from camshaft.dtypes import DType, f64
from camshaft.ops import op as ops
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.kernels.strides import iteration, strides_of
from camshaft.ops.matmul.blocks import block_sizes, blocked
from camshaft.ops.matmul.shapes import WIDTH, Sizes
from camshaft.ops.movement.transpose import strided
from camshaft.ops.spec import TensorSpec, bound
from camshaft.ops.vision.conv.kernels import multiply_windows
from camshaft.ops.vision.windows import Conv, Windows, conv_of, image_of, padded_input

# Depth of a packed part: with 64 columns 128 KiB, which stay in the L2 cache.
PART = 512
# Outputs from which packing places pays where their rows are aligned.
PACKED_ROWS = 128
# Nanoseconds to copy an element of x, to pad it or to set every step-th column side by side.
COPY_NS = 0.35


def _product(c: Conv) -> Sizes:
    """The convolution as a product of matrices for each image and group: w [per_group, depth] by windows [depth, places]."""
    batch = (c.images, c.groups)
    places = prod(c.windows.places)
    return Sizes(c.per_group, places, c.depth, False, batch, (0, 1), (c.groups, 1), c.groups, c.images * c.groups)


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds the launch of the product, and those of copies that its windows need."""
    c = conv_of(node.inputs, node.attrs)
    s, m, dtype = _product(c), c.windows, node.outputs[0].parts[0].dtype
    a = ops.read(1, shape=(c.groups * c.per_group, c.depth))
    if prod(m.kernel) == 1 and not m.is_padded:
        launches, x, scratch = places_of(node.inputs[0], m)
        x = replace(x, shape=s.b_shape)
        launch = (_in_place if _reads_in_place(s, target) else _packed)(s, a, x, dtype, target)
        return ops.Build((*launches, launch), scratch)
    launches, x, scratch, m = _by_phases(node.inputs[0], m)
    image = (c.channels, *image_of(m).values(), c.windows.places[1])
    launch = _packed(s, a, x, dtype, target)
    constants = {key: value for key, value in launch.constants.items() if key not in ("copied", "paired_part")}
    made = ops.Launch(multiply_windows, launch.arrays, launch.grid, {**constants, "image": image})
    return ops.Build((*launches, made), scratch)


def _in_place(s: Sizes, a: ops.Operand, x: ops.Operand, dtype: DType, target: ops.Target) -> ops.Launch:
    """The product that reads places where they are, a panel in each program: two of 49 gave one of two workers 7 % more."""
    values = block_sizes.values_of(s, target)
    values |= {"part": PART, "packed": block_sizes.IN_PLACE, "group": values["vectors"] * WIDTH}
    return blocked.multiply_launch(s, values, a, x, dtype)


def _packed(s: Sizes, a: ops.Operand, x: ops.Operand, dtype: DType, target: ops.Target) -> ops.Launch:
    """The product whose programs pack an even panel each, once for all rows; for fewer rows where there would be too few
    programs."""
    panels = block_sizes.panels_of(s.columns, target, rows_in_halves=False)
    rows = bound(s.rows)
    tile = min(block_sizes.tile_rows(panels.vectors, target), rows)
    parts = max(min(-(-block_sizes.UNEVEN // (panels.count * s.matrices)), rows // (4 * tile)), 1)
    values = {
        **block_sizes.values_of(s, target),
        "part": PART,
        "packed": block_sizes.PACKED_INSIDE,
        "rows": tile,
        "vectors": panels.vectors,
        "block": -(-rows // parts // tile) * tile + tile,
        "group": panels.vectors * WIDTH,
    }
    launch = blocked.multiply_launch(s, values, a, x, dtype)
    if panels.vectors * panels.count == panels.total:
        return launch
    matrices, _, blocks = launch.grid
    grid, even = (matrices, ops.Cells(panels.count), blocks), {"even": panels.count}
    return replace(launch, grid=grid, constants={**launch.constants, **even})


def _reads_in_place(s: Sizes, target: ops.Target) -> bool:
    """Whether products read the places of windows of one element where they are. Zen 3 loads a last panel's columns under masks
    slowly: 1024 x 14^2 to 256 took 3.5 ms in place, packed 1.4. With AVX-512 packing pays where many rows share it (128 x 28^2
    to 512 takes a sixth less, 64 x 56^2 to 64 a tenth more) or rows do not begin at cache lines, but not for few columns."""
    is_aligned = s.columns % WIDTH == 0 and bound(s.rows) < PACKED_ROWS
    return target.lanes >= WIDTH and (is_aligned or s.columns < 8 * WIDTH)


Read = tuple[tuple[ops.Launch, ...], ops.Operand, tuple[TensorSpec, ...]]


def places_of(x: TensorSpec, m: Windows, at: int = 0) -> Read:
    """What windows of one element read: x itself, or scratch `at`, a copy of the elements where they begin."""
    if prod(m.stride) == 1:
        return (), ops.read(0, shape=(prod(x.bounds),)), ()
    (height, width), spec = m.sizes, TensorSpec((x.bounds[0] * x.bounds[1], *m.places), x.dtype)
    n, steps = prod(spec.bounds), (height * width, m.stride[0] * width, m.stride[1])
    launch = _copy(ops.read(0, shape=(prod(x.bounds),)), ops.scratch(at, "write", (n,)), spec, steps)
    return (launch,), ops.scratch(at, "read", (n,)), (spec,)


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


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not take a node, or None."""
    return "computes in f32; f64 is computed in f64" if node.inputs[0].dtype == f64 else None


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """As for matmul, 1.5 ns for each vector of windows that is packed, and copies of x. With 8 lanes so long for each element of
    windows of several: their vectors are pieces under masks (Zen 3)."""
    c = conv_of(node.inputs, node.attrs)
    s = _product(c)
    panels = block_sizes.panels_of(s.columns, target, rows_in_halves=False)
    together = 1 if target.lanes < WIDTH and prod(c.windows.kernel) > 1 else target.lanes
    packing = s.b_matrices * c.depth * s.columns * 1.5 / together
    copies = c.windows.is_padded + (c.windows.stride[1] > 1)
    return (
        s.matrices * bound(s.rows) * s.depth * panels.cost * WIDTH / (3.4 * target.lanes)
        + packing
        + COPY_NS * copies * prod(node.inputs[0].bounds)
        + 500.0
    )
