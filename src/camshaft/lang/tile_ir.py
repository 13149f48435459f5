"""Statements of Kernel IR on tiles: matrices of accumulators, and copies in the background to scratch."""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.dtypes import DType, f32
from camshaft.lang.ir import Array, Block, Statement, Value
from camshaft.lang.operators import recorder as recorder
from camshaft.lang.operators import recording as recording


@dataclass(eq=False)
class Tile:
    """A `rows` by `columns` matrix of accumulators; the target chooses how lanes share it.

    The dtype is f32, or with `is_words` f32 or i32.
    """

    rows: int
    columns: int
    block: Block
    line: int
    dtype: DType = f32
    is_words: bool = False


@dataclass(eq=False)
class TileNew(Statement):
    """Set the accumulators to array[indices + (i, j)], to 0 without an array."""

    tile: Tile
    array: Array | None = None
    indices: tuple[Value, ...] = ()


@dataclass(eq=False)
class TileMma(Statement):
    """tile[i, j] += sum over p < depth of a[i, p] * b[p, j], or b[j, p] if `transposed`.

    The matrices start at the elements `a_at` and `b_at`. In a word tile a and b are u32, and each word product is a dot
    product: of 4 bytes (a signed, b unsigned) for i32, or of 2 bf16 for f32. `passing`: the operands ("a", "b", "ab") that
    need not stay in the first cache, a hint. If a word tile has more columns than b, `depth` rows of b have the next ones.
    """

    tile: Tile
    a: Array
    a_at: tuple[Value, ...]
    b: Array
    b_at: tuple[Value, ...]
    depth: int
    transposed: bool
    passing: str = ""

    def b_columns(self) -> int:
        """The columns of the tile that a row of b has."""
        return min(self.tile.columns, self.b.shape[-1]) if self.tile.is_words else self.tile.columns

    def b_size(self) -> tuple[int, int]:
        """The rows and columns of b that are read."""
        if self.transposed:
            return self.tile.columns, self.depth
        return self.depth * (self.tile.columns // self.b_columns()), self.b_columns()


@dataclass(eq=False)
class TileScale(Statement):
    """Multiply every accumulator by a uniform value."""

    tile: Tile
    factor: Value


@dataclass(eq=False)
class TileStore(Statement):
    """array[.., i, j] = tile[i, j] for i < rows and j < columns (None: no limit). `then`: what sets a word tile's accumulators
    afterwards, piece by piece."""

    tile: Tile
    array: Array
    indices: tuple[Value, ...]
    rows: Value | None = None
    columns: Value | None = None
    then: TileNew | None = None


@dataclass(eq=False)
class AsyncCopy(Statement):
    """Fill `destination` from `source` at `indices`; an AsyncWait completes the copy.

    Elements at or past `rows` and `columns` (if given) are set to 0.
    """

    destination: Array
    source: Array
    indices: tuple[Value, ...]
    rows: Value | None = None
    columns: Value | None = None


@dataclass(eq=False)
class AsyncWait(Statement):
    """End the group of copies since the last wait; wait until the groups of all lanes but the last `ahead` have completed."""

    ahead: int = 0


TILE_STATEMENTS = (TileNew, TileMma, TileScale, TileStore, AsyncCopy, AsyncWait)
