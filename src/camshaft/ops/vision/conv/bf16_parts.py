"""The variant of conv2d for 1x1 convolutions of f32 on AMX: three parts of bf16, whose products have f32's precision.

The normalized mean squared error is a quarter (64 channels) to a half (1024) of that of products added in f32. It is relative to
the greatest elements of a panel of 32 columns of x: parts below 2^-126 are zeros.
"""

from __future__ import annotations

from dataclasses import astuple
from math import prod

from camshaft.dtypes import f32, u32
from camshaft.lang.verifier.verify import MAX_SCRATCH_NBYTES
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks.unit_panels import SIDE, STEP, WORDS, without_tiles
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision.conv.bf16_parts_kernel import PARTS, Shape, multiply_parts, pack_weights
from camshaft.ops.vision.conv.blocked import places_of
from camshaft.ops.vision.windows import Conv, conv_of

# Programs that are wanted, an even number for two workers, and the least panels of one, of which the first is filled before any
# products: 512 x 28^2 to 1024 by steps of 2 has 129 GFLOP/s with one each, 161 with four.
PROGRAMS, LEAST = 8, 4
# Nanoseconds of a step of a tile, and of a tile besides; bytes in a nanosecond from the last cache (Emerald Rapids).
STEP_NS, TILE_NS, BYTES_PER_NS = 170.0, 120.0, 16.0


def shape_of(c: Conv) -> Shape:
    """The sizes of a convolution for the kernel: a program has all outputs, or a share of them if panels are few."""
    columns = prod(c.windows.places)
    panels, tiles, matrices = -(-columns // SIDE), -(-c.per_group // SIDE), c.images * c.groups
    wanted = -(-PROGRAMS // matrices)
    each = max(-(-panels // wanted), min(LEAST, panels))
    shares = max(min(-(-wanted // -(-panels // each)), tiles // 4), 1)
    return Shape(c.groups, c.per_group, c.depth, columns, each, -(-tiles // shares))


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """None for f32 and windows of one element without padding on a CPU with AMX, else why not."""
    if (reason := without_tiles(target)) is not None:
        return reason
    c = conv_of(node.inputs, node.attrs)
    if node.inputs[0].dtype != f32:
        return f"computes f32, not {node.inputs[0].dtype.name}"
    if prod(c.windows.kernel) != 1 or c.windows.is_padded:
        return "wanted windows of one element and no padding"
    nbytes = 4 * SIDE * (2 * PARTS * WORDS * -(-c.depth // STEP) + SIDE)
    return f"{nbytes} bytes of scratch; at most {MAX_SCRATCH_NBYTES}" if nbytes > MAX_SCRATCH_NBYTES else None


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Launches that pack the weights, once if they are constant, and copy the places of windows that are apart; the product."""
    c = conv_of(node.inputs, node.attrs)
    s = shape_of(c)
    tiles = c.groups * s.all_tiles
    specs = TensorSpec((tiles, s.steps, PARTS, SIDE, WORDS), u32), TensorSpec((tiles,), u32)
    w = ops.read(1, shape=(prod(node.inputs[1].bounds),))
    pack = ops.Launch(
        pack_weights,
        (w, ops.scratch(0, "write"), ops.scratch(1, "write")),
        (ops.Cells(tiles),),
        {"outputs": s.outputs, "depth": s.depth},
    )
    copies, x, copied = places_of(node.inputs[0], c.windows, at=len(specs))
    out = ops.write(0, shape=(c.images * c.groups * s.outputs, s.columns))
    grid = ops.Cells(c.images * c.groups), ops.Cells(s.all_panels, s.panels), ops.Cells(s.all_tiles, s.tiles)
    arrays = ops.scratch(0, "read"), ops.scratch(1, "read"), x, w, out
    product = ops.Launch(multiply_parts, arrays, grid, {"shape": astuple(s)})
    return ops.Build((pack, *copies, product), (*specs, *copied))


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """The steps of all tiles, and what passes from the last cache: x, the result, and the weights for each panel."""
    c = conv_of(node.inputs, node.attrs)
    s = shape_of(c)
    n = c.images * c.groups * s.all_panels * s.all_tiles
    nbytes = 4 * sum(prod(spec.bounds) for spec in (node.inputs[0], *node.outputs))
    weights = 2 * PARTS * c.images * c.groups * s.all_panels * s.outputs * s.depth
    far = weights if 2 * PARTS * s.outputs * s.depth > 1 << 20 else 0
    return n * (s.steps * STEP_NS + TILE_NS) + (nbytes + far) / BYTES_PER_NS + 500.0
