"""Tiles on Metal's SIMD-group matrices.

A tile is divided into pieces of 8 x 8 floats, and each SIMD-group owns a rectangle of them. Metal does not specify which elements
a thread has, so accumulators are stored through threadgroup memory and cannot be scaled in place.
"""

from __future__ import annotations

from camshaft.emit.tiles import GroupUnit
from camshaft.lang import ir

SIDE, SIMD_WIDTH = 8, 32
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
# A and B are pointers to a SIMD-group's first row and column of the operands, in either address space.
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


def _takes(products: list[ir.TileMma]) -> bool:
    """Whether the operands are f32: Metal multiplies matrices of one type."""
    return all(item.a.dtype.name == item.b.dtype.name == "f32" for item in products)


# A piece takes 2 registers of every thread.
UNIT = GroupUnit(SIMD_WIDTH, (SIDE, SIDE), 32, _takes)


def native_tiles(kernel: ir.KernelIR, lanes: int) -> frozenset[ir.Tile]:
    """The tiles that become SIMD-group matrices. Tiles that are scaled do not: a product with a diagonal matrix would make NaN of
    infinities."""
    return UNIT.native_tiles(kernel, lanes) - {i.tile for i in ir.walk(kernel.body) if isinstance(i, ir.TileScale)}


def place(tile: ir.Tile, lanes: int) -> tuple[str, str]:
    """A SIMD-group's first row and column of a tile, as expressions of `lane`."""
    found = UNIT.spread(tile, lanes)
    number = f"lane / {SIMD_WIDTH} % {found.used}"
    return f"{number} / {found.across} * {found.rows * SIDE}", f"{number} % {found.across} * {found.columns * SIDE}"


def stored(
    tile: ir.Tile, lanes: int, name: str, room: str, limits: tuple[str | None, str | None], write: str
) -> list[str]:
    """Lines that store a tile piece by piece through `room`, 64 floats per SIMD-group. `write` is a statement with {row} {column}
    and {value}."""
    found, (first_row, first_column) = UNIT.spread(tile, lanes), place(tile, lanes)
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
