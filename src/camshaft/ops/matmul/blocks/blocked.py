"""The variant of matmul with blocks that fit a core's caches: its values for a node, its launches and its cost.

Sizes are in block_sizes.py, the kernel is in blocked_kernel.py. b as [k, n] is read in place; as [n, k] it is packed to panels
first (panels.py).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from camshaft.dtypes import DType, f32
from camshaft.lang import Constant
from camshaft.lang.verifier.verify import MAX_SCRATCH_NBYTES
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks.block_sizes import (
    BLOCKS,
    DEEP,
    GROUPS,
    IN_PLACE,
    PACKED,
    PACKED_INSIDE,
    PARTS,
    STREAMED_GROUP,
    STREAMED_PART,
    WAITING_NBYTES,
    is_written_past_caches,
    may_be_streamed,
    measured_on,
    part_of,
    values_of,
)
from camshaft.ops.matmul.blocks.blocked_kernel import multiply_blocks
from camshaft.ops.matmul.blocks.panels import PACK_DEPTH, pack_launch, pack_panels, turn_launch
from camshaft.ops.matmul.shapes import WIDTH, Sizes, only_floats, result_of, sizes_of
from camshaft.ops.spec import TensorSpec, bound

MOST_SUMS = 28


def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the cost model's choice. `block`: a program's rows; `group`: its columns; `part`: its depth per step."""
    s = sizes_of(node)
    values = {**values_of(s, target), "copied": int(node.inputs[0].dtype != f32)}
    if not values["packed"] and measured_on(target).streamed and may_be_streamed(s):
        block = next(n for n in BLOCKS if n >= bound(s.rows))
        return {**values, "part": STREAMED_PART, "block": block, "group": STREAMED_GROUP}
    return values


def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why the values do not fit, or None: sums exceed the registers, too many rows of a tile, too much scratch."""
    s, sums = sizes_of(node), values["rows"] * values["vectors"]
    if sums * max(WIDTH // target.lanes, 1) > MOST_SUMS:
        return f"{sums} sums pass the registers"
    if values["rows"] > bound(s.rows):
        return f"a tile of {values['rows']} rows for {bound(s.rows)}"
    if s.transposed and values["packed"] != PACKED:
        return "b as [n, k] is read in panels"
    part, rows = part_of(s.depth, values["part"]), values["block"] + values["rows"]
    sums = values["vectors"] * WIDTH if result_of(node) != f32 and s.depth > part else 0
    nbytes = _beside_sums(values, part) + 4 * sums * rows
    return f"{nbytes} bytes of scratch; at most {MAX_SCRATCH_NBYTES}" if nbytes > MAX_SCRATCH_NBYTES else None


def build_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds one launch, after a launch that packs b if it is [n, k] or large."""
    s = sizes_of(node)
    a, b, _ = s.operands
    figures, short = measured_on(target), node.inputs[1].dtype != f32
    is_large = 4 * prod(s.b_shape) > figures.room
    rows_ahead = figures.rows_ahead if is_large and values["packed"] == IN_PLACE else 0
    return build_of(s, values, a, b, f32, result_of(node), short, figures.ahead, rows_ahead)


def build_of(
    s: Sizes,
    values: ops.Values,
    a: ops.Operand,
    b: ops.Operand,
    element: DType,
    result: DType,
    short: bool = False,
    ahead: int = 0,
    rows_ahead: int = 0,
) -> ops.Build:
    """Builds the launches for any element type. `element` is the type of panels and the unit of the depth in `s`; b has
    16-bit elements if `short`. `ahead`, `rows_ahead`: as in Measured."""
    vectors = values["vectors"]
    panels = -(-s.columns // (vectors * WIDTH))
    if not s.transposed and values["packed"] != PACKED:
        return ops.Build((ahead_of(multiply_launch(s, values, a, b, result), rows_ahead=rows_ahead),))
    packed = TensorSpec((s.b_matrices * panels, s.depth, vectors * WIDTH), element)
    pack = pack_of(s, vectors, b, short)
    product = multiply_launch(s, values, a, ops.scratch(0, "read"), result)
    return ops.Build((pack, ahead_of(product, ahead=ahead)), (packed,))


def ahead_of(launch: ops.Launch, **rows: int) -> ops.Launch:
    """Returns the launch with distances of prefetches, if they are not 0."""
    distances = {name: n for name, n in rows.items() if n}
    return replace(launch, constants={**launch.constants, **distances}) if distances else launch


def pack_of(s: Sizes, vectors: int, b: ops.Operand, short: bool) -> ops.Launch:
    """Returns the launch that packs b."""
    if s.transposed and (short or s.depth % 2 == 0):
        return turn_launch(s, vectors, b, short)
    if s.transposed:
        return pack_launch(s, vectors, PACK_DEPTH, b, 0)
    return ops.Launch(
        pack_panels,
        (b, ops.scratch(0, "write")),
        (ops.Cells(s.b_matrices), ops.Cells(s.depth, DEEP)),
        {"columns": s.columns, "vectors": vectors, "depth": s.depth, "deep": DEEP},
    )


def _most_panels(values: ops.Values, part: int) -> int:
    """Returns the number of panels whose sums fit in scratch beside the copy of a."""
    rows = values["block"] + values["rows"]
    left = MAX_SCRATCH_NBYTES - _beside_sums(values, part)
    return max(min(WAITING_NBYTES, left) // (4 * values["vectors"] * WIDTH * rows), 1)


def _beside_sums(values: ops.Values, part: int) -> int:
    """Returns the bytes of a program's other scratch: its copy of a and its panel of b."""
    copy = (part + 2 * WIDTH) * (values["block"] + values["rows"]) * values["copied"]
    return 4 * (copy + part * values["vectors"] * WIDTH * (values["packed"] == PACKED_INSIDE))


def multiply_launch(s: Sizes, values: ops.Values, a: ops.Operand, b: ops.Operand, result: DType) -> ops.Launch:
    """Returns the launch that multiplies, with b in place or packed."""
    constants, grid = blocks_of(s, values, result)
    scratch = {"copied": bool(values["copied"]), "paired_part": values["packed"] == PACKED_INSIDE}
    return ops.Launch(multiply_blocks, (a, b, s.out), grid, {**constants, **scratch}, s.extents)


def blocks_of(s: Sizes, values: ops.Values, result: DType) -> tuple[dict[str, Constant], tuple[ops.Cells, ...]]:
    """Returns the constants of a kernel's `Blocks`, and its grid: products of the batch, groups of panels, blocks of rows."""
    rows, vectors, part = bound(s.rows), values["vectors"], part_of(s.depth, values["part"])
    n_tiles = -(-rows // values["rows"])
    tile = values["rows"] if s.extents else -(-rows // n_tiles)
    tall = n_tiles if s.extents else rows - n_tiles * (tile - 1)
    block = -(-n_tiles // -(-n_tiles * tile // values["block"]))
    width = vectors * WIDTH
    n_panels = -(-s.columns // width)
    panels = -(-n_panels // -(-n_panels * width // values["group"]))
    if result != f32 and s.depth > part:
        panels = min(panels, _most_panels(values, part))
    blocks = {"tile": tile, "tall": tall, "vectors": vectors, "block": block, "panels": panels, "part": part}
    past_caches = is_written_past_caches(s, vectors, part, result)
    by_rows = ops.Cells(s.rows, block * tile) if s.extents else ops.Cells(n_tiles, block)
    # rows vary fastest, so that a worker's range spans few groups of columns
    return {**blocks, "streamed": past_caches, **s.constants()}, (
        ops.Cells(s.matrices),
        ops.Cells(n_panels, panels),
        by_rows,
    )


TUNABLES = ops.Tunables(
    {
        "rows": (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16),
        "vectors": (1, 2, 3, 4),
        "part": PARTS,
        "block": BLOCKS,
        "group": GROUPS,
        "copied": (0, 1),
        "packed": (0, 1),
    },
    defaults,
    build_with,
    refusal,
)


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Zen 4: 3.4 multiply-adds per lane and nanosecond in full tiles (peak 3.6) or b once at 25 bytes per
    nanosecond, whichever is slower; 100 ns per launch; packing b 0.6 ns per element."""
    s, values = sizes_of(node), defaults(node, target)
    width = values["vectors"] * WIDTH
    computing = s.in_panels(width) * measured_on(target).tile_cost[values["vectors"]] / (3.4 * target.lanes)
    packing = 0.6 * prod(s.b_shape) if s.transposed else 0.0
    return max(computing, sum(spec.nbytes for spec in node.inputs) / 25) + packing + 100.0


BLOCKED = ops.KernelVariant(
    "blocked", frozenset({"simd", "c"}), TUNABLES.build_default, lambda node, target: only_floats(node), _cost, TUNABLES
)
