"""The conv2d variant with output channels in vectors: tiles of output positions by one or two vectors, packed weights.

Elements of x are read one by one where they are, at any stride, so neither windows nor strided images are copied, and a row of
the result of any length has full vectors: 196 places are 14 tiles of 14, but 3 panels of 64 and 4 places more. Sums are put in
order as they are stored, which pays where a window has many elements.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from math import prod

from camshaft.dtypes import f32, f64
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks import blocked
from camshaft.ops.matmul.shapes import WIDTH, Sizes
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision.conv.by_outputs_kernel import Shape, outputs_by_places
from camshaft.ops.vision.windows import Conv, Windows, conv_of, image_of, padded_input

# Places and vectors of a register tile, by lanes. 14 by 2 are 28 sums; with 2 vectors of weights and an element of x 31 registers
# of 32. A vector of 16 elements is two registers of 8 lanes: 6 by 1 are 12 sums, with weights and an element 15 of 16.
TILES = {16: (14, 2), 8: (6, 1)}
# Nanoseconds to store a result, by lanes: sums are put in order one by one without AVX-512 (Zen 4, Zen 3).
STORE_NS = {16: 0.35, 8: 1.8}
# Products that are added up in registers, as many as in a part of a packed panel.
PART = 1152
# Bytes of x that a program reads: they stay in the L2 cache for the programs of the next panels.
BLOCK_NBYTES = 384 << 10
# Programs that are wanted, so that workers finish together.
PROGRAMS = 32


def _read(m: Windows, places: int) -> Windows:
    """The windows that the kernel sees: those of a padded copy of x where more tiles than the first and the last of a row reach
    beyond the image."""
    step, (before, _), columns = m.stride[1], m.padding[1], m.places[1]
    inside = (m.sizes[1] + before - m.reach[1]) // step + 1  # places before the first that reaches beyond the end
    least = columns // -(-columns // places)  # of a tile
    if columns > places and max(-(-before // step), columns - inside) > least:
        return replace(m, sizes=m.padded, padding=((0, 0),) * 2)
    return m


def _blocks(panels: int, x_nbytes: int, weights_nbytes: int) -> int:
    """Blocks of places. Each one reads all weights: where that is more than reading x for each panel, half as many programs are
    wanted, and blocks are larger than BLOCK_NBYTES."""
    blocks, few = max(-(-PROGRAMS // panels), x_nbytes // BLOCK_NBYTES), -(-PROGRAMS // (2 * panels))
    blocks += blocks % 2 * (blocks > 1)  # so that the halves of two workers are equal
    return few if (blocks - few) * weights_nbytes > (panels - 1) * x_nbytes else blocks


def shape_of(c: Conv, target: ops.Target) -> Shape:
    """The sizes of a convolution; one of single elements side by side has one row."""
    places, vectors = TILES[target.lanes]
    m = _read(c.windows, places)
    (height, width), (out_rows, out_columns) = m.sizes, m.places
    if prod(m.kernel) == 1 and prod(m.stride) == 1 and not m.is_padded:
        height, width, out_rows, out_columns = 1, height * width, 1, out_rows * out_columns
    image = {**image_of(m), "height": height, "width": width, "channels": c.channels, "out_columns": out_columns}
    tiles = -(-out_columns // places)
    tile = -(-out_columns // tiles)
    panels = c.images * c.groups * -(-c.per_group // (vectors * WIDTH))
    nbytes = 64 * c.channels * m.kernel[0] * (tile * m.stride[1] // 16 + 2)  # cache lines of x that a tile reads
    blocks = _blocks(panels, out_rows * tiles * nbytes, 4 * c.depth * panels * vectors * WIDTH)
    tall = out_columns - tiles * (tile - 1)
    return Shape(
        **image,
        groups=c.groups,
        outputs=c.per_group,
        top=m.padding[0][0],
        left=m.padding[1][0],
        out_rows=out_rows,
        tile=tile,
        tiles=tiles,
        tall=tall,
        blocks=min(blocks, out_rows * tiles),
        part=-(-c.channels // -(-c.depth // max(PART, prod(m.kernel)))),
        vectors=vectors,
    )


def _weights(c: Conv, s: Shape) -> Sizes:
    """The weights as a matrix of outputs by depth for each group, which are packed."""
    return Sizes(s.tile, c.per_group, c.depth, True, (c.groups,), (0,), (1,), 1, c.groups)


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """None, or why not."""
    if node.inputs[0].dtype == f64:
        return "computes in f32; f64 is computed in f64"
    if target.lanes not in TILES:
        return f"{target.lanes} lanes; wanted {' or '.join(map(str, TILES))}, whose tiles fit the registers"
    return None


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Launches that pack the weights, once if they are constant, and pad the image if they must; and the product."""
    c = conv_of(node.inputs, node.attrs)
    s, dtype = shape_of(c, target), node.inputs[0].dtype
    w = _weights(c, s)
    packed = TensorSpec((c.groups * s.panels, c.depth, s.panel), f32)
    pack = blocked.pack_of(w, s.vectors, ops.read(1, shape=w.b_shape), dtype != f32)
    is_copied = c.windows.is_padded and not _read(c.windows, TILES[target.lanes][0]).is_padded
    seen = c.windows if is_copied else replace(c.windows, padding=((0, 0),) * 2)
    pads, x, scratch = padded_input(node.inputs[0], seen, at=1)
    out = ops.write(0, shape=(prod(node.outputs[0].bounds),))
    grid = ops.Cells(c.images * c.groups), ops.Cells(s.blocks), ops.Cells(s.panels)
    product = ops.Launch(outputs_by_places, (ops.scratch(0, "read"), x, out), grid, {"shape": astuple(s)})
    return ops.Build((pack, *pads, product), (packed, *scratch))


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Products as in a matmul's tile, STORE_NS to store a result. Weights are constants as a rule, packed once: 0.6 ns each would
    be two thirds of what 512 x 7^2 to 2048 takes then."""
    c = conv_of(node.inputs, node.attrs)
    s = shape_of(c, target)
    places = c.images * c.groups * prod(c.windows.places)
    factor = (1 + 0.5 / s.tile) * (1.0 if s.vectors > 1 else 1.1)
    computing = places * c.depth * s.panels * s.panel * factor / (3.4 * target.lanes)
    return computing + places * c.per_group * STORE_NS[target.lanes] + 0.1 * prod(node.inputs[1].bounds) + 100.0
