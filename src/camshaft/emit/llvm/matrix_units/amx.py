"""AMX: tiles of 16 rows of 64 bytes, in 8 registers.

LLVM configures the tiles: it takes their shapes from the calls, and keeps vectors that are only cast to tiles and back in tile
registers (its pass X86LowerAMXType).
"""

from __future__ import annotations

from functools import cache

from camshaft.dtypes import i32
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.matrix_units.unit import Slots, Unit, pieces, start_of, words_after
from camshaft.emit.llvm.values import Rep
from camshaft.emit.target import BF16_TILES
from camshaft.lang import tile_ir


def _sides(tile: tile_ir.Tile) -> tuple[int, int]:
    """Rows, and bytes of a row, of every piece of a tile."""
    return min(tile.rows, 16), 4 * min(tile.columns, 16)


def _i16(*numbers: int) -> list[tuple[str, str]]:
    """Arguments of an AMX call: rows, bytes of a row."""
    return [("i16", str(n)) for n in numbers]


def _vector(tile: tile_ir.Tile) -> tuple[str, str]:
    """LLVM's type of a tile's elements, and the suffix of its casts."""
    return ("<256 x i32>", "v256i32") if tile.dtype == i32 else ("<256 x float>", "v256f32")


def _as_vector(ctx: Context, tile: tile_ir.Tile, amx: str) -> str:
    typ, suffix = _vector(tile)
    return ctx.call(f"llvm.x86.cast.tile.to.vector.{suffix}", typ, ("x86_amx", amx))


def _as_tile(ctx: Context, tile: tile_ir.Tile, slot: str) -> str:
    typ, suffix = _vector(tile)
    vector = ctx.line(f"load {typ}, ptr {slot}")
    return ctx.call(f"llvm.x86.cast.vector.to.tile.{suffix}", "x86_amx", (typ, vector))


def _zero(ctx: Context, tile: tile_ir.Tile) -> str:
    return _as_vector(ctx, tile, ctx.call("llvm.x86.tilezero.internal", "x86_amx", *_i16(*_sides(tile))))


def _load(ctx: Context, rows: int, nbytes: int, pointer: str, stride: int, passing: bool = False) -> str:
    memory = ("ptr", pointer), ("i64", str(4 * stride))
    name = f"llvm.x86.tileloadd{'t1' if passing else ''}64.internal"
    return ctx.call(name, "x86_amx", *_i16(rows, nbytes), *memory)


def _step(ctx: Context, item: tile_ir.TileMma, slots: Slots, p: Rep, words: int) -> None:
    """Load each operand's tiles once and multiply all pairs. A left operand that the kernel does not write stays in its registers
    for the next product.

    Tiles are loaded where they are first needed: all loads before all products took 5 % longer (Emerald Rapids)."""
    tile, (rows, nbytes) = item.tile, _sides(item.tile)
    place = (item.a, *(ctx.reps[i].name for i in item.a_at), p.name, rows, words)
    lefts = ctx.left[1] if ctx.left is not None and ctx.left[0] == place else {}
    ctx.left = None if item.a.writable or item.a.scratch else (place, lefts)
    a_stride, b_stride = item.a.strides[-2], item.b.strides[-2]
    a_start, b_start = start_of(ctx, item.a, item.a_at, p, 1), start_of(ctx, item.b, item.b_at, p, b_stride)

    def left(i: int) -> str:
        if i not in lefts:
            pointer = words_after(ctx, a_start, i * rows * a_stride)
            lefts[i] = _load(ctx, rows, 4 * words, pointer, a_stride, "a" in item.passing)
        return lefts[i]

    @cache
    def right(j: int) -> str:
        rows_below, column = divmod(j * nbytes // 4, item.b_columns())
        start = words_after(ctx, b_start, rows_below * item.depth * b_stride + column)
        return _load(ctx, words, nbytes, start, b_stride, "b" in item.passing)

    name = f"llvm.x86.{'tdpbsud' if tile.dtype == i32 else 'tdpbf16ps'}.internal"
    for i, j, slot in pieces(slots):
        b = right(j)
        operands = [("x86_amx", x) for x in (_as_tile(ctx, tile, slot), left(i), b)]
        sums = ctx.call(name, "x86_amx", *_i16(rows, nbytes, 4 * words), *operands)
        ctx.write(f"store {_vector(tile)[0]} {_as_vector(ctx, tile, sums)}, ptr {slot}")


def _take(ctx: Context, item: tile_ir.TileNew, slots: Slots, start: str) -> None:
    assert item.array is not None
    (rows, nbytes), stride = _sides(item.tile), item.array.strides[-2]
    for i, j, slot in pieces(slots):
        sums = _load(ctx, rows, nbytes, words_after(ctx, start, i * rows * stride + j * nbytes // 4), stride)
        ctx.write(f"store {_vector(item.tile)[0]} {_as_vector(ctx, item.tile, sums)}, ptr {slot}")


def _put(ctx: Context, item: tile_ir.TileStore, slots: Slots, start: str) -> None:
    (rows, nbytes), stride = _sides(item.tile), item.array.strides[-2]
    for i, j, slot in pieces(slots):
        memory = ("ptr", words_after(ctx, start, i * rows * stride + j * nbytes // 4)), ("i64", str(4 * stride))
        amx = ("x86_amx", _as_tile(ctx, item.tile, slot))
        ctx.call("llvm.x86.tilestored64.internal", "void", *_i16(rows, nbytes), *memory, amx)


AMX = Unit(
    {"i32": frozenset({"amx-tile", "amx-int8"}), "f32": BF16_TILES},
    (16, 16, 16),
    8,
    1,
    lambda down, across, shapes: down * across + (down + across) * shapes,
    "<256 x {}>",
    _zero,
    _step,
    _take,
    _put,
)
