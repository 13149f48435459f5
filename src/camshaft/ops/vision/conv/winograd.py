"""The variant of conv2d by Winograd's F(4, 3) along the rows: half of the products of windows with three rows, one row apart.

Its error is 2.6 times that of adding products in order (normalized mean squared error; 5e-13 for 64 channels and more, which are
added in parts of 64). It is relative to the greatest elements of six rows of x, where without transforms it is relative to those
of a window. Infinity and NaN are exact: a result that is not finite is computed from its window.
"""

from __future__ import annotations

from dataclasses import astuple
from math import prod

from camshaft.dtypes import f32
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks import block_sizes
from camshaft.ops.matmul.shapes import WIDTH, Sizes
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision.conv.winograd_kernels import (
    MADE,
    POINTS,
    TAKEN,
    Shape,
    multiply_bands,
    transform_image,
    transform_weights,
)
from camshaft.ops.vision.windows import Conv, conv_of

# Channels that are added up in registers: more round worse, and 64 rows of a panel stay in an L1 cache.
PART = 64
# Rows of a program, whose products are in scratch.
ROWS = 48


def shape_of(c: Conv, target: ops.Target) -> Shape:
    """The sizes of a convolution for the kernels."""
    m = c.windows
    pitch, bands = m.padded[1], -(-m.places[0] // MADE)
    tile, vectors = block_sizes.tile_of(_bands(c), target)
    n_tiles = -(-c.per_group // tile)
    tile = -(-c.per_group // n_tiles)
    return Shape(
        groups=c.groups,
        channels=c.channels,
        outputs=c.per_group,
        height=m.sizes[0],
        width=m.sizes[1],
        top=m.padding[0][0],
        left=m.padding[1][0],
        columns=m.kernel[1],
        gap=m.dilation[1],
        pitch=pitch,
        out_height=m.places[0],
        out_width=m.places[1],
        bands=bands,
        tile=tile,
        tall=c.per_group - n_tiles * (tile - 1),
        vectors=vectors,
        block=min(max(ROWS // tile, 1), n_tiles),
        part=-(-c.channels // -(-c.channels // PART)),
    )


def _bands(c: Conv) -> Sizes:
    """One product of the transformed: outputs by channels and columns of windows, by places of all bands."""
    m = c.windows
    columns = -(-m.places[0] // MADE) * m.padded[1] - (m.padded[1] - m.places[1])
    matrices = c.images * c.groups
    return Sizes(c.per_group, columns, c.channels * m.kernel[1], False, (matrices,), (0,), (1,), 1, matrices)


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """None for windows of three rows side by side and one column apart in f32, else why not."""
    m = conv_of(node.inputs, node.attrs).windows
    if node.inputs[0].dtype != f32:
        return f"computes f32, not {node.inputs[0].dtype.name}"
    if (m.kernel[0], m.stride, m.dilation[0]) != (TAKEN, (1, 1), 1):
        return "wanted windows of three rows, stride 1 and dilation 1 along the rows"
    return None


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Launches that transform the weights, once if they are constant, and the image; and the product."""
    c = conv_of(node.inputs, node.attrs)
    s = shape_of(c, target)
    x, w = (ops.read(i, shape=(prod(node.inputs[i].bounds),)) for i in range(2))
    outputs, depth, planes = c.groups * c.per_group, c.channels * s.columns, c.images * c.groups * c.channels
    panels = -(-_bands(c).columns // s.panel)
    length = max(panels * s.panel + (s.pitch - s.out_width), s.bands * s.pitch)
    u, v = TensorSpec((POINTS * outputs, depth), f32), TensorSpec((POINTS * planes, length), f32)
    sizes = {name: getattr(s, name) for name in ("channels", "height", "width", "top", "left", "pitch", "bands")}
    weights = ops.Launch(
        transform_weights,
        (w, ops.scratch(0, "write")),
        (ops.Cells(outputs),),
        {"outputs": outputs, "channels": c.channels, "columns": s.columns},
    )
    image = ops.Launch(
        transform_image,
        (x, ops.scratch(1, "write")),
        (ops.Cells(planes), ops.Cells(s.bands)),
        {**sizes, "length": length},
    )
    tiles = s.tall + (s.outputs - s.tall * s.tile) // max(s.tile - 1, 1)
    arrays = ops.scratch(0, "read"), ops.scratch(1, "read"), x, w, ops.write(0, shape=(prod(node.outputs[0].bounds),))
    grid = ops.Cells(c.images * c.groups), ops.Cells(panels), ops.Cells(tiles, s.block)
    product = ops.Launch(multiply_bands, arrays, grid, {"shape": astuple(s)})
    return ops.Build((weights, image, product), (u, v))


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """As for the product of a matmul, and per vector 2 ns for each transformed element of weights and image."""
    c = conv_of(node.inputs, node.attrs)
    s, vectors = _bands(c), block_sizes.tile_of(_bands(c), target)[1]
    computing = (
        POINTS
        * s.in_panels(vectors * WIDTH)
        * block_sizes.measured_on(target).tile_cost[vectors]
        / (3.2 * target.lanes)
    )
    transformed = POINTS * c.channels * c.groups * (c.per_group * c.windows.kernel[1] + c.images * s.columns)
    return computing + transformed * 2.0 / target.lanes + 1000.0
