"""Tiles on matrix units in LLVM IR, as NVIDIA's warps hold them.

A tile is cut into pieces of 16 x 8 accumulators, four a thread, of which each warp has a rectangle; a piece's product is 16 x 16
times 16 x 8 of 16-bit floats (PTX ISA, "Matrix fragments for mma.m16n8k16"). With g = lane / 4 and t = lane % 4 of a warp, a
thread holds of the left matrix the pairs (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), of the right one, by column g, the
pairs of rows 2t and 2t + 8, and of the piece the pairs (g, 2t), (g + 8, 2t).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from camshaft.dtypes import f32
from camshaft.emit.llvm import index as llvm_index
from camshaft.emit.llvm.values import Rep, integer
from camshaft.emit.nvptx.copies import copy, wait
from camshaft.emit.tile_spread import Spread, products_by_tile, spread_of
from camshaft.lang import ir

if TYPE_CHECKING:
    from camshaft.emit.nvptx.simt import SimtEmitter

WARP, ROWS, COLUMNS, DEPTH = 32, 16, 8, 16
# Accumulators of a thread: of 255 registers, more would leave too few for the operands.
MOST_ACCUMULATORS = 128
# A deeper product is a loop over steps of 16.
MOST_UNROLLED = 64


def spread(tile: ir.Tile, lanes: int) -> Spread:
    """How warps share a tile."""
    return spread_of(tile, lanes // WARP, (ROWS, COLUMNS))


def native_tiles(kernel: ir.KernelIR, lanes: int) -> frozenset[ir.Tile]:
    """The tiles that become matrix instructions: whole warps, operands of one 16-bit float. (tf32 would round f32's away.)"""
    return frozenset(tile for tile, items in products_by_tile(kernel).items() if _is_native(tile, items, lanes))


def _is_native(tile: ir.Tile, items: list[ir.TileMma], lanes: int) -> bool:
    if lanes % WARP or any(item.a.dtype != item.b.dtype or item.a.dtype.name not in ("f16", "bf16") for item in items):
        return False
    found = spread(tile, lanes)
    return 4 * found.rows * found.columns <= MOST_ACCUMULATORS


# --- statements ------------------------------------------------------------------------------------------------------


def new(e: SimtEmitter, item: ir.TileNew) -> None:
    """Four variables a piece."""
    found = spread(item.tile, e.simt.lanes)
    e.tiles[item.tile] = pieces = [
        [[e.fresh("tile") for _ in range(4)] for _ in range(found.columns)] for _ in range(found.rows)
    ]
    for slot in _slots(pieces):
        e.allocas.append(f"{slot} = alloca float")
        e.write(f"store float 0.0, ptr {slot}")


def _slots(pieces: list[list[list[str]]]) -> Iterator[str]:
    return (slot for line in pieces for piece in line for slot in piece)


def scale(e: SimtEmitter, item: ir.TileScale) -> None:
    factor = e.reps[item.factor].name
    for slot in _slots(e.tiles[item.tile]):
        value = e.line(f"load float, ptr {slot}")
        e.write(f"store float {e.line(f'fmul float {value}, {factor}')}, ptr {slot}")


def mma(e: SimtEmitter, item: ir.TileMma) -> None:
    if item.depth <= MOST_UNROLLED:
        for p in range(0, item.depth, DEPTH):
            _step(e, item, integer(p))
    else:
        e.counted_loop("0", str(item.depth), DEPTH, lambda p: _step(e, item, Rep(p, multiple=DEPTH)))


def _step(e: SimtEmitter, item: ir.TileMma, p: Rep) -> None:
    """All of a warp's pieces, 16 deep: each operand is read once."""
    place, pieces = _Place(e, item.tile), e.tiles[item.tile]
    left, right = _Operand(e, item.a, item.a_at), _Operand(e, item.b, item.b_at)
    lines = [left.left(_plus(e, place.row, r * ROWS), p) for r in range(len(pieces))]
    columns = [right.right(_plus(e, place.column, c * COLUMNS), p, item.transposed) for c in range(len(pieces[0]))]
    for line, a in zip(pieces, lines, strict=True):
        for slots, b in zip(line, columns, strict=True):
            before = [e.line(f"load float, ptr {slot}") for slot in slots]
            for slot, value in zip(slots, e.multiplied(item.a.dtype, a, b, before), strict=True):
                e.write(f"store float {value}, ptr {slot}")


def store(e: SimtEmitter, item: ir.TileStore) -> None:
    place, pieces = _Place(e, item.tile), e.tiles[item.tile]
    base = e.linear_index(item.array, tuple(e.reps[i] for i in item.indices))
    for r, line in enumerate(pieces):
        for c, slots in enumerate(line):
            for n, slot in enumerate(slots):
                row = _plus(e, _sum(e, place.row, place.group), r * ROWS + n // 2 * 8)
                column = _plus(e, _sum(e, place.column, place.pair), c * COLUMNS + n % 2)
                at = _sum(e, base, _sum(e, _times(e, row, item.array.strides[-2]), column))
                _store_one(e, item, (row, column), at, slot, place.is_first)


def _store_one(
    e: SimtEmitter, item: ir.TileStore, place: tuple[Rep, Rep], at: Rep, slot: str, is_first: str | None
) -> None:
    conditions = [is_first] if is_first is not None else []
    for number, limit in zip(place, (item.rows, item.columns), strict=True):
        if limit is not None:
            conditions.append(e.line(f"icmp slt i64 {number.name}, {e.reps[limit].name}"))

    def write() -> None:
        value = e.stored_form(e.typed(f32, 0), e.line(f"load float, ptr {slot}"), item.array.dtype)
        e.store_vector(item.array, at, value, 0, None)

    e.guarded(conditions, write)


# --- places ----------------------------------------------------------------------------------------------------------


def _sum(e: SimtEmitter, a: Rep, b: Rep) -> Rep:
    found = llvm_index.add(e.line, a, b)
    assert found is not None
    return found


def _plus(e: SimtEmitter, a: Rep, number: int) -> Rep:
    return _sum(e, a, integer(number))


def _times(e: SimtEmitter, a: Rep, number: int) -> Rep:
    found = llvm_index.multiply(e.line, a, integer(number))
    assert found is not None
    return found


class _Place:
    """A thread's warp in a tile, its place in a piece; `is_first`: whether the warp repeats no other, None where none does."""

    def __init__(self, e: SimtEmitter, tile: ir.Tile) -> None:
        found = spread(tile, e.simt.lanes)
        used, warps = found.used, e.simt.lanes // WARP
        warp = e.line(f"lshr i64 %lane, {WARP.bit_length() - 1}")
        self.is_first = e.line(f"icmp ult i64 {warp}, {used}") if used < warps else None
        number = e.line(f"urem i64 {warp}, {used}")
        down, across = (e.line(f"{op} i64 {number}, {found.across}") for op in ("udiv", "urem"))
        self.row = _times(e, Rep(down), found.rows * ROWS)
        self.column = _times(e, Rep(across), found.columns * COLUMNS)
        in_warp = e.line(f"and i64 %lane, {WARP - 1}")
        self.group = Rep(e.line(f"lshr i64 {in_warp}, 2"))
        self.pair = Rep(e.line(f"shl i64 {e.line(f'and i64 {in_warp}, 3')}, 1"), multiple=2)


class _Operand:
    """Reads a thread's part of an operand: pairs of 16-bit floats, each in an i32."""

    def __init__(self, e: SimtEmitter, array: ir.Array, at: tuple[ir.Value, ...]) -> None:
        self.e, self.array, self.stride = e, array, array.strides[-2]
        self.base = e.linear_index(array, tuple(e.reps[i] for i in at))
        self.in_warp = e.line(f"and i64 %lane, {WARP - 1}")
        self.group = Rep(e.line(f"lshr i64 {self.in_warp}, 2"))
        self.pair = Rep(e.line(f"shl i64 {e.line(f'and i64 {self.in_warp}, 3')}, 1"), multiple=2)

    @property
    def in_eights(self) -> bool:
        """Whether rows of 8 lie in workgroup memory at multiples of 16 bytes, as loads of whole matrices want them."""
        return self.array.scratch and self.base.multiple % 8 == 0 and self.stride % 8 == 0

    def place(self, row: Rep, column: Rep) -> Rep:
        return _sum(self.e, self.base, _sum(self.e, _times(self.e, row, self.stride), column))

    def left(self, row: Rep, p: Rep) -> list[str]:
        """Four pairs of rows `row`.. and columns p.. ."""
        e = self.e
        if self.in_eights:
            return self.matrices(row, p, 4, False)
        places = [(_plus(e, row, r), _plus(e, p, c)) for c in (0, 8) for r in (0, 8)]
        return [self.words(_sum(e, r, self.group), _sum(e, c, self.pair)) for r, c in places]

    def right(self, column: Rep, p: Rep, transposed: bool) -> list[str]:
        """Two pairs along p.. for columns `column`..; `transposed`: the array's rows are the product's columns."""
        e = self.e
        if self.in_eights:
            return self.matrices(*((column, p) if transposed else (p, column)), 2, not transposed)
        steps = [_sum(e, _plus(e, p, n), self.pair) for n in (0, 8)]
        at = _sum(e, column, self.group)
        if transposed:
            return [self.words(at, step) for step in steps]
        return [self.joined(*(self.place(_plus(e, step, n), at) for n in (0, 1))) for step in steps]

    def words(self, row: Rep, column: Rep) -> str:
        """Two neighbours of a row: one word, where that is known to be aligned."""
        e, at = self.e, self.place(row, column)
        if self.base.multiple % 2 == 0 and self.stride % 2 == 0:
            return e.line(f"load i32, ptr {e.pointer(self.array, at.name)}, align 4")
        return self.joined(at, _plus(e, at, 1))

    def joined(self, first: Rep, second: Rep) -> str:
        e = self.e
        low, high = (e.line(f"load i16, ptr {e.pointer(self.array, at.name)}, align 2") for at in (first, second))
        upper = e.line(f"shl i32 {e.line(f'zext i16 {high} to i32')}, 16")
        return e.line(f"or i32 {upper}, {e.line(f'zext i16 {low} to i32')}")

    def matrices(self, row: Rep, column: Rep, count: int, across: bool) -> list[str]:
        """`count` matrices of 8 x 8 at once, thread n giving the place of row n % 8 of matrix n / 8: the second is below the
        first, the third and fourth to the right of these; of two, the second is below if `across`, else to the right."""
        e = self.e
        row_in, matrix = (Rep(e.line(f"{op} i64 {self.in_warp}, {n}")) for op, n in (("and", 7), ("lshr", 3)))
        first, second = (Rep(e.line(f"and i64 {e.line(f'lshr i64 {matrix.name}, {n}')}, 1")) for n in (0, 1))
        none = integer(0)
        down, right = (first, second) if count == 4 else (first, none) if across else (none, first)
        at = self.place(_sum(e, _sum(e, row, row_in), _times(e, down, 8)), _sum(e, column, _times(e, right, 8)))
        return e.matrices(e.pointer(self.array, at.name), count, across)


STATEMENTS: dict[type, Callable[[SimtEmitter, Any], None]] = {
    ir.TileNew: new,
    ir.TileMma: mma,
    ir.TileScale: scale,
    ir.TileStore: store,
    ir.AsyncCopy: copy,
    ir.AsyncWait: wait,
}
