"""The kernel of matmul in blocks: a register tile over blocks of rows, columns and depth that stay in a core's caches.

A program multiplies a block of rows with a group of panels of b (`vectors` vectors of columns each), `part` of the depth at a
time, so that a panel's part stays in the L2 cache for all row tiles. b is read in place or from packed panels. Products are
added in the order of k, starting at 0 in each part, so results depend only on `part`.

A 16-bit result is rounded once, when it is stored. If the depth has several parts, the f32 sums are in scratch until the last.

If a has 32-bit words, each is a pair of bf16 along the depth, and the depth counts words. b's rows are paired when they are
read or packed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from camshaft.dtypes import f32, u32
from camshaft.lang import Array, Number, Tracer, Value, Variable, kernel, tile_of
from camshaft.ops.matmul.blocks.panels import paired_rows
from camshaft.ops.matmul.shapes import WIDTH, Blocks, Tiles

LINE = 16  # f32 elements of a cache line
AHEAD = 12  # rows to prefetch before they are paired


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
    `sums` has the sums of earlier parts if out has a 16-bit dtype; `paired_part` has a panel's part of b in words. If `ahead`
    is not 0, so many rows of a packed panel are prefetched ahead, and the next panel; a program has `block` tiles of rows."""

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

    def panel(self, p: Value) -> Columns:
        """Returns the panel that starts at column p."""
        k, starts = self.k, [p + j * WIDTH for j in range(self.vectors)]
        if self.columns % (self.vectors * WIDTH) == 0:
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
        """Pairs a panel's part of b into scratch, once for all tiles. Prefetches in software: the rows are too far apart for
        hardware prefetching."""
        if self.paired_part is None:
            return
        k, at = self.k, self.panel(p)
        k.barrier()
        for d in k.range(part.length):
            ahead = self.b_row * 2 + (k.minimum(d + AHEAD, part.length - 1) + part.start) * 2
            for i in range(2):
                for s in at.starts[::2]:
                    k.prefetch(self.b, ahead + i, s)
            for j, (s, n) in enumerate(zip(at.starts, at.counts, strict=True)):
                k.store_vector(self.paired_part, self.paired(part.start + d, s, n), d, j * WIDTH)
        k.barrier()

    def weights(self, at: Columns, p: Value, start: Number, n: Value) -> list[Value]:
        """Returns row `start` + n of the panel."""
        k, d = self.k, start + n
        if self.paired_part is not None:
            return [k.load_vector(self.paired_part, n, j * WIDTH, width=WIDTH) for j in range(self.vectors)]
        if len(self.b.shape) == 3:
            panel = self.b_row + p // (self.vectors * WIDTH)
            return [k.load_vector(self.b, panel, d, j * WIDTH, width=WIDTH) for j in range(self.vectors)]
        pairs = list(zip(at.starts, at.counts, strict=True))
        if self.in_words:
            return [self.paired(d, s, count) for s, count in pairs]
        return [k.load_vector(self.b, self.b_row + d, s, width=WIDTH, count=count) for s, count in pairs]

    @property
    def in_words(self) -> bool:
        """Whether the operands are pairs of bf16."""
        return self.a.dtype == u32

    def paired(self, d: Value, start: Value, count: Value | None) -> Value:
        """Returns word d of some columns of b: rows 2d and 2d + 1, 16 bits each."""
        return paired_rows(self.k, self.b, self.b_row * 2 + d * 2, start, count)

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
        ahead = self.out if self.sums is None or part.is_last else None
        for i in range(height if ahead is not None else 0):
            for s in at.starts[:: 4 // self.out.dtype.nbytes]:
                k.prefetch(self.out, self.out_row + self.tiles.first_row(t) + i, s)
        for i, line in enumerate(self.tile_sums(t, self.factors(t, height), at, p, part)):
            row, values = self.tiles.first_row(t) + i, [total.value for total in line]
            active = self.tiles.active
            with nullcontext() if active is None else k.when(row < active):
                self.store(row, p, at, values, part)

    def tile_sums(self, t: Value, rows: list[Value], at: Columns, p: Value, part: Part) -> list[list[Variable]]:
        """Returns a tile's sums over a part of the depth, in registers."""
        k, start = self.k, part.start
        sums = tile_of(k, len(rows), self.vectors, WIDTH)
        for d in k.range(part.length):
            if self.ahead:
                self.fetch(t, p, d, part)
            weights = self.weights(at, p, start, d)
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
            k.store_vector(array, value, *place, count=count)

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


@kernel
def multiply_blocks(
    k: Tracer,
    a: Array,
    b: Array,
    out: Array,
    *extent: Value,
    copied: bool,
    paired_part: bool,
    ahead: int = 0,
    **constants: Any,
) -> None:
    # out[i, j] = sum_k a[i, k] b[k, j]: `block` tiles of rows and `panels` panels per program, `part` of the depth at a time
    s = Blocks(**constants)
    rows, columns = s.block * s.tile, s.panels * s.width
    # an odd number of lines apart
    pitch = -(-s.part // (2 * LINE)) * 2 * LINE + LINE
    left = k.scratch(f32, rows, pitch) if copied else None
    # an f32 out has the sums of earlier parts itself
    sums = k.scratch(f32, rows, columns) if s.depth > s.part and out.dtype != f32 else None
    words = k.scratch(u32, s.part, s.width) if paired_part else None
    b_rows = -(-s.columns // s.width) if len(b.shape) == 3 else s.depth
    make = partial(Product, ahead=ahead, block=s.block)
    multiply(k, make, s, extent, b_rows, a=a, b=b, out=out, left=left, sums=sums, paired_part=words)


def multiply(
    k: Tracer, make: Callable[..., Product], s: Blocks, extent: tuple[Value, ...], b_rows: int, **arrays: Array | None
) -> None:
    """Computes a program's blocks with a product that `make` makes of `arrays` and the places. `b_rows`: the rows, or panels, of
    a matrix of b."""
    index, active = k.program(0), extent[0] if extent else None
    tiles = Tiles(k, s.rows, s.tile, s.tall, active)
    first, p0 = k.program(2) * s.block, k.program(1) * (s.panels * s.width)
    last = k.minimum(first + s.block, tiles.count if active is None else (active + (s.tile - 1)) // s.tile)
    product = make(
        k=k,
        tiles=tiles,
        first=first,
        last=last,
        a_row=s.a(index) * s.rows,
        b_row=s.b(index) * b_rows,
        out_row=index * s.rows,
        p0=p0,
        columns=s.columns,
        vectors=s.vectors,
        **arrays,
    )
    product.by_parts(p0, k.minimum(p0 + s.panels * s.width, s.columns), s.depth, s.part)
