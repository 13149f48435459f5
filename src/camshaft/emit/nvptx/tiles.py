"""Tiles on the matrix units of NVIDIA GPUs.

A tile is divided into pieces of 16 x 8 accumulators, four per thread, and each warp owns a rectangle of them. A piece's product
is 16 x 16 times 16 x 8 of 16-bit floats (PTX ISA, "Matrix fragments for mma.m16n8k16"). With g = lane / 4 and t = lane % 4 of a
warp, a thread has of the left matrix the pairs (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), of the right matrix, in column
g, the pairs of rows 2t and 2t + 8, and of the piece the pairs (g, 2t), (g + 8, 2t).
"""

from __future__ import annotations

from collections.abc import Iterator

from camshaft.dataclass import dataclass
from camshaft.dtypes import f32
from camshaft.emit.llvm import index
from camshaft.emit.llvm.control import counted_loop
from camshaft.emit.llvm.memory import pointer, store_vector, stored_form
from camshaft.emit.llvm.values import Rep, integer
from camshaft.emit.nvptx.simt import WARP, SimtContext, guarded
from camshaft.emit.tiles import GroupUnit
from camshaft.lang import ir, tile_ir

ROWS, COLUMNS, DEPTH = 16, 8, 16
# Deeper products become a loop over steps of 16.
MOST_UNROLLED = 64


def _takes(products: list[tile_ir.TileMma]) -> bool:
    """Whether operands have one 16-bit float dtype. (tf32 would round f32 operands.)"""
    return all(item.a.dtype == item.b.dtype and item.a.dtype.name in ("f16", "bf16") for item in products)


# 32 pieces are 128 accumulators per thread. A thread has 255 registers; more accumulators would leave too few for the operands.
UNIT = GroupUnit(WARP, (ROWS, COLUMNS), 32, _takes)


# --- statements ------------------------------------------------------------------------------------------------------


def new(ctx: SimtContext, item: tile_ir.TileNew) -> None:
    """Make four variables per piece."""
    found = UNIT.spread(item.tile, ctx.threads)
    ctx.tiles[item.tile] = pieces = [
        [[ctx.slot("tile", "float") for _ in range(4)] for _ in range(found.columns)] for _ in range(found.rows)
    ]
    for slot in _slots(pieces):
        ctx.write(f"store float 0.0, ptr {slot}")


def _slots(pieces: list[list[list[str]]]) -> Iterator[str]:
    return (slot for line in pieces for piece in line for slot in piece)


def scale(ctx: SimtContext, item: tile_ir.TileScale) -> None:
    factor = ctx.reps[item.factor].name
    for slot in _slots(ctx.tiles[item.tile]):
        value = ctx.line(f"load float, ptr {slot}")
        ctx.write(f"store float {ctx.line(f'fmul float {value}, {factor}')}, ptr {slot}")


def mma(ctx: SimtContext, item: tile_ir.TileMma) -> None:
    if item.depth <= MOST_UNROLLED:
        for p in range(0, item.depth, DEPTH):
            _step(ctx, item, integer(p))
    else:
        counted_loop(ctx, "0", str(item.depth), DEPTH, lambda p: _step(ctx, item, Rep(p, multiple=DEPTH)))


def _step(ctx: SimtContext, item: tile_ir.TileMma, p: Rep) -> None:
    """Multiply all pieces of a warp, 16 deep. Each operand is read once."""
    position, pieces = _warp_position(ctx, item.tile), ctx.tiles[item.tile]
    x, y = _operand(ctx, item.a, item.a_at), _operand(ctx, item.b, item.b_at)
    lines = [_left(ctx, x, _sum(ctx, position.row, r * ROWS), p) for r in range(len(pieces))]
    starts = (_sum(ctx, position.column, c * COLUMNS) for c in range(len(pieces[0])))
    columns = [_right(ctx, y, start, p, item.transposed) for start in starts]
    for line, a in zip(pieces, lines, strict=True):
        for slots, b in zip(line, columns, strict=True):
            before = [ctx.line(f"load float, ptr {slot}") for slot in slots]
            for slot, value in zip(slots, ctx.machine.multiplied(ctx, item.a.dtype, a, b, before), strict=True):
                ctx.write(f"store float {value}, ptr {slot}")


def store(ctx: SimtContext, item: tile_ir.TileStore) -> None:
    position, pieces = _warp_position(ctx, item.tile), ctx.tiles[item.tile]
    base = index.linear(ctx, item.array, item.indices)
    for r, line in enumerate(pieces):
        for c, slots in enumerate(line):
            for n, slot in enumerate(slots):
                row = _sum(ctx, position.row, position.thread.group, r * ROWS + n // 2 * 8)
                column = _sum(ctx, position.column, position.thread.pair, c * COLUMNS + n % 2)
                at = _sum(ctx, base, _sum(ctx, index.times(ctx, row, item.array.strides[-2]), column))
                _store_one(ctx, item, (row, column), at, slot, position.is_first)


def _store_one(
    ctx: SimtContext, item: tile_ir.TileStore, position: tuple[Rep, Rep], at: Rep, slot: str, is_first: str | None
) -> None:
    conditions = [is_first] if is_first is not None else []
    for number, limit in zip(position, (item.rows, item.columns), strict=True):
        if limit is not None:
            conditions.append(ctx.line(f"icmp slt i64 {number.name}, {ctx.reps[limit].name}"))

    def write() -> None:
        value = stored_form(ctx.typed(f32, 0), ctx.line(f"load float, ptr {slot}"), item.array.dtype)
        store_vector(ctx, item.array, at, value, 0, None)

    guarded(ctx, conditions, write)


# --- positions ----------------------------------------------------------------------------------------------------------


def _sum(ctx: SimtContext, a: Rep, *more: Rep | int) -> Rep:
    for b in more:
        a = index.plus(ctx, a, b if isinstance(b, Rep) else integer(b))
    return a


@dataclass(frozen=True)
class _InWarp:
    """A thread's position in its warp: number, number / 4, and 2 (number % 4)."""

    number: str
    group: Rep
    pair: Rep


def _in_warp(ctx: SimtContext) -> _InWarp:
    number = ctx.line(f"and i64 %lane, {WARP - 1}")
    group = Rep(ctx.line(f"lshr i64 {number}, 2"))
    return _InWarp(number, group, Rep(ctx.line(f"shl i64 {ctx.line(f'and i64 {number}, 3')}, 1"), multiple=2))


@dataclass(frozen=True)
class _WarpPosition:
    """The position of a thread's warp in a tile. `is_first`: whether the warp repeats no other; None if no warp does."""

    row: Rep
    column: Rep
    is_first: str | None
    thread: _InWarp


def _warp_position(ctx: SimtContext, tile: tile_ir.Tile) -> _WarpPosition:
    found = UNIT.spread(tile, ctx.threads)
    used, warps = found.used, ctx.threads // WARP
    warp = ctx.line(f"lshr i64 %lane, {WARP.bit_length() - 1}")
    is_first = ctx.line(f"icmp ult i64 {warp}, {used}") if used < warps else None
    number = ctx.line(f"urem i64 {warp}, {used}")
    down, across = (ctx.line(f"{op} i64 {number}, {found.across}") for op in ("udiv", "urem"))
    row = index.times(ctx, Rep(down), found.rows * ROWS)
    column = index.times(ctx, Rep(across), found.columns * COLUMNS)
    return _WarpPosition(row, column, is_first, _in_warp(ctx))


# --- operands: pairs of 16-bit floats, each in an i32 ----------------------------------------------------------------


@dataclass(frozen=True)
class _Operand:
    """A matrix of a product, from element `base` of an array on, and the thread's position in its pieces."""

    array: ir.Array
    base: Rep
    thread: _InWarp

    @property
    def stride(self) -> int:
        return self.array.strides[-2]

    @property
    def in_eights(self) -> bool:
        """Whether rows of 8 are in workgroup memory at multiples of 16 bytes, as loads of whole matrices require."""
        return self.array.scratch and self.base.multiple % 8 == 0 and self.stride % 8 == 0

    @property
    def in_pairs(self) -> bool:
        """Whether two adjacent elements of a row are an aligned word."""
        return self.base.multiple % 2 == 0 and self.stride % 2 == 0


def _operand(ctx: SimtContext, array: ir.Array, at: tuple[ir.Value, ...]) -> _Operand:
    return _Operand(array, index.linear(ctx, array, at), _in_warp(ctx))


def _left(ctx: SimtContext, x: _Operand, row: Rep, p: Rep) -> list[str]:
    """Four pairs in rows `row`.. and columns p.. ."""
    if x.in_eights:
        return _matrices(ctx, x, row, p, 4, False)
    positions = [(_sum(ctx, row, r), _sum(ctx, p, c)) for c in (0, 8) for r in (0, 8)]
    return [_words(ctx, x, _sum(ctx, r, x.thread.group), _sum(ctx, c, x.thread.pair)) for r, c in positions]


def _right(ctx: SimtContext, x: _Operand, column: Rep, p: Rep, transposed: bool) -> list[str]:
    """Two pairs along p.. in columns `column`.. . `transposed`: the array's rows are the product's columns."""
    if x.in_eights:
        return _matrices(ctx, x, *((column, p) if transposed else (p, column)), 2, not transposed)
    steps = [_sum(ctx, p, n, x.thread.pair) for n in (0, 8)]
    at = _sum(ctx, column, x.thread.group)
    if transposed:
        return [_words(ctx, x, at, step) for step in steps]
    return [_joined(ctx, x, *(_element(ctx, x, _sum(ctx, step, n), at) for n in (0, 1))) for step in steps]


def _element(ctx: SimtContext, x: _Operand, row: Rep, column: Rep) -> Rep:
    """The number of an element of the array."""
    return _sum(ctx, x.base, _sum(ctx, index.times(ctx, row, x.stride), column))


def _words(ctx: SimtContext, x: _Operand, row: Rep, column: Rep) -> str:
    """Two adjacent elements of a row: one load if they are known to be an aligned word."""
    at = _element(ctx, x, row, column)
    if x.in_pairs:
        return ctx.line(f"load i32, ptr {pointer(ctx, x.array, at.name)}, align 4")
    return _joined(ctx, x, at, _sum(ctx, at, 1))


def _joined(ctx: SimtContext, x: _Operand, first: Rep, second: Rep) -> str:
    low, high = (ctx.line(f"load i16, ptr {pointer(ctx, x.array, at.name)}, align 2") for at in (first, second))
    upper = ctx.line(f"shl i32 {ctx.line(f'zext i16 {high} to i32')}, 16")
    return ctx.line(f"or i32 {upper}, {ctx.line(f'zext i16 {low} to i32')}")


def _matrices(ctx: SimtContext, x: _Operand, row: Rep, column: Rep, count: int, across: bool) -> list[str]:
    """Load `count` matrices of 8 x 8; thread n gives the address of row n % 8 of matrix n / 8.

    Of four, the second is below the first, the others to the right of these. Of two, the second is below if `across`, else to the
    right.
    """
    row_in, matrix = (Rep(ctx.line(f"{op} i64 {x.thread.number}, {n}")) for op, n in (("and", 7), ("lshr", 3)))
    first, second = (Rep(ctx.line(f"and i64 {ctx.line(f'lshr i64 {matrix.name}, {n}')}, 1")) for n in (0, 1))
    none = integer(0)
    down, right = (first, second) if count == 4 else (first, none) if across else (none, first)
    rows = _sum(ctx, _sum(ctx, row, row_in), index.times(ctx, down, 8))
    at = _element(ctx, x, rows, _sum(ctx, column, index.times(ctx, right, 8)))
    return ctx.machine.matrices(ctx, pointer(ctx, x.array, at.name), count, across)
