"""matmul of bf16 by bf16 on CPUs that multiply pairs: dot products in the blocks of blocked.py, or tiles on a matrix unit.

Depth is counted in 32-bit words of two k. Products are exact in f32. A dot product (vdpbf16ps, bfdot) adds those of a pair in
order, each sum rounded once, with subnormal numbers as 0 (k.dot2; NEON's bfdot has its own order and rounding). On a matrix unit
(AMX, NEON's bf16) the order and rounding of sums are the unit's, and deterministic; b is packed to panels of words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from camshaft.dtypes import bf16, f32, i64, u16, u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks import block_sizes, blocked
from camshaft.ops.matmul.blocks.panels import PACK_DEPTH, pack_launch
from camshaft.ops.matmul.shapes import PAIR, WIDTH, Matrices, Sizes, result_of, sizes_of
from camshaft.ops.spec import TensorSpec, bound

FEATURES = (frozenset({"avx512bf16", "avx512vl"}), frozenset({"neon", "bf16"}))
# The rows and elements of b from which pairing b's rows once costs less than pairing them for each tile of rows.
PACKED_ROWS, PACKED_SIZE = 48, 10_000
# With so many rows and at least so many columns, a program takes all rows and pairs its panels itself, so that b is read
# once and not written: 64 x 1024 x 4096 takes 3.55 ms, 4.16 ms with b packed first. Three row tiles pair as fast as they read.
PACK_INSIDE_ROWS, PACK_INSIDE_COLUMNS = range(19, 97), 1024


def in_words_of(s: Sizes) -> tuple[ops.Operand, ops.Operand]:
    """Returns a, and b as [n, k], in words; b as [k, n] in 16-bit elements, whose rows a launch pairs. `s`: sizes in words."""
    a, b, _ = s.operands
    of_b = replace(b, dtype=u32) if s.transposed else replace(b, shape=(s.b_shape[0] * PAIR, s.columns), dtype=u16)
    return replace(a, dtype=u32), of_b


def _supports_dot(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    if not any(features <= target.features for features in FEATURES):
        return "takes CPUs that multiply pairs of bf16: AVX-512's vdpbf16ps, NEON's bfdot"
    if any(spec.dtype != bf16 for spec in node.inputs):
        return "takes bf16 by bf16"
    depth = sizes_of(node).depth
    return f"a depth of {depth}; wanted an even one" if depth % PAIR else None


def _defaults_dot(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the cost model's choice, as in blocked.py."""
    s = sizes_of(node).in_words
    values, rows = block_sizes.values_of(s, target), bound(s.rows)
    if not s.transposed and rows in PACK_INSIDE_ROWS and s.columns >= PACK_INSIDE_COLUMNS:
        block = next(n for n in block_sizes.BLOCKS if n >= rows + values["rows"])
        group = max(
            (n for n in block_sizes.GROUPS if n * block_sizes.PROGRAMS <= s.columns), default=block_sizes.GROUPS[0]
        )
        return {**values, "packed": block_sizes.PACKED_INSIDE, "block": block, "group": group}
    packed = s.transposed or (rows >= PACKED_ROWS and PAIR * prod(s.b_shape) >= PACKED_SIZE)
    return {**values, "packed": block_sizes.PACKED if packed else block_sizes.IN_PLACE}


def _refusal_dot(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Like `refusal` in blocked.py, but a is never copied."""
    return "pairs of a are read in place" if values["copied"] else blocked.refusal(node, target, values)


def _build_dot(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds one launch, after a launch that packs b if several row tiles read it or if it is [n, k]."""
    s = sizes_of(node).in_words
    return blocked.build_of(s, values, *in_words_of(s), u32, result_of(node))


_FIXED = {"copied": (0,), "packed": (block_sizes.IN_PLACE, block_sizes.PACKED, block_sizes.PACKED_INSIDE)}
_TUNABLES = ops.Tunables(
    {name: found for name, found in blocked.TUNABLES.values.items() if name not in _FIXED} | _FIXED,
    _defaults_dot,
    _build_dot,
    _refusal_dot,
)


def _cost_dot(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Zen 4: 6 multiply-adds per lane and nanosecond, packing b 0.15 ns per element (0.3 if b is [n, k])."""
    s, values = sizes_of(node), _defaults_dot(node, target)
    width = values["vectors"] * WIDTH
    packing = (0.3 if s.transposed else 0.15) * prod(s.b_shape) * (values["packed"] == block_sizes.PACKED)
    return max(s.in_panels(width) / (6 * target.lanes), sum(spec.nbytes for spec in node.inputs) / 20) + packing + 100.0


BF16_DOT = ops.KernelVariant(
    "bf16_dot", frozenset({"simd"}), _TUNABLES.build_default, _supports_dot, _cost_dot, _TUNABLES
)


@dataclass(frozen=True)
class UnitTile:
    """The tile for CPUs with `features`: its rows and columns, the depth of a step (`deep` words), the columns of a packed
    panel, and the multiply-adds per instruction relative to a vector's (for the estimated costs: no such CPU was measured).

    The tile fills the unit's registers at depths of whole steps. Other depths use half the rows, because the shorter last step
    needs registers of its own."""

    features: frozenset[str]
    rows: int
    columns: int
    panel: int
    deep: int
    speed: float

    def rows_for(self, depth: int) -> int:
        """Returns the rows of the tile for a depth."""
        return self.rows if depth % (PAIR * self.deep) == 0 else self.rows // 2


# k that the depth must be a multiple of, on a matrix unit.
DEPTH = 4
TILES = (
    UnitTile(frozenset({"amx-tile", "amx-bf16"}), 32, 32, 32, 16, 8.0),
    UnitTile(frozenset({"neon", "bf16"}), 8, 8, 16, 2, 3.0),
)


@kernel
def multiply_words(
    k: Tracer, a: Array, b: Array, out: Array, *extent: Value, tile: int, width: int, panel: int, **sizes: Any
) -> None:
    # out[i, j] = sum over words d of a[i, d] b[panel(j), d, j]; the last tile starts earlier, so that it is full
    m = Matrices(**sizes)
    index, column, first = k.program(0), k.program(1) * width, k.program(2) * tile
    start, limit = k.minimum(first, m.rows - tile), extent[0] if extent else k.const(m.rows, i64)
    a_row = m.a(index) * m.rows + start
    b_panel = m.b(index) * -(-m.columns // panel) + column // panel
    total, sums = k.word_tile(tile, width, f32), k.scratch(f32, tile, width)
    total.mma(a, (a_row, 0), b, (b_panel, 0, column % panel), k=m.depth)
    total.store(sums, (0, 0))
    k.barrier()
    for i in k.range(tile):
        with k.when((start + i >= first) & (start + i < limit)):
            for c in range(0, width, min(width, WIDTH)):
                values = k.load_vector(sums, i, c, width=min(width, WIDTH))
                there = k.minimum(m.columns - (column + c), min(width, WIDTH))
                at = k.minimum(column + c, m.columns - 1)
                k.store_vector(out, values, index * m.rows + start + i, at, count=k.maximum(there, 0))


def tile_of(target: ops.Target) -> UnitTile | None:
    """Returns the tile for the target's unit; None if it has none."""
    return next((tile for tile in TILES if tile.features <= target.features), None)


def _supports_unit(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    tile = tile_of(target) if target.backend == "simd" else None
    if tile is None:
        return "takes CPUs that multiply matrices of bf16: AMX's or NEON's"
    if any(spec.dtype != bf16 for spec in node.inputs):
        return "takes bf16 by bf16"
    s = sizes_of(node)
    if s.depth % DEPTH == 0 and bound(s.rows) < tile.rows_for(s.depth):
        return f"a tile of {tile.rows_for(s.depth)} rows for {bound(s.rows)}"
    return f"a depth of {s.depth}; wanted a multiple of {DEPTH}" if s.depth % DEPTH else None


def _build_unit(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds a launch that packs b to panels of words, then one with a program per tile."""
    s, tile = sizes_of(node).in_words, tile_of(target)
    assert tile is not None
    (a, b), height = in_words_of(s), tile.rows_for(s.depth * PAIR)
    multiply = ops.Launch(
        multiply_words,
        (a, ops.scratch(0, "read"), s.out),
        (ops.Cells(s.matrices), ops.Cells(s.columns, tile.columns), ops.Cells(s.rows, height)),
        {"tile": height, "width": tile.columns, "panel": tile.panel, **s.constants()},
        s.extents,
    )
    packed = TensorSpec((s.b_matrices * -(-s.columns // tile.panel), s.depth, tile.panel), u32)
    return ops.Build((pack_launch(s, tile.panel // WIDTH, PACK_DEPTH, b, 0), multiply), (packed,))


def _cost_unit(node: ops.NodeSpec, target: ops.Target) -> float:
    """An estimate: the rate of `blocked` times the unit's multiply-adds per instruction relative to a vector's; packing as
    there."""
    s, tile = sizes_of(node), tile_of(target)
    assert tile is not None
    return s.multiply_adds / (3.4 * target.lanes * tile.speed) + 0.6 * prod(s.b_shape) + 100.0


MATRIX_UNIT = ops.KernelVariant("matrix_unit", frozenset({"simd"}), _build_unit, _supports_unit, _cost_unit)
