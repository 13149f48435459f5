"""The sizes of tiles, blocks and groups of a product in blocks, by what was measured on CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from camshaft.dtypes import DType, f32
from camshaft.emit.target import BF16_TILES
from camshaft.ops import op as ops
from camshaft.ops.matmul.shapes import WIDTH, Sizes
from camshaft.ops.spec import bound


@dataclass(frozen=True)
class Measured:
    """What was measured on a CPU with 32 registers of 16 elements.

    `tile_rows`: the rows of a register tile by its vectors. `tile_cost`: the relative time of a multiply-add in such a tile,
    6 x 4 being 1. `room`: bytes of b up to which it is read in place. `unaligned_rows`: rows of a from which b is packed where
    its rows begin anywhere in a cache line. `streamed`: whether a program takes all of fewer than PACKED_ROWS rows, a short part
    of the depth at a time, where b exceeds STREAMED_NBYTES, so that it is read once. `ahead`: how many rows
    before its use a row of a packed panel is prefetched, 0 for never, and `rows_ahead` a row of a b that exceeds `room` and is
    read in place, into the second cache. `wide`: columns of a program from which fewer rows are
    better than fewer columns, where b is packed and has twice as many."""

    tile_rows: Mapping[int, int]
    tile_cost: Mapping[int, float]
    room: int
    unaligned_rows: int
    streamed: bool
    ahead: int
    rows_ahead: int
    wide: int


# Loads of a and b share the pipe. Rows of a at a distance of 4096 bytes share an L1 cache set of 8 ways: 16 took twice as long.
# Without prefetches of rows 16 x 4096 x 4096 takes 10.4 ms for 6.5, 128 rows 64 for 42; 8, 16, 64 or 128 rows ahead 8.7, 7.6, 7.2
# and 7.2.
ZEN4 = Measured({4: 6, 3: 8, 2: 8, 1: 6}, {4: 1.0, 3: 1.01, 2: 1.05, 1: 1.1}, 1 << 20, 1 << 62, False, 0, 32, 1 << 62)
# Two vectors of multiply-adds a cycle need 8 sums or more: by tiles of 6 x 1 200 x 192 x 192 has 115 GFLOP/s, by 14 x 1 151, by
# others 167. The L2 cache has 2 MiB: 640 cubed has 160 GFLOP/s in place, 147 packed. 200 cubed has 110 and 122. Streamed
# 64 x 1024 x 4096 has 133, by blocks of 32 rows and parts of 512 k 51; 200 x 1024 x 4096 131 and 57, 48 x 512 x 2048 136 and 83.
# With prefetches of a panel's next rows 1024 cubed is 1.04 times as fast, of the next panel 2048 cubed 1.04 times. 64 rows by 256
# columns take 768 cubed at 1.04 times the rate of 128 by 128.
EMERALD_RAPIDS = Measured({4: 6, 3: 8, 2: 12, 1: 14}, {4: 1.0, 3: 1.01, 2: 1.02, 1: 1.1}, 2 << 20, 96, True, 8, 0, 256)
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
# Bytes of a result from which nontemporal stores write it, without reading each line first: 4096 x 16 x 4096 takes 5.3 ms in f32
# on one thread for 8.3 to 9.9, in bf16 3.2 for 8.5; 2048 x 64 x 2048 4.9 for 5.2.
PAST_CACHES_NBYTES, LINE_NBYTES = 16 << 20, 64
# From so many rows on a b that exceeds `room` is packed: fewer do not pay for it.
PACKED_ROWS = 256
# Rows of b that a packing program takes.
DEEP = 8


def measured_on(target: ops.Target) -> Measured:
    """Returns the figures for a target: those of Intel's Xeons where it has AMX."""
    return EMERALD_RAPIDS if target.features >= BF16_TILES else ZEN4


def tile_rows(vectors: int, target: ops.Target) -> int:
    """Returns the rows of a register tile of so many vectors: 6 by one vector of two registers are 12 sums."""
    return measured_on(target).tile_rows[vectors] if target.lanes >= WIDTH else 6


def tile_of(s: Sizes, target: ops.Target) -> tuple[int, int]:
    """Returns the rows and vectors of the register tile that computes the fewest elements outside the product."""
    cost, vectors = measured_on(target).tile_cost, 1
    if target.lanes >= WIDTH:
        vectors = min(cost, key=lambda v: cost[v] * -(-s.columns // (v * WIDTH)) * v)
    return min(tile_rows(vectors, target), bound(s.rows)), vectors


@dataclass(frozen=True)
class Panels:
    """`count` even panels of `total` vectors of columns, which have `vectors` vectors or one less. `cost`: the vectors of all by
    the relative time of their tiles."""

    vectors: int
    total: int
    count: int
    cost: float


def panels_of(columns: int, target: ops.Target, rows_in_halves: bool) -> Panels:
    """Returns panels with no vector outside the product, those that take the least time on one worker or two. With
    `rows_in_halves` a panel is two programs, so that two workers share an odd number of panels evenly."""
    total, cost = -(-columns // WIDTH), {0: 0.0, **measured_on(target).tile_cost}
    widths = range(1, max(cost) + 1) if target.lanes >= WIDTH else (1,)

    def panels(count: int) -> Panels:
        less, wide = divmod(total, count)
        spent = wide * (less + 1) * cost.get(less + 1, 0.0) + (count - wide) * less * cost[less]
        return Panels(less + (wide > 0), total, count, spent)

    def spent(p: Panels) -> float:
        more = (total % 2 if p.count % 2 == 0 else 0 if rows_in_halves else p.vectors) if p.count > 1 else 0
        return p.cost * (1 + more / total)

    return min((panels(c) for c in {min(-(-total // w) + more, total) for w in widths for more in (0, 1)}), key=spent)


def is_packed(s: Sizes, target: ops.Target) -> bool:
    """Returns whether packing b pays: it is [n, k], or large, or its rows are not aligned to cache lines."""
    figures, rows = measured_on(target), bound(s.rows)
    is_large = rows >= PACKED_ROWS and 4 * prod(s.b_shape) > figures.room
    return s.transposed or is_large or (s.columns % WIDTH > 0 and rows >= figures.unaligned_rows)


def part_of(depth: int, part: int) -> int:
    """Returns the depth of a block: equal parts of at most `part`, in full cache lines."""
    equal = -(-depth // -(-depth // part))
    return min(-(-equal // WIDTH) * WIDTH, depth)


def may_be_streamed(s: Sizes) -> bool:
    """Returns whether a CPU may take all rows at once, a part of STREAMED_PART at a time."""
    return bound(s.rows) < PACKED_ROWS and 4 * prod(s.b_shape) > STREAMED_NBYTES


def is_written_past_caches(s: Sizes, vectors: int, part: int, result: DType) -> bool:
    """Returns whether nontemporal stores write the result: it is too large for caches, a panel of so many vectors has whole
    lines, and no part of the depth reads it again."""
    nbytes, width = s.matrices * bound(s.rows) * s.columns * result.nbytes, vectors * WIDTH
    has_lines = s.columns % width == 0 and width * result.nbytes % LINE_NBYTES == 0
    return not s.extents and nbytes >= PAST_CACHES_NBYTES and has_lines and (s.depth <= part or result != f32)


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
    wide = measured_on(target).wide
    panels = -(-s.columns // (wide if packed and s.columns >= 2 * wide else GROUPS[0])) * s.matrices
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
