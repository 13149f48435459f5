"""NEON: products of 2 x 8 bytes by 8 x 2, two words at a time."""

from __future__ import annotations

from camshaft.dtypes import i32
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.matrix_units.unit import Slots, Unit, pieces, start_of, words_after
from camshaft.emit.llvm.values import Rep
from camshaft.lang import tile_ir


def _step(ctx: Context, item: tile_ir.TileMma, slots: Slots, p: Rep, words: int) -> None:
    """Two words deep: pairs of rows, of 8 bytes each, by pairs of columns, whose words are zipped together."""
    tile = item.tile
    octets, sums = ("<16 x i8>", "<4 x i32>") if tile.dtype == i32 else ("<8 x bfloat>", "<4 x float>")
    name = "llvm.aarch64.neon.usmmla.v4i32.v16i8" if tile.dtype == i32 else "llvm.aarch64.neon.bfmmla"
    a_start, b_start = start_of(ctx, item.a, item.a_at, p, 1), start_of(ctx, item.b, item.b_at, p, item.b.strides[-2])
    left = [_pair_of_rows(ctx, a_start, 2 * i, item.a.strides[-2], octets) for i in range(len(slots))]
    # A row of b has all columns: a tile of more than 16 passes the registers.
    right = [
        q
        for j in range(0, len(slots[0]), 2)
        for q in _pairs_of_columns(ctx, b_start, 2 * j, item.b.strides[-2], octets)
    ]
    for i, j, slot in pieces(slots):
        before = ctx.line(f"load {sums}, ptr {slot}")
        after = ctx.call(name, sums, (sums, before), (octets, right[j]), (octets, left[i]))
        ctx.write(f"store {sums} {after}, ptr {slot}")


def _pair_of_rows(ctx: Context, start: str, row: int, stride: int, typ: str) -> str:
    pair = "poison"
    for n in range(2):
        words = ctx.line(f"load i64, ptr {words_after(ctx, start, (row + n) * stride)}, align 4")
        pair = ctx.line(f"insertelement <2 x i64> {pair}, i64 {words}, i64 {n}")
    return ctx.line(f"bitcast <2 x i64> {pair} to {typ}")


def _pairs_of_columns(ctx: Context, start: str, column: int, stride: int, typ: str) -> list[str]:
    rows = [ctx.line(f"load <4 x i32>, ptr {words_after(ctx, start, n * stride + column)}, align 4") for n in range(2)]
    return [
        ctx.line(f"bitcast <4 x i32> {ctx.shuffled('<4 x i32>', rows[0], order, rows[1])} to {typ}")
        for order in ((0, 4, 1, 5), (2, 6, 3, 7))
    ]


def _take(ctx: Context, item: tile_ir.TileNew, slots: Slots, start: str) -> None:
    """Load pairs of pieces, as _put stores them: two rows of columns are zipped as an operand's are."""
    assert item.array is not None
    typ, stride = ("<4 x i32>" if item.tile.dtype == i32 else "<4 x float>"), item.array.strides[-2]
    for i, line in enumerate(slots):
        for j in range(0, len(line), 2):
            pair = _pairs_of_columns(ctx, words_after(ctx, start, 2 * i * stride), 2 * j, stride, typ)
            for slot, piece in zip(line[j : j + 2], pair, strict=True):
                ctx.write(f"store {typ} {piece}, ptr {slot}")


def _put(ctx: Context, item: tile_ir.TileStore, slots: Slots, start: str) -> None:
    """Store pairs of pieces. A piece has its sums by column and row; of two pieces, the even sums are one row, the odd ones the
    next."""
    typ = "<4 x i32>" if item.tile.dtype == i32 else "<4 x float>"
    for i, line in enumerate(slots):
        for j in range(0, len(line), 2):
            pair = [ctx.line(f"load {typ}, ptr {slot}") for slot in line[j : j + 2]]
            for n in range(2):
                row = ctx.shuffled(typ, pair[0], (n, n + 2, n + 4, n + 6), pair[1])
                at = words_after(ctx, start, (2 * i + n) * item.array.strides[-2] + 2 * j)
                ctx.write(f"store {typ} {row}, ptr {at}, align 4")


# Of the 32 vectors 20 may be sums; operands are not counted.
NEON = Unit(
    {"i32": frozenset({"neon", "i8mm"}), "f32": frozenset({"neon", "bf16"})},
    (2, 2, 2),
    20,
    2,
    lambda down, across, shapes: down * across,
    "<4 x {}>",
    lambda ctx, tile: "zeroinitializer",
    _step,
    _take,
    _put,
)
