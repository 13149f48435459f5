"""How the accumulators of a tile are distributed over the groups of threads that own matrix units."""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.lang import ir


@dataclass(frozen=True)
class Spread:
    """Groups as `down` x `across` rectangles, each of `rows` x `columns` pieces. Further groups repeat these rectangles."""

    down: int
    across: int
    rows: int
    columns: int

    @property
    def used(self) -> int:
        """How many groups have a rectangle of their own."""
        return self.down * self.across


def spread_of(tile: ir.Tile, groups: int, piece: tuple[int, int]) -> Spread:
    """Return the division that uses the most groups, then has the fewest operand loads. `piece`: rows and columns."""
    rows, columns = tile.rows // piece[0], tile.columns // piece[1]
    found = [
        Spread(down, across, rows // down, columns // across)
        for down in range(1, groups + 1)
        for across in range(1, groups // down + 1)
        if rows % down == 0 and columns % across == 0
    ]
    return min(found, key=lambda s: (-s.used, piece[0] * s.rows + piece[1] * s.columns))


def products_by_tile(kernel: ir.KernelIR) -> dict[ir.Tile, list[ir.TileMma]]:
    """The multiply-adds of each tile that has any."""
    found: dict[ir.Tile, list[ir.TileMma]] = {}
    for item in ir.walk(kernel.body):
        if isinstance(item, ir.TileMma):
            found.setdefault(item.tile, []).append(item)
    return found
