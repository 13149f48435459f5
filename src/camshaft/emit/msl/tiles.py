"""Tiles on Metal's SIMD-group matrices.

A tile is divided into pieces of 8 x 8 floats, and each SIMD-group owns a rectangle of them. Metal does not specify which elements
a thread has, so accumulators are stored through threadgroup memory and cannot be scaled in place.
"""

from __future__ import annotations

from camshaft.emit.c_family.statements import stable
from camshaft.emit.c_family.text import PRODUCT, SUM, Text, add, multiply
from camshaft.emit.c_family.values import flush, linear
from camshaft.emit.msl.context import MslContext
from camshaft.emit.tiles import GroupUnit
from camshaft.lang import ir, tile_ir, traversal

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


def _takes(products: list[tile_ir.TileMma]) -> bool:
    """Whether the operands are f32: Metal multiplies matrices of one type."""
    return all(item.a.dtype.name == item.b.dtype.name == "f32" for item in products)


# A piece takes 2 registers of every thread.
UNIT = GroupUnit(SIMD_WIDTH, (SIDE, SIDE), 32, _takes)


def native_tiles(kernel: ir.KernelIR, lanes: int) -> frozenset[tile_ir.Tile]:
    """The tiles that become SIMD-group matrices. Tiles that are scaled do not: a product with a diagonal matrix would make NaN of
    infinities."""
    return UNIT.native_tiles(kernel, lanes) - {
        i.tile for i in traversal.walk(kernel.body) if isinstance(i, tile_ir.TileScale)
    }


# --- statements ------------------------------------------------------------------------------------------------------


def new(ctx: MslContext, item: tile_ir.TileNew) -> None:
    found, name = UNIT.spread(item.tile, ctx.simt.lanes), ctx.names.new("tile")
    ctx.tiles[item.tile] = name
    ctx.collectives["clear_tile"], ctx.collectives["multiply_tile"] = CLEAR, MULTIPLY
    ctx.write_line(f"simdgroup_float8x8 {name}[{found.rows}][{found.columns}];", item.line)
    ctx.write_line(f"clear_tile({name});", item.line)


def mma(ctx: MslContext, item: tile_ir.TileMma) -> None:
    row, column = (Text(text, PRODUCT) for text in _first_row_and_column(item.tile, ctx.simt.lanes))
    down, across = multiply(row, item.a.strides[-2]), column
    if item.transposed:
        across = multiply(column, item.b.strides[-2])
    operands = [
        f"{add(add(Text(ctx.array_names[array]), linear(ctx, array, at)), first).code}, {array.strides[-2]}"
        for array, at, first in ((item.a, item.a_at, down), (item.b, item.b_at, across))
    ]
    flush(ctx, frozenset({item.a, item.b}))
    function = f"multiply_tile<{'true' if item.transposed else 'false'}>"
    ctx.write_line(f"{function}({ctx.tiles[item.tile]}, {', '.join(operands)}, {item.depth});", item.line)


def store(ctx: MslContext, item: tile_ir.TileStore) -> None:
    """Store a tile piece by piece through `tile_room`, 64 floats per SIMD-group."""
    array, at = item.array, linear(ctx, item.array, item.indices).at_least(SUM)
    limits = [None if v is None else stable(ctx, v).at_least(SUM) for v in (item.rows, item.columns)]
    flush(ctx)
    if ctx.tile_room is None:
        ctx.tile_room = ctx.names.new("tile_room", everywhere=True)
    value = f"{ctx.tile_room}[lane / {SIMD_WIDTH} * 64 + piece_element]"
    if array.dtype.name in ("f16", "bf16"):
        value = f"half({value})" if array.dtype.name == "f16" else f"{ctx.use('f32_to_bf16')}({value})"
    target = f"{ctx.array_names[array]}[{at} + piece_row * {array.strides[-2]} + piece_column]"
    for line in _store_lines(ctx, item.tile, limits, f"{target} = {value};"):
        ctx.write_line(line, item.line)


def _first_row_and_column(tile: tile_ir.Tile, lanes: int) -> tuple[str, str]:
    """A SIMD-group's first row and column of a tile, as expressions of `lane`."""
    found = UNIT.spread(tile, lanes)
    number = f"lane / {SIMD_WIDTH} % {found.used}"
    return f"{number} / {found.across} * {found.rows * SIDE}", f"{number} % {found.across} * {found.columns * SIDE}"


def _store_lines(ctx: MslContext, tile: tile_ir.Tile, limits: list[str | None], write: str) -> list[str]:
    """The loops over a tile's pieces around the statement `write`, which uses piece_row, piece_column and piece_element."""
    lanes, name, room = ctx.simt.lanes, ctx.tiles[tile], ctx.tile_room
    found, (first_row, first_column) = UNIT.spread(tile, lanes), _first_row_and_column(tile, lanes)
    conditions = [f"lane / {SIMD_WIDTH} < {found.used}"] if found.used < lanes // SIMD_WIDTH else []
    conditions += [f"{n} < {limit}" for n, limit in zip(("piece_row", "piece_column"), limits, strict=True) if limit]
    body = [f"if ({' && '.join(conditions)}) {{", f"    {write}", "}"] if conditions else [write]
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
