"""Decide which tiles become matrix instructions, and which accumulators each group of threads owns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from camshaft.lang import ir, tile_ir, traversal


@dataclass(frozen=True)
class Spread:
    """Groups as `down` x `across` rectangles, each of `rows` x `columns` pieces. Further groups repeat these rectangles."""

    down: int
    across: int
    rows: int
    columns: int

    @property
    def used(self) -> int:
        """The number of groups that own a rectangle."""
        return self.down * self.across


def spread_of(tile: tile_ir.Tile, groups: int, piece: tuple[int, int]) -> Spread:
    """Return the division that uses the most groups, then has the fewest operand loads. `piece`: rows and columns."""
    rows, columns = tile.rows // piece[0], tile.columns // piece[1]
    found = [
        Spread(down, across, rows // down, columns // across)
        for down in range(1, groups + 1)
        for across in range(1, groups // down + 1)
        if rows % down == 0 and columns % across == 0
    ]
    return min(found, key=lambda s: (-s.used, piece[0] * s.rows + piece[1] * s.columns))


@dataclass(frozen=True)
class GroupUnit:
    """A matrix unit that `threads` threads use together.

    `piece`: rows and columns of its accumulators; `most_pieces`: the most that a group may own; `takes(products)`: whether it can
    compute a tile's multiply-adds.
    """

    threads: int
    piece: tuple[int, int]
    most_pieces: int
    takes: Callable[[list[tile_ir.TileMma]], bool]

    def spread(self, tile: tile_ir.Tile, lanes: int) -> Spread:
        """How the groups of a workgroup of `lanes` threads share a tile."""
        return spread_of(tile, lanes // self.threads, self.piece)

    def native_tiles(self, kernel: ir.KernelIR, lanes: int) -> frozenset[tile_ir.Tile]:
        """The tiles that become matrix instructions."""
        if lanes % self.threads:
            return frozenset()
        products = products_by_tile(kernel)
        return frozenset(tile for tile, items in products.items() if self._fits(tile, lanes) and self.takes(items))

    def _fits(self, tile: tile_ir.Tile, lanes: int) -> bool:
        found = self.spread(tile, lanes)
        return found.rows * found.columns <= self.most_pieces


def products_by_tile(kernel: ir.KernelIR) -> dict[tile_ir.Tile, list[tile_ir.TileMma]]:
    """The multiply-adds of each tile that has any."""
    found: dict[tile_ir.Tile, list[tile_ir.TileMma]] = {}
    for item in traversal.walk(kernel.body):
        if isinstance(item, tile_ir.TileMma):
            found.setdefault(item.tile, []).append(item)
    return found
