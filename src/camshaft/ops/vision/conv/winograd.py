"""The variant of conv2d by Winograd's products along the rows, for windows of three rows: with stride 1 it multiplies half as
often as `direct`, with stride 2 three quarters as often (winograd_transforms.py).

Its error is 2.6 times that of adding products in order with stride 1, 1.1 times with stride 2 (normalized mean squared error;
5e-13 and 2e-13 for 64 channels and more, which are added in parts of 64). It is relative to the greatest elements of the six or
nine rows of x that a transform sees, where without transforms it is relative to those of a window. Of subnormal results it is a
number of steps of 1.4e-45 in every variant: for 70 channels 30 by `direct`, 160 here, and 380 where weights are subnormal.
Infinity and NaN are exact: a result that is not finite is computed from its window.
"""

from __future__ import annotations

from dataclasses import astuple
from math import prod

from camshaft.dtypes import f32
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks.block_sizes import panels_of, tile_rows
from camshaft.ops.matmul.shapes import WIDTH
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision.conv.winograd_kernels import Shape, multiply_bands
from camshaft.ops.vision.conv.winograd_transforms import TRANSFORMS, Image, transform_image, transform_weights
from camshaft.ops.vision.windows import Conv, Windows, conv_of

# Channels that are added up in registers: more round worse, and 64 rows of a panel stay in an L1 cache.
PART = 64
# Rows of a program, whose products are in scratch. With 48 512 x 7^2 to 512 took a sixth longer: each block reads a panel again.
ROWS = 96
# Nanoseconds that a weight takes: for three of a window six pass from the last cache.
WEIGHT_NS = 0.25
# Programs of the image's transform that are wanted: each one takes all bands where channels are as many.
PROGRAMS = 32


def _columns(m: Windows) -> tuple[int, int, int]:
    """Bands, columns of the transformed image in each, and columns of the product: of all bands without the last one's end."""
    bands = -(-m.places[0] // TRANSFORMS[m.stride[0]].made)
    pitch = -(-m.padded[1] // m.stride[1])
    return bands, pitch, bands * pitch - (pitch - m.places[1])


def shape_of(c: Conv, target: ops.Target) -> Shape:
    """The sizes of a convolution for the kernels."""
    m = c.windows
    bands, pitch, columns = _columns(m)
    panels = panels_of(columns, target, rows_in_halves=True)
    n_tiles = -(-c.per_group // tile_rows(panels.vectors, target))
    tile = -(-c.per_group // n_tiles)
    tall = c.per_group - n_tiles * (tile - 1)
    tiles = tall + (c.per_group - tall * tile) // max(tile - 1, 1)
    blocks = -(-tiles * tile // ROWS)
    return Shape(
        step=m.stride[0],
        column_step=m.stride[1],
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
        tall=tall,
        tiles=tiles,
        blocks=min(blocks + blocks % 2, tiles),
        vectors=panels.vectors,
        all_vectors=panels.total,
        panels=panels.count,
        part=-(-c.channels // -(-c.channels // PART)),
    )


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """None for windows of three rows side by side, one or two rows apart, in f32, else why not."""
    m = conv_of(node.inputs, node.attrs).windows
    if node.inputs[0].dtype != f32:
        return f"computes f32, not {node.inputs[0].dtype.name}"
    if m.stride[0] not in TRANSFORMS or (m.kernel[0], m.dilation[0]) != (TRANSFORMS[m.stride[0]].taken, 1):
        return f"wanted windows of three rows, stride {' or '.join(map(str, TRANSFORMS))} and dilation 1 along the rows"
    if m.stride[1] > 1 and target.backend == "c":
        return "no instruction in C packs every second column"
    return None


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Launches that transform the weights, once if they are constant, and the image; and the product."""
    c = conv_of(node.inputs, node.attrs)
    s = shape_of(c, target)
    image = _image(s, c.images * c.groups * c.channels)
    x, w = (ops.read(i, shape=(prod(node.inputs[i].bounds),)) for i in range(2))
    outputs, rows = c.groups * c.per_group, c.images * c.groups * c.channels * s.column_step
    u = TensorSpec((len(s.transform.g) * outputs, c.channels * s.columns), f32)
    v = TensorSpec((s.transform.points * rows, image.length), f32)
    matrices = ops.Cells(c.images * c.groups)
    launches = (
        ops.Launch(
            transform_weights,
            (w, ops.scratch(0, "write")),
            (ops.Cells(outputs),),
            {"step": s.step, "outputs": outputs, "channels": c.channels, "columns": s.columns},
        ),
        ops.Launch(
            transform_image,
            (x, ops.scratch(1, "write")),
            (matrices, ops.Cells(c.channels), ops.Cells(image.parts)),
            {"image": astuple(image)},
        ),
        ops.Launch(
            multiply_bands,
            (ops.scratch(0, "read"), ops.scratch(1, "read"), x, w, ops.write(0, shape=(prod(node.outputs[0].bounds),))),
            (matrices, ops.Cells(s.panels), ops.Cells(s.blocks)),
            {"shape": astuple(s)},
        ),
    )
    return ops.Build(launches, (u, v))


def _image(s: Shape, planes: int) -> Image:
    """The sizes of the transformed image: its rows are as long as the product reads."""
    return Image(
        step=s.step,
        column_step=s.column_step,
        channels=s.channels,
        height=s.height,
        width=s.width,
        top=s.top,
        left=s.left,
        pitch=s.pitch,
        bands=s.bands,
        parts=min(-(-PROGRAMS // planes), s.bands),
        length=max(s.all_vectors * WIDTH + (s.pitch - s.out_width), s.bands * s.pitch),
    )


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """As for the product of a matmul, and per vector 4 ns for each transformed element of the image. Weights are constants as a
    rule, transformed once: WEIGHT_NS to read one."""
    c = conv_of(node.inputs, node.attrs)
    m, points = c.windows, TRANSFORMS[c.windows.stride[0]].points
    bands, pitch, columns = _columns(m)
    depth, matrices = c.channels * m.kernel[1], c.images * c.groups
    vectors = panels_of(columns, target, rows_in_halves=True).cost
    products = points * matrices * c.per_group * depth * vectors * WIDTH
    transformed = points * matrices * c.channels * bands * pitch * m.stride[1]
    return (products / 3.4 + transformed * 4.0) / target.lanes + WEIGHT_NS * prod(node.inputs[1].bounds) + 1000.0
