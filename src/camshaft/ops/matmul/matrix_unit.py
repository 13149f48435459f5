"""matmul of bf16 by bf16 on a CPU's matrix unit (AMX, NEON's bf16): tiles of 32-bit words, each a pair of k.

b is packed to panels of words. Products are exact in f32; the order and rounding of sums are the unit's, and deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from camshaft.dtypes import bf16, f32, i64, u16, u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.matmul.lanes import Axes, matrix_of
from camshaft.ops.matmul.shapes import Sizes, sizes_of
from camshaft.ops.matmul.tiled import PACK_DEPTH, WIDTH, column_vectors, pack_transposed
from camshaft.ops.spec import TensorSpec, bound

# k per 32-bit word; the depth must be a multiple
PAIR, DEPTH = 2, 4


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


TILES = (
    UnitTile(frozenset({"amx-tile", "amx-bf16"}), 32, 32, 32, 16, 8.0),
    UnitTile(frozenset({"neon", "bf16"}), 8, 8, 16, 2, 3.0),
)


@kernel
def pack_pairs(k: Tracer, b: Array, packed: Array, *, columns: int, vectors: int, depth: int, part: int) -> None:
    # packed[matrix, panel, d, c] = the bits of b[matrix, 2d, c] below those of b[matrix, 2d + 1, c]; columns past the last are 0
    matrix, panel, first = k.program(0), k.program(1), k.program(2) * part
    panels = -(-columns // (vectors * WIDTH))
    at, counts = column_vectors(k, panel * (vectors * WIDTH), columns, vectors)
    for d in k.range(first, k.minimum(first + part, depth)):
        for j in range(vectors):
            row = matrix * (PAIR * depth) + d * PAIR
            low, high = (k.load_vector(b, row + i, at[j], width=WIDTH, count=counts[j]).to(u32) for i in range(PAIR))
            k.store_vector(packed, (high << 16) | low, matrix * panels + panel, d, j * WIDTH)


@kernel
def multiply_words(
    k: Tracer, a: Array, b: Array, out: Array, *extent: Value, rows: int, columns: int, words: int, tile: int, width: int,
    panel: int, batch: Axes, a_steps: Axes, b_steps: Axes,
) -> None:  # fmt: skip
    # out[i, j] = sum over words d of a[i, d] b[panel(j), d, j]; the last tile starts earlier, so that it is full
    index, column, first = k.program(0), k.program(1) * width, k.program(2) * tile
    start, limit = k.minimum(first, rows - tile), extent[0] if extent else k.const(rows, i64)
    a_row = matrix_of(index, batch, a_steps) * rows + start
    b_panel = matrix_of(index, batch, b_steps) * -(-columns // panel) + column // panel
    total, sums = k.word_tile(tile, width, f32), k.scratch(f32, tile, width)
    total.mma(a, (a_row, 0), b, (b_panel, 0, column % panel), k=words)
    total.store(sums, (0, 0))
    k.barrier()
    for i in k.range(tile):
        with k.when((start + i >= first) & (start + i < limit)):
            for c in range(0, width, min(width, WIDTH)):
                values = k.load_vector(sums, i, c, width=min(width, WIDTH))
                there = k.minimum(columns - (column + c), min(width, WIDTH))
                at = k.minimum(column + c, columns - 1)
                k.store_vector(out, values, index * rows + start + i, at, count=k.maximum(there, 0))


def tile_of(target: ops.Target) -> UnitTile | None:
    """Returns the tile for the target's unit; None if it has none."""
    return next((tile for tile in TILES if tile.features <= target.features), None)


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
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


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds a launch that packs b to panels of words, then one with a program per tile."""
    s, tile = sizes_of(node), tile_of(target)
    assert tile is not None
    words, panels = s.depth // PAIR, -(-s.columns // tile.panel)
    rows, height = bound(s.rows), tile.rows_for(s.depth)
    multiply = ops.Launch(
        multiply_words,
        (
            ops.Operand("input", 0, shape=(s.a_matrices * rows, words), dtype=u32),
            ops.scratch(0, "read"),
            ops.write(0, shape=(s.matrices * rows, s.columns)),
        ),
        (ops.Cells(s.matrices), ops.Cells(s.columns, tile.columns), ops.Cells(s.rows, height)),
        {
            "rows": rows,
            "columns": s.columns,
            "words": words,
            "tile": height,
            "width": tile.columns,
            "panel": tile.panel,
            **s.constants(),
        },
        s.extents,
    )
    packed = TensorSpec((s.b_matrices * panels, words, tile.panel), u32)
    return ops.Build((_pack(s, words, tile.panel // WIDTH), multiply), (packed,))


def _pack(s: Sizes, words: int, vectors: int) -> ops.Launch:
    """Returns the launch that packs b to words: pairs within rows for [n, k], pairs of two rows for [k, n]."""
    panels = -(-s.columns // (vectors * WIDTH))
    if s.transposed:
        function, b = pack_transposed, ops.Operand("input", 1, shape=(s.b_matrices * s.columns, words), dtype=u32)
    else:
        function, b = pack_pairs, ops.Operand("input", 1, shape=s.b_shape, dtype=u16)
    return ops.Launch(
        function,
        (b, ops.scratch(0, "write")),
        (ops.Cells(s.b_matrices), ops.Cells(panels), ops.Cells(words, PACK_DEPTH)),
        {"columns": s.columns, "vectors": vectors, "depth": words, "part": PACK_DEPTH},
    )


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """An estimate: the rate of `blocked` times the unit's multiply-adds per instruction relative to a vector's; packing as
    there."""
    s, tile = sizes_of(node), tile_of(target)
    assert tile is not None
    return s.multiply_adds / (3.4 * target.lanes * tile.speed) + 0.6 * prod(s.b_shape) + 100.0
