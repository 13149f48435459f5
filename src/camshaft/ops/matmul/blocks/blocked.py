"""The variant of matmul with blocks that fit a core's caches: the sizes of tiles, blocks and groups for a node, and their cost.

The kernel is in blocked_kernel.py. b as [k, n] is read in place; as [n, k] it is packed to panels first (panels.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from camshaft.dtypes import DType, f32
from camshaft.emit.target import BF16_TILES
from camshaft.lang import Constant
from camshaft.lang.verifier.verify import MAX_SCRATCH_NBYTES
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks.blocked_kernel import multiply_blocks
from camshaft.ops.matmul.blocks.panels import PACK_DEPTH, pack_launch, pack_panels, turn_launch
from camshaft.ops.matmul.shapes import WIDTH, Sizes, only_floats, result_of, sizes_of
from camshaft.ops.spec import TensorSpec, bound

MOST_SUMS = 28


@dataclass(frozen=True)
class Measured:
    """What was measured on a CPU with 32 registers of 16 elements.

    `tile_rows`: the rows of a register tile by its vectors. `tile_cost`: the relative time of a multiply-add in such a tile,
    6 x 4 being 1. `room`: bytes of b up to which it is read in place. `unaligned_rows`: rows of a from which b is packed where
    its rows begin anywhere in a cache line. `streamed`: whether a program takes all of fewer than PACKED_ROWS rows, a short part
    of the depth at a time, where b exceeds STREAMED_NBYTES, so that it is read once. `ahead`: how many rows
    before its use a row of a packed panel is prefetched, 0 for never."""

    tile_rows: Mapping[int, int]
    tile_cost: Mapping[int, float]
    room: int
    unaligned_rows: int
    streamed: bool
    ahead: int


# Loads of a and b share the pipe. Rows of a at a distance of 4096 bytes share an L1 cache set of 8 ways: 16 took twice as long.
ZEN4 = Measured({4: 6, 3: 8, 2: 8, 1: 6}, {4: 1.0, 3: 1.01, 2: 1.05, 1: 1.1}, 1 << 20, 1 << 62, False, 0)
# Two vectors of multiply-adds a cycle need 8 sums or more: by tiles of 6 x 1 200 x 192 x 192 has 115 GFLOP/s, by 14 x 1 151, by
# others 167. The L2 cache has 2 MiB: 640 cubed has 160 GFLOP/s in place, 147 packed. 200 cubed has 110 and 122. Streamed
# 64 x 1024 x 4096 has 133, by blocks of 32 rows and parts of 512 k 51; 200 x 1024 x 4096 131 and 57, 48 x 512 x 2048 136 and 83.
# With prefetches of a panel's next rows 1024 cubed is 1.04 times as fast, of the next panel 2048 cubed 1.04 times.
EMERALD_RAPIDS = Measured({4: 6, 3: 8, 2: 12, 1: 14}, {4: 1.0, 3: 1.01, 2: 1.02, 1: 1.1}, 2 << 20, 96, True, 8)
# Values of `packed`: b is read in place, packed before, or packed by the program itself, a panel's part at a time.
IN_PLACE, PACKED, PACKED_INSIDE = 0, 1, 2
# Legal depths, rows and columns of a program's blocks.
PARTS, BLOCKS, GROUPS = (
    (128, 256, 512, 1024, 2048),
    (12, 32, 48, 64, 96, 128, 192, 256, 384, 512),
    (64, 128, 256, 512, 1024, 2048, 4096),
)
# The least part that the cost model chooses.
LEAST_PART = PARTS[-3]
# Bytes of a program's block of a, which leave room for a part of a panel in an L2 cache of 1 MiB.
BLOCK_NBYTES = 400 << 10
# The most scratch for the sums of a program until the last part: half of the L2 cache.
WAITING_NBYTES = 512 << 10
# The least number of programs, where rows and columns allow it: 15 took two threads 5 % longer than 33.
PROGRAMS = 32
# A product of so many multiply-adds, work for two workers, that would make fewer programs is split into the smallest blocks:
# 64 x 4096 x 64 in f32 took 218 us on two threads as three programs of 32 rows, then 178.
UNEVEN, SHARED_WORK = 8, 4e6
STREAMED_PART, STREAMED_GROUP, STREAMED_NBYTES = PARTS[0], 256, 1 << 20
# From so many rows on a b that exceeds `room` is packed: fewer do not pay for it.
PACKED_ROWS = 256
# Rows of b that a packing program takes.
DEEP = 8


def measured_on(target: ops.Target) -> Measured:
    """Returns the figures for a target: those of Intel's Xeons where it has AMX."""
    return EMERALD_RAPIDS if target.features >= BF16_TILES else ZEN4


def tile_of(s: Sizes, target: ops.Target) -> tuple[int, int]:
    """Returns the rows and vectors of the register tile that computes the fewest elements outside the product."""
    if target.lanes < WIDTH:
        return min(6, bound(s.rows)), 1
    figures = measured_on(target)
    vectors = min(figures.tile_rows, key=lambda v: figures.tile_cost[v] * -(-s.columns // (v * WIDTH)) * v)
    return min(figures.tile_rows[vectors], bound(s.rows)), vectors


def is_packed(s: Sizes, target: ops.Target) -> bool:
    """Returns whether packing b pays: it is [n, k], or large, or its rows are not aligned to cache lines."""
    figures, rows = measured_on(target), bound(s.rows)
    is_large = rows >= PACKED_ROWS and 4 * prod(s.b_shape) > figures.room
    return s.transposed or is_large or (s.columns % WIDTH > 0 and rows >= figures.unaligned_rows)


def part_of(depth: int, part: int) -> int:
    """Returns the depth of a block: equal parts of at most `part`, in full cache lines."""
    equal = -(-depth // -(-depth // part))
    return min(-(-equal // WIDTH) * WIDTH, depth)


def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the cost model's choice. `block`: a program's rows; `group`: its columns; `part`: its depth per step."""
    s = sizes_of(node)
    values = {**values_of(s, target), "copied": int(node.inputs[0].dtype != f32)}
    if not values["packed"] and measured_on(target).streamed and may_be_streamed(s):
        block = next(n for n in BLOCKS if n >= bound(s.rows))
        return {**values, "part": STREAMED_PART, "block": block, "group": STREAMED_GROUP}
    return values


def may_be_streamed(s: Sizes) -> bool:
    """Returns whether a CPU may take all rows at once, a part of STREAMED_PART at a time."""
    return bound(s.rows) < PACKED_ROWS and 4 * prod(s.b_shape) > STREAMED_NBYTES


def least_part(s: Sizes) -> int:
    """Returns the least part of the depth that the cost model chooses on any CPU."""
    return STREAMED_PART if may_be_streamed(s) else LEAST_PART


def values_of(s: Sizes, target: ops.Target) -> dict[str, int]:
    """Returns the default values for these sizes."""
    rows, vectors = tile_of(s, target)
    packed = is_packed(s, target)
    part = PARTS[-2] if packed else LEAST_PART
    most = BLOCK_NBYTES // (4 * part_of(s.depth, part))
    blocks = [n for n in BLOCKS[1:] if n <= min(bound(s.rows) / 4, most)] or [BLOCKS[1]]
    panels = -(-s.columns // GROUPS[0]) * s.matrices
    block = max((n for n in blocks if -(-bound(s.rows) // n) * panels >= PROGRAMS), default=blocks[0])
    if -(-bound(s.rows) // block) * panels < UNEVEN and s.multiply_adds >= SHARED_WORK:
        block = BLOCKS[0]
    programs = -(-bound(s.rows) // block) * s.matrices
    group = max((n for n in GROUPS if n * PROGRAMS <= s.columns * programs), default=GROUPS[0])
    return {
        "rows": rows,
        "vectors": vectors,
        "part": part,
        "block": block,
        "group": group,
        "packed": int(packed),
        "copied": 0,
    }


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
    ahead = measured_on(target).ahead
    return build_of(s, values, a, b, f32, result_of(node), short=node.inputs[1].dtype != f32, ahead=ahead)


def build_of(
    s: Sizes,
    values: ops.Values,
    a: ops.Operand,
    b: ops.Operand,
    element: DType,
    result: DType,
    short: bool = False,
    ahead: int = 0,
) -> ops.Build:
    """Builds the launches for any element type. `element` is the type of panels and the unit of the depth in `s`; b has
    16-bit elements if `short`. `ahead`: as in Measured."""
    vectors = values["vectors"]
    panels = -(-s.columns // (vectors * WIDTH))
    if not s.transposed and values["packed"] != PACKED:
        return ops.Build((multiply_launch(s, values, a, b, result),))
    packed = TensorSpec((s.b_matrices * panels, s.depth, vectors * WIDTH), element)
    pack = pack_of(s, vectors, b, short)
    product = multiply_launch(s, values, a, ops.scratch(0, "read"), result)
    if ahead:
        product = replace(product, constants={**product.constants, "ahead": ahead})
    return ops.Build((pack, product), (packed,))


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
    by_rows = ops.Cells(s.rows, block * tile) if s.extents else ops.Cells(n_tiles, block)
    # rows vary fastest, so that a worker's range spans few groups of columns
    return {**blocks, **s.constants()}, (ops.Cells(s.matrices), ops.Cells(n_panels, panels), by_rows)


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
