"""Where the elements of a tile are: which of them each lane holds in its variables."""

from __future__ import annotations

from camshaft.lang import ir, tile_ir
from camshaft.lang.expand.expander import Copier
from camshaft.lang.tracing.recorder import Number


class TileLanes(Copier):
    """Copies a kernel for `width` lanes, and tells where accumulator i of each lane is in a tile.

    With `threads`, each lane owns a block of a tile; else lanes form vectors along a row.
    """

    def __init__(self, kernel: ir.KernelIR, width: int, threads: bool) -> None:
        super().__init__(kernel.name, kernel.source_file)
        self.width, self.threads = width, threads

    def place(self, tile: tile_ir.Tile, i: int) -> tuple[Number, Number]:
        """Return row and column of the lanes' accumulator i; the row is a Python int if all lanes share it."""
        first, columns, across = i * self.width, tile.columns, self.across(tile)
        if across is not None:
            return self.in_block(tile, i, across)
        if columns % self.width == 0:
            return first // columns, self.lane() + first % columns
        element = self.lane() + first
        return element // columns, element % columns

    def across(self, tile: tile_ir.Tile) -> int | None:
        """Return how many threads share a tile row, for the fewest operand loads per thread. None: no blocks."""
        if not self.threads:
            return None
        fits = [
            n
            for n in range(1, self.width + 1)
            if self.width % n == 0 and tile.columns % n == 0 and tile.rows % (self.width // n) == 0
        ]
        return min(fits, key=lambda n: tile.columns // n + tile.rows * n // self.width, default=None)

    def in_block(self, tile: tile_ir.Tile, i: int, across: int) -> tuple[ir.Value, ir.Value]:
        """Return row and column of accumulator i, interleaved so that neighbouring threads access neighbours."""
        in_row, lane = tile.columns // across, self.lane()
        return lane // across + i // in_row * (self.width // across), lane % across + i % in_row * across

    def in_tile(self, tile: tile_ir.Tile, row: Number) -> ir.Value | None:
        """Return whether the lane owns this accumulator; None if all lanes do."""
        if self.width <= tile.rows * tile.columns:
            return None
        assert isinstance(row, ir.Value)
        return row < tile.rows

    def shared_by(self, tile: tile_ir.Tile, i: int) -> tuple[int, int]:
        """Return keys of accumulator i that are equal for accumulators of a lane in one row, and in one column."""
        across, columns = self.across(tile), tile.columns
        if across is not None:
            return i // (columns // across), i % (columns // across)
        if columns % self.width == 0:
            return i * self.width // columns, i * self.width % columns
        return i, i
