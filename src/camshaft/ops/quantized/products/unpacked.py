"""The variant `unpacked` of products of f32 by packed weights, for many tokens on CPUs (unpacked_kernels.py), and its cost."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from camshaft.dtypes import f32
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks import block_sizes, blocked
from camshaft.ops.matmul.shapes import WIDTH, Sizes
from camshaft.ops.quantized.packed.formats import BLOCK
from camshaft.ops.quantized.packed.weights import weight_operands
from camshaft.ops.quantized.products.kernels import packed_only, tile_cost
from camshaft.ops.quantized.products.unpacked_kernels import multiply_unpacked
from camshaft.ops.spec import bound

# Rows and vectors of a register tile: for 32 registers of 16 numbers, and for fewer or shorter ones.
WIDE_TILE, TILE = (6, 4), (6, 1)
# The most rows of a program: each block of rows unpacks the weights again.
MOST_ROWS = 256
# The depth of a step: 256 is 1 % slower, 128 5 %.
PART = 512
# Rows of x at this distance in elements, or a multiple, map to the same cache sets: they are copied.
SAME_SETS = 1024
FEW_TOKENS = 16
# The smallest number of programs, where the columns allow it, and the smallest panels of one that copies its rows.
PROGRAMS, COPIED_PANELS = 16, 6


def sizes_of(node: ops.NodeSpec, turns: bool) -> Sizes:
    """Returns the sizes of the product x W, if it `turns`, or x W^T."""
    x, (n, k) = node.inputs[0], node.inputs[1].bounds
    columns, depth = (k, n) if turns else (n, k)
    return Sizes(x.shape[0], columns, depth, False, (), (), (), 1, 1)


def values_of(node: ops.NodeSpec, target: ops.Target, turns: bool) -> ops.Values:
    """Returns the cost model's choice, with the names of matmul's `blocked`."""
    s = sizes_of(node, turns)
    rows, vectors = WIDE_TILE if target.lanes >= WIDTH else TILE
    panels, copied = -(-s.columns // (vectors * WIDTH)), s.depth % SAME_SETS == 0
    blocks = -(-bound(s.rows) // MOST_ROWS)
    group = max(panels * blocks // PROGRAMS, COPIED_PANELS if copied else 1)
    return {
        "rows": min(rows, bound(s.rows)),
        "vectors": vectors,
        "part": PART,
        "block": -(-bound(s.rows) // blocks),
        "group": min(group, panels) * vectors * WIDTH,
        "copied": int(copied),
        "packed": block_sizes.IN_PLACE,
    }


def build_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values, turns: bool) -> ops.Build:
    """Builds the launch."""
    s, w = sizes_of(node, turns), node.inputs[1]
    constants, (one, panels, rows) = blocked.blocks_of(s, values, f32)
    # parts have whole blocks
    steps = -(-s.depth // values["part"])
    constants["part"] = min(-(-s.depth // (steps * BLOCK)) * BLOCK, s.depth)
    if turns and values["vectors"] == 1:  # a program has both panels of a block
        panels = replace(panels, per=panels.per + panels.per % 2)
        constants["panels"] = panels.per
    x = ops.read(0, shape=(bound(s.rows), s.depth))
    arrays = (x, *weight_operands(node), ops.write(0, shape=(bound(s.rows), s.columns)))
    more: dict[str, Constant] = {"form": w.dtype.name, "copied": bool(values["copied"]), "turns": turns}
    return ops.Build((ops.Launch(multiply_unpacked, arrays, (one, panels, rows), {**constants, **more}, s.extents),))


def variant(turns: bool) -> ops.KernelVariant:
    """Returns the variant of the product x W, if it `turns`, or x W^T."""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        return build_with(node, target, values_of(node, target, turns), turns)

    def cost(node: ops.NodeSpec, target: ops.Target) -> float:
        """Measured on Zen 3: half of the tile's time per multiply-add; a weight is unpacked in 0.2 ns, turned in 0.5."""
        w, blocks = node.inputs[1], -(-node.inputs[0].bounds[0] // MOST_ROWS)
        return 0.5 * tile_cost(node, target) + blocks * (0.5 if turns else 0.2) * prod(w.bounds)

    def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
        """Next tokens of up to FEW_TOKENS sequences have the sums of one alone, so the product x W^T leaves them to `tile`."""
        if not node.inputs[0].is_plain:
            return "takes activations of f32"
        if not turns and node.inputs[0].bounds[0] <= FEW_TOKENS:
            return f"takes more than {FEW_TOKENS} tokens; got {node.inputs[0].bounds[0]}"
        return packed_only(node, target)

    return ops.KernelVariant("unpacked", frozenset({"simd", "c"}), build, supports, cost)
