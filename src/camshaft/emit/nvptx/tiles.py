"""Tiles on the matrix units of NVIDIA GPUs.

A tile is divided into pieces of 16 x 8 accumulators, four per thread, and each warp owns a rectangle of them. A piece's product
is 16 x 16 times 16 x 8 of 16-bit floats (PTX ISA, "Matrix fragments for mma.m16n8k16"). With g = lane / 4 and t = lane % 4 of a
warp, a thread has of the piece the pairs (g, 2t), (g + 8, 2t). Operands: operands.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from camshaft.dtypes import f32
from camshaft.emit.llvm import index
from camshaft.emit.llvm.control import counted_loop
from camshaft.emit.llvm.memory import pointer, stored_form
from camshaft.emit.llvm.values import Rep, integer, memory_dtype, vector_type
from camshaft.emit.nvptx.operands import COLUMNS, DEPTH, ROWS, InWarp, in_warp, left, operand, right, sum_of
from camshaft.emit.nvptx.simt import WARP, SimtContext, guarded
from camshaft.emit.tiles import GroupUnit
from camshaft.lang import ir, tile_ir

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
    x, y = operand(ctx, item.a, item.a_at), operand(ctx, item.b, item.b_at)
    lines = [left(ctx, x, sum_of(ctx, position.row, r * ROWS), p) for r in range(len(pieces))]
    columns = right(ctx, y, position.column, len(pieces[0]), p, item.transposed)
    for line, a in zip(pieces, lines, strict=True):
        for slots, b in zip(line, columns, strict=True):
            before = [ctx.line(f"load float, ptr {slot}") for slot in slots]
            for slot, value in zip(slots, ctx.machine.multiplied(ctx, item.a.dtype, a, b, before), strict=True):
                ctx.write(f"store float {value}, ptr {slot}")


def store(ctx: SimtContext, item: tile_ir.TileStore) -> None:
    """Store the pairs of accumulators, as words of two where they are known to be aligned."""
    position, pieces = _warp_position(ctx, item.tile), ctx.tiles[item.tile]
    base, stride = index.linear(ctx, item.array, item.indices), item.array.strides[-2]
    limits = [None if limit is None else ctx.reps[limit] for limit in (item.rows, item.columns)]
    evens = (base.multiple, stride, *(limit.multiple for limit in limits[1:] if limit is not None))
    each = 2 if all(number % 2 == 0 for number in evens) else 1
    for r, line in enumerate(pieces):
        for c, slots in enumerate(line):
            for n in range(0, len(slots), each):
                row = sum_of(ctx, position.row, position.thread.group, r * ROWS + n // 2 * 8)
                column = sum_of(ctx, position.column, position.thread.pair, c * COLUMNS + n % 2)
                at = sum_of(ctx, base, sum_of(ctx, index.times(ctx, row, stride), column))
                within = _within(ctx, position, (row, column), limits)
                guarded(ctx, within, partial(_store, ctx, item.array, at, slots[n : n + each]))


def _within(ctx: SimtContext, position: _WarpPosition, at: tuple[Rep, Rep], limits: list[Rep | None]) -> list[str]:
    """The conditions under which a thread stores an accumulator, as i1."""
    below = [
        ctx.line(f"icmp slt i64 {number.name}, {limit.name}")
        for number, limit in zip(at, limits, strict=True)
        if limit is not None
    ]
    return below if position.is_first is None else [position.is_first, *below]


def _store(ctx: SimtContext, array: ir.Array, at: Rep, slots: list[str]) -> None:
    """Store the accumulators of one element, or of two adjacent ones of which the first is at a multiple of two."""
    n, dtype = len(slots) if len(slots) > 1 else 0, memory_dtype(array.dtype)
    values = [ctx.line(f"load float, ptr {slot}") for slot in slots]
    name = values[0]
    if n:
        name = "poison"
        for i, value in enumerate(values):
            name = ctx.line(f"insertelement <{n} x float> {name}, float {value}, i64 {i}")
    name = stored_form(ctx.typed(f32, n), name, array.dtype)
    to, nbytes = pointer(ctx, array, at.name), dtype.nbytes * len(slots)
    ctx.write(f"store {vector_type(dtype, n)} {name}, ptr {to}, align {nbytes}")


# --- positions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _WarpPosition:
    """The position of a thread's warp in a tile. `is_first`: whether the warp repeats no other; None if no warp does."""

    row: Rep
    column: Rep
    is_first: str | None
    thread: InWarp


def _warp_position(ctx: SimtContext, tile: tile_ir.Tile) -> _WarpPosition:
    found = UNIT.spread(tile, ctx.threads)
    used, warps = found.used, ctx.threads // WARP
    warp = ctx.line(f"lshr i64 %lane, {WARP.bit_length() - 1}")
    is_first = ctx.line(f"icmp ult i64 {warp}, {used}") if used < warps else None
    number = ctx.line(f"urem i64 {warp}, {used}")
    down, across = (ctx.line(f"{op} i64 {number}, {found.across}") for op in ("udiv", "urem"))
    row = index.times(ctx, Rep(down), found.rows * ROWS)
    column = index.times(ctx, Rep(across), found.columns * COLUMNS)
    return _WarpPosition(row, column, is_first, in_warp(ctx))
