"""Tracer methods for matrix tiles and asynchronous copies.

A target with matrix units or asynchronous copies lowers them itself; elsewhere they expand to ordinary instructions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from camshaft.dtypes import DType, f32, i32, i64, u32
from camshaft.lang import ir, tile_ir
from camshaft.lang.tracing.memory import AtomicMethods
from camshaft.lang.tracing.recorder import Array, Number

# A tile's sides and the depth of mma must be multiples of this, the size of matrix units.
TILE_SIDE = 16
# The same for a tile of words: CPU units take smaller pieces, at least two words deep.
WORD_SIDE, WORD_DEPTH = 4, 2
# What a tile of words starts with: the elements of an array from an index per dimension on.
Start: TypeAlias = tuple[Array, tuple[Number, ...]]


class Tile:
    """A tile of f32 accumulators. Its methods are collectives without memory ordering: the kernel states its barriers."""

    def __init__(self, tracer: TileMethods, tile: tile_ir.Tile) -> None:
        self._tracer, self.ir = tracer, tile

    def mma(
        self,
        a: Array,
        a_at: tuple[Number, ...],
        b: Array,
        b_at: tuple[Number, ...],
        k: int = TILE_SIDE,
        transpose_b: bool = False,
    ) -> None:
        """tile[i, j] += sum over p < k of a[a_at + (i, p)] * b[b_at + (p, j)]; with `transpose_b`, b[b_at + (j, p)].

        a and b are arrays or scratch of f16, bf16 or f32 with at least two dimensions; the last two are the matrix. `a_at` and
        `b_at` have one index per dimension. All reads must be in bounds: copy a partial tile to scratch first (k.async_copy
        fills with 0).
        """
        tracer = self._tracer
        for array in (a.ir, b.ir):
            if array.dtype.name not in ("f16", "bf16", "f32") or len(array.shape) < 2:
                raise tracer.fail(
                    f"mma of {array.name}, {array.dtype} {array.shape}: wanted a matrix of f16, bf16 or f32"
                )
        if k <= 0 or k % TILE_SIDE:
            raise tracer.fail(f"mma with k = {k}: wanted a multiple of {TILE_SIDE}")
        starts = tracer.indices(a.ir, a_at), tracer.indices(b.ir, b_at)
        tracer.append(tile_ir.TileMma(tracer.line(), self.ir, a.ir, starts[0], b.ir, starts[1], k, transpose_b))

    def scale(self, factor: Number) -> None:
        """Multiply every accumulator by a uniform value."""
        self._tracer.append(tile_ir.TileScale(self._tracer.line(), self.ir, self._tracer.as_value(factor, f32)))

    def store(
        self, out: Array, at: tuple[Number, ...], rows: Number | None = None, columns: Number | None = None
    ) -> None:
        """out[at + (i, j)] = tile[i, j], narrowed to out's dtype, for i < rows and j < columns (None: no limit)."""
        tracer, array = self._tracer, out.ir
        if not array.writable or not array.dtype.is_float or array.dtype.nbytes > 4 or len(array.shape) < 2:
            raise tracer.fail(
                f"a tile stored to {array.name}, {array.dtype} {array.shape}: wanted a matrix of floats to write to"
            )
        limits = (tracer.limit(rows), tracer.limit(columns))
        tracer.append(tile_ir.TileStore(tracer.line(), self.ir, array, tracer.indices(array, at), *limits))


class WordTile:
    """A tile of i32 or f32 accumulators of word products. Its methods are collectives without memory ordering."""

    def __init__(self, tracer: TileMethods, tile: tile_ir.Tile) -> None:
        self._tracer, self.ir = tracer, tile

    def mma(
        self, a: Array, a_at: tuple[Number, ...], b: Array, b_at: tuple[Number, ...], k: int, passing: str = ""
    ) -> None:
        """tile[i, j] += sum over p < k of the word product of a[a_at + (i, p)] and b[b_at + (p, j)].

        A word product is a dot product: for i32 of four s8 of a and four u8 of b, exact and wrapping; for f32 of two bf16 of
        each, in the target's order and rounding. a and b are matrices of u32 as in `Tile.mma`, k a multiple of 2. If b has
        fewer columns than the tile, a multiple of 16, its next k rows have the next columns: 16 columns in one piece of memory
        load faster. `passing` hints which operands, "a", "b" or "ab", are not read again soon, so that the L1 cache keeps others.
        """
        tracer = self._tracer
        for array in (a.ir, b.ir):
            if array.dtype != u32 or len(array.shape) < 2:
                raise tracer.fail(f"mma of words of {array.name}, {array.dtype} {array.shape}: wanted a matrix of u32")
        if k <= 0 or k % WORD_DEPTH:
            raise tracer.fail(f"mma of words with k = {k}: wanted a multiple of {WORD_DEPTH}")
        if passing not in ("", "a", "b", "ab"):
            raise tracer.fail(f"mma of words with passing = {passing!r}: wanted 'a', 'b' or 'ab'")
        starts = tracer.indices(a.ir, a_at), tracer.indices(b.ir, b_at)
        tracer.append(tile_ir.TileMma(tracer.line(), self.ir, a.ir, starts[0], b.ir, starts[1], k, False, passing))

    def store(self, out: Array, at: tuple[Number, ...]) -> None:
        """out[at + (i, j)] = tile[i, j] for the whole tile; out has the tile's dtype."""
        self._tracer.append(self._stored(out, at))

    def swap(self, out: Array, at: tuple[Number, ...], start: Start | None = None) -> None:
        """`store`, then start again as `word_tile` does, each piece as soon as it is stored, so that the next products wait less.
        The two places are the same or do not overlap."""
        stored, then = self._stored(out, at), self._tracer.start_of(self.ir, start)
        self._tracer.append(replace(stored, then=then))

    def _stored(self, out: Array, at: tuple[Number, ...]) -> tile_ir.TileStore:
        tracer, array = self._tracer, out.ir
        if not array.writable or array.dtype != self.ir.dtype or len(array.shape) < 2:
            raise tracer.fail(
                f"a tile of words stored to {array.name}, {array.dtype} {array.shape}: wanted a matrix of {self.ir.dtype}"
            )
        return tile_ir.TileStore(tracer.line(), self.ir, array, tracer.indices(array, at))


class TileMethods(AtomicMethods):
    """Tiles and asynchronous copies."""

    def limit(self, value: Number | None) -> ir.Value | None:
        return None if value is None else self.as_value(value, i64)

    def tile(self, rows: int, columns: int) -> Tile:
        """Return a tile of zeros. rows and columns: multiples of 16."""
        if self.in_lanes:
            raise self.fail("a tile inside k.lanes")
        if min(rows, columns) <= 0 or rows % TILE_SIDE or columns % TILE_SIDE:
            raise self.fail(f"a tile of {rows} x {columns}: wanted multiples of {TILE_SIDE}")
        tile = tile_ir.Tile(rows, columns, self.block, self.line())
        self.append(tile_ir.TileNew(tile.line, tile))
        return Tile(self, tile)

    def word_tile(self, rows: int, columns: int, dtype: DType, start: Start | None = None) -> WordTile:
        """Return a tile: i32 for words of bytes, f32 for words of bf16. rows and columns: multiples of 4.

        It starts as zeros, or with `start` (an array of its dtype and an index per dimension) as the elements there.
        """
        if self.in_lanes:
            raise self.fail("a tile inside k.lanes")
        if min(rows, columns) <= 0 or rows % WORD_SIDE or columns % WORD_SIDE or dtype not in (i32, f32):
            raise self.fail(
                f"a tile of words, {rows} x {columns} of {dtype}: wanted multiples of {WORD_SIDE} of i32 or f32"
            )
        tile = tile_ir.Tile(rows, columns, self.block, self.line(), dtype, True)
        self.append(self.start_of(tile, start))
        return WordTile(self, tile)

    def start_of(self, tile: tile_ir.Tile, start: Start | None) -> tile_ir.TileNew:
        """Return what sets a word tile to `start`, or to zeros."""
        if start is None:
            return tile_ir.TileNew(self.line(), tile)
        array, at = start
        if array.ir.dtype != tile.dtype or len(array.ir.shape) < 2:
            raise self.fail(
                f"a tile of words started from {array.ir.name}, {array.ir.dtype} {array.ir.shape}: wanted {tile.dtype}"
            )
        return tile_ir.TileNew(self.line(), tile, array.ir, self.indices(array.ir, at))

    def async_copy(
        self,
        destination: Array,
        source: Array,
        *at: Number,
        rows: Number | None = None,
        columns: Number | None = None,
    ) -> None:
        """Start a copy that fills `destination` (scratch, 1-D or 2-D) from source[at ...]; k.async_wait completes it.

        `at` has one index per dimension of source; the destination maps to source's last dimensions. At or past `rows` and
        `columns` (uniform) nothing is read and 0 is written. No lane may access the destination between the last barrier
        before the call and the wait that completes it. A target without asynchronous copies copies at once.
        """
        if self.in_lanes:
            raise self.fail("k.async_copy inside k.lanes")
        to, come = destination.ir, source.ir
        if not to.scratch or len(to.shape) > min(2, len(come.shape)) or to.dtype != come.dtype:
            raise self.fail(
                f"async_copy of {come.name}, {come.dtype} {come.shape}, to {to.name}, {to.dtype} {to.shape}: "
                "wanted scratch of its dtype, with one or two dimensions and no more than it has"
            )
        if rows is not None and len(to.shape) == 1:
            raise self.fail("async_copy to one dimension with a limit of rows")
        limits = (self.limit(rows), self.limit(columns))
        self.append(tile_ir.AsyncCopy(self.line(), to, come, self.indices(come, at), *limits))

    def async_wait(self, ahead: int = 0) -> None:
        """Wait for started copies; also a barrier, after which every lane sees the copied data.

        The copies since the last wait are a group. With `ahead` the last so many groups, this one among them, may stay under way.
        """
        if self.in_lanes:
            raise self.fail("k.async_wait inside k.lanes")
        if ahead < 0:
            raise self.fail(f"async_wait with ahead={ahead}; wanted 0 or more")
        self.append(tile_ir.AsyncWait(self.line(), ahead))
