"""Unit: a matrix unit of a CPU, and the places of its pieces and operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from camshaft.dtypes import i32
from camshaft.emit.llvm import index
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.memory import pointer
from camshaft.emit.llvm.values import Rep
from camshaft.lang import ir, tile_ir

Slots = list[list[str]]


@dataclass(frozen=True)
class Unit:
    """A matrix unit: the features it needs by a tile's dtype, its piece (rows, columns, words), and `typ`, the type of its sums.

    `together`: pieces side by side that are loaded and stored at once. `needed(down, across, shapes)`: the registers for a number
    of pieces and operand shapes. `zero`: a piece of zeros. `step`: multiply all pieces, `words` deep, from word p on. `take`:
    load the tile's rows from a pointer; `put`: store them there.
    """

    features: dict[str, frozenset[str]]
    piece: tuple[int, int, int]
    registers: int
    together: int
    needed: Callable[[int, int, int], int]
    typ: str
    zero: Callable[[Context, tile_ir.Tile], str]
    step: Callable[[Context, tile_ir.TileMma, Slots, Rep, int], None]
    take: Callable[[Context, tile_ir.TileNew, Slots, str], None]
    put: Callable[[Context, tile_ir.TileStore, Slots, str], None]

    def grid(self, tile: tile_ir.Tile) -> tuple[int, int]:
        """The number of pieces down and across."""
        return -(-tile.rows // self.piece[0]), -(-tile.columns // self.piece[1])

    def takes(self, tile: tile_ir.Tile) -> bool:
        """Whether the tile divides into equal pieces."""
        sides = zip((tile.rows, tile.columns), self.piece, strict=False)
        return all(side <= most or side % most == 0 for side, most in sides)

    def registers_for(self, tile: tile_ir.Tile, products: list[tile_ir.TileMma]) -> int:
        """Registers for a tile's sums and operands. An AMX register has one shape in the whole kernel."""
        deep = self.piece[2]
        shapes = {min(deep, item.depth - p) for item in products for p in range(0, item.depth, deep)}
        return self.needed(*self.grid(tile), len(shapes))

    def is_whole(self, tile: tile_ir.Tile, products: list[tile_ir.TileMma]) -> bool:
        """Whether all pieces and operands have the unit's shape, so that any register may hold any of them."""
        rows, columns, deep = self.piece
        return tile.rows >= rows and tile.columns >= columns and all(item.depth % deep == 0 for item in products)

    def typed(self, tile: tile_ir.Tile) -> str:
        """LLVM's type of a piece."""
        return self.typ.format("i32" if tile.dtype == i32 else "float")


def pieces(slots: Slots) -> Iterator[tuple[int, int, str]]:
    return ((i, j, slot) for i, line in enumerate(slots) for j, slot in enumerate(line))


def start_of(ctx: Context, array: ir.Array, at: tuple[ir.Value, ...], more: Rep, step: int) -> str:
    """The address `more` times `step` elements after array[at]."""
    start = pointer(ctx, array, index.linear(ctx, array, at).name)
    return words_after(ctx, start, ctx.line(f"mul i64 {more.name}, {step}"))


def words_after(ctx: Context, pointer: str, words: int | str) -> str:
    """The address `words` words of 4 bytes after a pointer."""
    return pointer if words == 0 else ctx.line(f"getelementptr inbounds i32, ptr {pointer}, i64 {words}")
