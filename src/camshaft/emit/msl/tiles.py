"""Tiles on Metal's SIMD-group matrices.

A tile is divided into pieces of 8 x 8 floats, and each SIMD-group owns a rectangle of them. Metal does not specify which elements
a thread holds, so accumulators are stored through threadgroup memory and cannot be scaled in place.
"""

from __future__ import annotations

from camshaft.emit.tile_spread import Spread, products_by_tile, spread_of
from camshaft.lang import ir

SIDE, SIMD_WIDTH = 8, 32
# Pieces of a SIMD-group: each takes 2 registers of every thread.
MOST_PIECES = 32
_WORDS = """
simdgroup_float8x8 simdgroup_load simdgroup_store simdgroup_multiply_accumulate simdgroup_barrier make_filled_simdgroup_matrix
clear_tile multiply_tile ulong2 piece_row piece_column piece_element
"""
WORDS = frozenset(_WORDS.split())

CLEAR = """\
template <int R, int C> inline void clear_tile(thread simdgroup_float8x8 (&tile)[R][C]) {
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) {
            tile[r][c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
}"""
# A and B are pointers to a SIMD-group's first row, and column, of the operands, in either address space.
MULTIPLY = """\
template <bool TRANSPOSED, int R, int C, typename A, typename B>
inline void multiply_tile(thread simdgroup_float8x8 (&tile)[R][C], A a, int a_stride, B b, int b_stride, int depth) {
    for (int p = 0; p < depth; p += 8) {
        simdgroup_float8x8 left[R];
        simdgroup_float8x8 right[C];
        for (int r = 0; r < R; ++r) {
            simdgroup_load(left[r], a + 8 * r * a_stride + p, a_stride);
        }
        for (int c = 0; c < C; ++c) {
            const int start = TRANSPOSED ? 8 * c * b_stride + p : p * b_stride + 8 * c;
            simdgroup_load(right[c], b + start, b_stride, ulong2(0, 0), TRANSPOSED);
        }
        for (int r = 0; r < R; ++r) {
            for (int c = 0; c < C; ++c) {
                simdgroup_multiply_accumulate(tile[r][c], left[r], right[c], tile[r][c]);
            }
        }
    }
}"""


def spread(tile: ir.Tile, lanes: int) -> Spread:
    """How SIMD-groups share a tile."""
    return spread_of(tile, lanes // SIMD_WIDTH, (SIDE, SIDE))


def native_tiles(kernel: ir.KernelIR, lanes: int) -> frozenset[ir.Tile]:
    """The tiles that become SIMD-group matrices: whole SIMD-groups, operands of f32 (Metal multiplies matrices of one type), and
    never scaled: a product with a diagonal matrix would make NaN of infinities."""
    scaled = {item.tile for item in ir.walk(kernel.body) if isinstance(item, ir.TileScale)}
    return frozenset(
        tile
        for tile, items in products_by_tile(kernel).items()
        if tile not in scaled and lanes % SIMD_WIDTH == 0 and _fits(tile, lanes) and all(map(_is_f32, items))
    )


def _fits(tile: ir.Tile, lanes: int) -> bool:
    found = spread(tile, lanes)
    return found.rows * found.columns <= MOST_PIECES


def _is_f32(item: ir.TileMma) -> bool:
    return item.a.dtype.name == item.b.dtype.name == "f32"


def place(tile: ir.Tile, lanes: int) -> tuple[str, str]:
    """A SIMD-group's first row and column of a tile, as expressions of `lane`."""
    found = spread(tile, lanes)
    number = f"lane / {SIMD_WIDTH} % {found.used}"
    return f"{number} / {found.across} * {found.rows * SIDE}", f"{number} % {found.across} * {found.columns * SIDE}"


def stored(
    tile: ir.Tile, lanes: int, name: str, room: str, limits: tuple[str | None, str | None], write: str
) -> list[str]:
    """Lines that store a tile: piece by piece through `room`, 64 floats a SIMD-group. `write` is a statement of {row} {column}
    and {value}."""
    found, (first_row, first_column) = spread(tile, lanes), place(tile, lanes)
    own = f"{room}[lane / {SIMD_WIDTH} * 64 + piece_element]"
    conditions = [f"lane / {SIMD_WIDTH} < {found.used}"] if found.used < lanes // SIMD_WIDTH else []
    conditions += [f"{n} < {limit}" for n, limit in zip(("piece_row", "piece_column"), limits, strict=True) if limit]
    text = write.format(row="piece_row", column="piece_column", value=own)
    body = [f"if ({' && '.join(conditions)}) {{", f"    {text}", "}"] if conditions else [text]
    return [
        f"for (int r = 0; r < {found.rows}; ++r) {{",
        f"    for (int c = 0; c < {found.columns}; ++c) {{",
        f"        simdgroup_store({name}[r][c], {room} + lane / {SIMD_WIDTH} * 64, {SIDE});",
        "        simdgroup_barrier(mem_flags::mem_threadgroup);",
        f"        for (int piece_element = lane % {SIMD_WIDTH}; piece_element < 64; piece_element += {SIMD_WIDTH}) {{",
        f"            const int piece_row = {first_row} + r * {SIDE} + piece_element / {SIDE};",
        f"            const int piece_column = {first_column} + c * {SIDE} + piece_element % {SIDE};",
        *(f"            {line}" for line in body),
        "        }",
        "        simdgroup_barrier(mem_flags::mem_threadgroup);",
        "    }",
        "}",
    ]
