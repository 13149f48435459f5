"""Product: one program's share of a blocked matmul, in register tiles (blocked_kernel.py describes the blocks)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from camshaft.dtypes import u32
from camshaft.lang import Array, Number, Tracer, Value, Variable, tile_of
from camshaft.ops.matmul.blocks.panels import paired_rows
from camshaft.ops.matmul.shapes import WIDTH, Tiles

LINE = 16  # f32 elements of a cache line
AHEAD = 12  # rows to prefetch into the second cache before they are paired


@dataclass(frozen=True)
class Columns:
    """A panel's columns: the first column of each vector, and the number of columns in each (None: always full)."""

    starts: list[Value]
    counts: list[Value] | list[None]


@dataclass(frozen=True)
class Part:
    """A part of the depth that a program processes in one step."""

    start: Number
    length: int
    is_last: bool

    @property
    def is_first(self) -> bool:
        """Whether this is the first part."""
        return isinstance(self.start, int) and self.start == 0


@dataclass(frozen=True, kw_only=True)
class Product:
    """A program's operands. `a_row`, `b_row` and `out_row` are the first rows of its matrices, `p0` is its first column.
    `sums` has the sums of earlier parts if out has a 16-bit dtype; `paired_part` is a copy of a panel's part of b. If `ahead`
    is not 0, so many rows of a packed panel are prefetched ahead, and the next panel; a program has `block` tiles of rows.
    `is_even`: no panel has vectors outside the columns. `streamed`: nontemporal stores write the result. `rows_ahead`: how many
    rows before its use a row of b, which is read in place, is prefetched into the second cache, 0 for never."""

    k: Tracer
    a: Array
    b: Array
    out: Array
    left: Array | None = None
    sums: Array | None = None
    paired_part: Array | None = None
    tiles: Tiles
    first: Value
    last: Value
    a_row: Number
    b_row: Number
    out_row: Number
    p0: Value
    columns: int
    vectors: int
    ahead: int = 0
    block: int = 0
    is_even: bool = False
    streamed: bool = False
    rows_ahead: int = 0

    def panel(self, p: Value) -> Columns:
        """Returns the panel that starts at column p."""
        k, starts = self.k, [p + j * WIDTH for j in range(self.vectors)]
        if self.columns % (WIDTH if self.is_even else self.vectors * WIDTH) == 0:
            return Columns(starts, [None] * self.vectors)
        counts = [k.maximum(self.columns - s, 0) for s in starts]
        return Columns([k.minimum(s, self.columns - 1) for s in starts], counts)

    def copy_rows(self, start: Number, length: int) -> None:
        """Copies the block of a to scratch, because rows at a power-of-two distance would share a few cache sets."""
        if self.left is None:
            return
        k, row = self.k, self.tiles.first_row(self.first)
        last = self.tiles.first_row(self.last)
        if self.tiles.active is not None:
            last = k.minimum(last, self.tiles.active)
        k.barrier()
        for r in k.range(row, last):
            for c in k.lanes(length):
                self.left[r - row, c] = self.a[self.a_row + r, start + c]
        k.barrier()

    def pair_part(self, p: Value, part: Part) -> None:
        """Copies a panel's part of b into scratch once, and pairs 16-bit rows. Prefetches in software: the rows are too far apart
        for hardware prefetching."""
        if self.paired_part is None:
            return
        k, at, pairs = self.k, self.panel(p), 2 if self.in_words else 1
        k.barrier()
        for d in k.range(part.length):
            ahead = self.b_row * pairs + (k.minimum(d + AHEAD, part.length - 1) + part.start) * pairs
            for i in range(pairs):
                for s in at.starts[::pairs]:
                    k.prefetch(self.b, ahead + i, s, near=False)
            for j, (s, n) in enumerate(zip(at.starts, at.counts, strict=True)):
                k.store_vector(self.paired_part, self.row(part.start + d, s, n), d, j * WIDTH)
        k.barrier()

    def weights(self, at: Columns, p: Value, start: Number, n: Value) -> list[Value]:
        """Returns row `start` + n of the panel."""
        k, d = self.k, start + n
        if self.paired_part is not None:
            return [k.load_vector(self.paired_part, n, j * WIDTH, width=WIDTH) for j in range(self.vectors)]
        if len(self.b.shape) == 3:
            panel = self.b_row + p // (self.vectors * WIDTH)
            return [k.load_vector(self.b, panel, d, j * WIDTH, width=WIDTH) for j in range(self.vectors)]
        return [self.row(d, s, count) for s, count in zip(at.starts, at.counts, strict=True)]

    def row(self, d: Number, start: Value, count: Value | None) -> Value:
        """Returns some columns of row d of b, in words of rows 2d and 2d + 1 if the operands are pairs."""
        if self.in_words:
            return paired_rows(self.k, self.b, self.b_row * 2 + d * 2, start, count)
        return self.k.load_vector(self.b, self.b_row + d, start, width=WIDTH, count=count)

    @property
    def in_words(self) -> bool:
        """Whether the operands are pairs of bf16."""
        return self.a.dtype == u32

    def added(self, total: Variable, x: Value, weights: Value) -> None:
        """Computes total += x weights."""
        k = self.k
        total.set(k.dot2(total.value, x, weights) if self.in_words else k.fma(x, weights, total.value))

    def factors(self, t: Value, height: int) -> list[Value]:
        """Returns the indexes of tile t's rows in `x`, which is scratch or a."""
        row, active = self.tiles.first_row(t), self.tiles.active
        rows = [row + i for i in range(height)]
        if active is not None:
            rows = [self.k.minimum(r, active - 1) for r in rows]
        if self.left is None:
            return [self.a_row + r for r in rows]
        first = self.tiles.first_row(self.first)
        return [r - first for r in rows]

    def tile(self, t: Value, height: int, p: Value, part: Part) -> None:
        """Computes a register tile: `height` rows of a times a panel of b, over a part of the depth."""
        k, at = self.k, self.panel(p)
        if self.fetches(part):
            with k.when(t == self.first) if self.spreads else nullcontext():
                self.fetch_result(t, height, at)
        for i, line in enumerate(self.tile_sums(t, self.factors(t, height), at, p, part)):
            row, values = self.tiles.first_row(t) + i, [total.value for total in line]
            active = self.tiles.active
            with nullcontext() if active is None else k.when(row < active):
                self.store(row, p, at, values, part)

    def fetches(self, part: Part) -> bool:
        """Whether a tile's lines of the result are prefetched."""
        return not self.streamed and (self.sums is None or part.is_last)

    @property
    def spreads(self) -> bool:
        """Whether the next tile's result is prefetched while a tile is computed. With 12 sums of 8 lanes no instructions are
        to spare: it took 1.15 times as long."""
        return self.paired_part is not None and self.vectors > 1

    def fetch_result(self, t: Value, height: int, at: Columns) -> None:
        """Prefetches a tile's lines of the result."""
        for i in range(height):
            for s in at.starts[:: 4 // self.out.dtype.nbytes]:
                self.k.prefetch(self.out, self.out_row + self.tiles.first_row(t) + i, s)

    def fetch_next_result(self, t: Value, height: int, at: Columns, d: Value) -> None:
        """Prefetches a line of the next tile's result at each step of the depth: 64 x 56^2 to 256 (conv2d) took a tenth longer
        with all at once."""
        k = self.k
        row = k.minimum(self.tiles.first_row(t) + height + k.minimum(d % LINE, height - 1), self.tiles.rows - 1)
        vector = k.minimum(d // LINE % 4, self.vectors - 1)
        k.prefetch(self.out, self.out_row + row, k.minimum(at.starts[0] + vector * WIDTH, self.columns - 1))

    def tile_sums(self, t: Value, rows: list[Value], at: Columns, p: Value, part: Part) -> list[list[Variable]]:
        """Returns a tile's sums over a part of the depth, in registers."""
        k, start = self.k, part.start
        sums = tile_of(k, len(rows), self.vectors, WIDTH)
        for d in k.range(part.length):
            if self.ahead:
                self.fetch(t, p, d, part)
            if self.rows_ahead:
                self.fetch_row(at, start + d + self.rows_ahead)
            weights = self.weights(at, p, start, d)
            if self.spreads and self.fetches(part):
                self.fetch_next_result(t, len(rows), at, d)
            for row, line in zip(rows, sums, strict=True):
                x = self.a[row, start + d] if self.left is None else self.left[row, d]
                for total, w in zip(line, weights, strict=True):
                    self.added(total, k.splat(x, WIDTH, x.dtype), w)
        return sums

    def fetch(self, t: Value, p: Value, d: Value, part: Part) -> None:
        """Prefetches a row of the packed panel, and a line of the next panel, so that all steps of all tiles do all."""
        k, panel, last = self.k, self.b_row + p // (self.vectors * WIDTH), part.start + (part.length - 1)
        for j in range(self.vectors):
            k.prefetch(self.b, panel, k.minimum(part.start + d + self.ahead, last), j * WIDTH)
        line = ((t - self.first) * part.length + d) // max(self.block // self.vectors, 1)
        row, following = part.start + line // self.vectors, k.minimum(panel + 1, self.b.shape[0] - 1)
        k.prefetch(self.b, following, k.minimum(row, last), line % self.vectors * WIDTH, near=False)

    def fetch_row(self, at: Columns, d: Value) -> None:
        """Prefetches a panel's columns of row d of b into the second cache. Past the last row that has no effect."""
        for start in at.starts:
            self.k.prefetch(self.b, self.b_row + d, start, near=False)

    def store(self, row: Value, p: Value, at: Columns, values: list[Value], part: Part) -> None:
        """Stores a row of sums for the first part, adds to it for later parts."""
        k = self.k
        for j, (value, s, n) in enumerate(zip(values, at.starts, at.counts, strict=True)):
            array, place, count = self.out, (self.out_row + row, s), n
            if self.sums is not None:
                array, count = self.sums, None
                place = row - self.tiles.first_row(self.first), p - self.p0 + j * WIDTH
            if not part.is_first:
                value = k.load_vector(array, *place, width=WIDTH, count=count) + value
            if part.is_last:
                array, place, count = self.out, (self.out_row + row, s), n
            k.store_vector(array, value, *place, count=count, streamed=self.streamed and part.is_last)

    def multiply(self, p: Value, part: Part) -> None:
        """Multiplies all row tiles of the program with one panel."""
        k, tiles = self.k, self.tiles
        self.pair_part(p, part)
        for t in k.range(self.first, k.minimum(self.last, tiles.tall) if tiles.has_short else self.last):
            self.tile(t, tiles.tile, p, part)
        if tiles.has_short:
            for t in k.range(k.maximum(self.first, tiles.tall), self.last):
                self.tile(t, tiles.tile - 1, p, part)

    def by_parts(self, first: Value, last: Value, depth: int, part: int) -> None:
        """Computes panels `first` to `last`, `part` of the depth at a time."""
        k = self.k

        def block_of(start: Number, length: int, is_last: bool) -> None:
            self.copy_rows(start, length)
            for p in k.range(first, last, self.vectors * WIDTH):
                self.multiply(p, Part(start, length, is_last))

        last_part = (depth - 1) // part * part
        between = last_part if self.sums is not None or last_part + part > depth else depth
        block_of(0, min(part, depth), depth <= part)
        if between > part:
            for start in k.range(part, between, part):
                block_of(start, part, False)
        if part <= between < depth:
            block_of(between, depth - between, True)
