"""Kernel of matmul of bf16 by bf16 on AMX: a program packs some panels of b and multiplies all its rows by them.

Depth is counted in 32-bit words of two k. A step of four tiles of sums takes 4 KiB of operands and 64 cycles, in which the L2
cache gives 2.5 KiB (Emerald Rapids). So 32 rows of a stay in the L1 cache, as far as they fit, while panels of b pass from the L2
cache, loaded with the hint that they are not read again soon: 512 x 512 x 512 takes 0.19 ms, 0.23 without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from camshaft.dtypes import DType, f32, i64, u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops.matmul.blocks.panels import paired_rows
from camshaft.ops.matmul.blocks.unit_panels import SIDE, WORDS, panel_words
from camshaft.ops.matmul.shapes import PAIR, WIDTH, Matrices

LINES = SIDE * SIDE // WIDTH  # of a tile of the result
CACHED_NBYTES = 1 << 20  # half of the L2 cache


def slots_of(result: DType) -> int:
    """Returns the tiles of sums that a program keeps for a result of this dtype."""
    return 1 if result == f32 else 2


@dataclass(frozen=True)
class Product:
    """A program's product: `rows` rows from `start` on, below `limit`, of matrix `index`, and the columns from panel `first` on.

    The depth is in parts, for which `words` (`panel_words`) holds b; `sums` is a tile, or two of a rounded result."""

    k: Tracer
    m: Matrices
    a: Array
    b: Array
    out: Array
    index: Value
    start: Value
    limit: Value
    first: Value
    rows: int
    part: int
    panels: int
    words: Array
    sums: Array

    @property
    def steps(self) -> int:
        """Steps of the depth."""
        return self.m.depth // WORDS

    @property
    def width(self) -> Value | int:
        """The panels of this program."""
        panels = -(-self.m.columns // SIDE)
        return self.k.minimum(panels - self.first, self.panels) if panels % self.panels else self.panels

    @property
    def is_cached(self) -> bool:
        """Whether a matrix of a and its result lie in the L2 cache, so that prefetching them takes longer than it saves."""
        return 4 * self.m.rows * (self.m.depth + self.m.columns) <= CACHED_NBYTES

    def run(self) -> None:
        """Computes the product, a part of the depth at a time. The last rows' tile starts earlier, so that it is full."""
        k = self.k
        for begin, depth in self.parts():
            strips = (k.minimum(self.limit - self.start, self.rows) + (SIDE - 1)) // SIDE
            for i in k.range(strips):
                for p in k.range(self.width):
                    self._tile(i, p).add(begin, depth, self._before(i, p) if self.is_rounded else None)
            if self.is_rounded:
                last = self._before(strips, k.const(0, i64))
                for v in k.range(LINES):
                    last.round(v)

    @property
    def is_rounded(self) -> bool:
        """Whether the result is not f32: then a tile's sums are rounded from scratch while the next tile is computed."""
        return self.out.dtype != f32

    def _tile(self, i: Value, p: Value) -> Tile:
        """Returns the tile of panel p in the rows from 32 i on."""
        row = self.start + i * SIDE
        slot = (i * self.width + p) % self.sums.shape[0]
        return Tile(self, row, self.k.minimum(row, self.m.rows - SIDE), p, slot)

    def _before(self, i: Value, p: Value) -> Tile:
        """Returns the tile before that of panel p; before the first one a tile without rows."""
        k = self.k
        before = self._tile(k.select(p > 0, i, k.maximum(i - 1, 0)), k.select(p > 0, p - 1, self.width - 1))
        return replace(before, row=k.select(i + p > 0, before.row, self.limit))

    def parts(self) -> Iterator[tuple[Value, Value | int]]:
        """For each part of the depth: its first step, and its steps, whose words then lie in the panels."""
        k = self.k
        for number in k.range(-(-self.steps // self.part)):
            begin = number * self.part
            depth = k.minimum(self.steps - begin, self.part) if self.steps % self.part else self.part
            k.barrier()
            (self._turn if self.b.dtype == u32 else self._pair)(begin, depth)
            k.barrier()
            yield begin, depth

    def _pair(self, begin: Value, depth: Value | int) -> None:
        """Fills the panels from pairs of rows of b [k, n], each pair along all panels."""
        k, unrolled = self.k, isinstance(self.width, int) and self.panels <= 2
        for step in k.range(depth):
            for w in k.range(WORDS):
                row = (self.m.b(self.index) * self.m.depth + (begin + step) * WORDS + w) * PAIR
                # a loop of two took a fifth of the time of 64 x 64 x 64
                for p in range(self.panels) if unrolled else k.range(self.width):
                    for half in (0, WIDTH):
                        column, count = (self.first + p) * SIDE + half, None
                        if self.m.columns % SIDE:
                            count = k.maximum(self.m.columns - column, 0)
                            column = k.minimum(column, self.m.columns - 1)
                        pairs = paired_rows(k, self.b, row, column, count)
                        k.store_vector(self.words, pairs, p, step, half // WIDTH * WORDS + w, 0)

    def _turn(self, begin: Value, depth: Value | int) -> None:
        """Fills the panels from the words of 32 rows of b [n, k]: all rows at one word, whose lines serve 16 words."""
        k, matrix = self.k, self.m.b(self.index) * self.m.columns
        for p in k.range(self.width):
            for step in k.range(depth):
                for half in range(SIDE // WIDTH):
                    for c in k.lanes(WIDTH):
                        row = k.minimum((self.first + p) * SIDE + half * WIDTH + c, self.m.columns - 1) + matrix
                        for w in range(WORDS):
                            self.words[p, step, half * WORDS + w, c] = k.gather(self.b, row, (begin + step) * WORDS + w)


@dataclass(frozen=True)
class Tile:
    """32 rows of a product's result from `origin` on, of which those from `row` on count, and the columns of panel `p`. Its sums
    may lie in `slot` of the product's."""

    product: Product
    row: Value
    origin: Value
    p: Value
    slot: Value

    @property
    def to(self) -> tuple[Value, Value]:
        """The tile's place in the result."""
        product = self.product
        return product.index * product.m.rows + self.origin, (product.first + self.p) * SIDE

    def add(self, begin: Value, depth: Value | int, before: Tile | None) -> None:
        """Adds the product of a part of the depth, and rounds the tile `before`."""
        x, is_split = self.product, self.product.part < self.product.steps
        if is_split:
            self._take(begin)
        total = x.k.word_tile(SIDE, SIDE, f32, (x.sums, (0, 0, 0)) if is_split else None)
        a_row = x.m.a(x.index) * x.m.rows + self.origin
        for step in x.k.range(depth):
            at = (begin + step) * WORDS
            if not x.is_cached:
                self._prefetch(a_row, at, step)
            if before is not None:
                for q in range(each := -(-LINES // x.part)):
                    before.round(x.k.minimum(step * each + q, LINES - 1))
            total.mma(x.a, (a_row, at), x.words, (self.p, step, 0, 0), k=WORDS, passing="b")
        self._put(total)

    def _prefetch(self, a_row: Value, at: Value, step: Value) -> None:
        """Prefetches some lines of the next 32 rows and of the result, so that all panels and all steps do all."""
        x, k = self.product, self.product.k
        for q in range(each := -(-SIDE // x.panels)):
            k.prefetch(x.a, k.minimum(a_row + (SIDE + q) + self.p * each, x.a.shape[0] - 1), at, near=False)
        for q in range(each := -(-LINES // x.part)):
            line = k.minimum(step * each + q, LINES - 1)
            column = k.minimum(self.to[1] + line % 2 * WIDTH, x.m.columns - 1)
            k.prefetch(x.out, self.to[0] + line // 2, column, near=False)

    def _take(self, begin: Value) -> None:
        """Sets sums to what the parts before have left in the result."""
        x, k = self.product, self.product.k
        k.barrier()
        for i, half, place, count in self._vectors():
            values = k.load_vector(x.out, *place, width=WIDTH, count=k.select(begin > 0, count, 0))
            k.store_vector(x.sums, values, 0, i, half)
        k.barrier()

    def _put(self, total: Any) -> None:
        """Stores the tile: a whole one of f32 at once, others by way of scratch, where those of a rounded result wait."""
        x, k = self.product, self.product.k
        if x.is_rounded:
            total.store(x.sums, (self.slot, 0, 0))
            k.barrier()
            return
        has_all_rows = (self.row == self.origin) & (self.row + SIDE <= x.limit)
        is_whole = has_all_rows & (self.to[1] + SIDE <= x.m.columns)
        with k.when(is_whole):
            total.store(x.out, self.to)
        with k.when(k.select(is_whole, 0, 1) > 0):
            total.store(x.sums, (0, 0, 0))
            k.barrier()
            for i, half, place, count in self._vectors():
                k.store_vector(x.out, k.load_vector(x.sums, 0, i, half, width=WIDTH), *place, count=count)
            k.barrier()

    def round(self, v: Value) -> None:
        """Stores vector v of the sums in the tile's slot to the result."""
        x, k, i, half = self.product, self.product.k, v // 2, v % 2 * WIDTH
        place, count = self._place(i, half)
        k.store_vector(x.out, k.load_vector(x.sums, self.slot, i, half, width=WIDTH), *place, count=count)

    def _vectors(self) -> Iterator[tuple[Value, int, tuple[Value, Value], Value]]:
        """For each vector: its row and column in the tile, its place in the result, and its elements that count."""
        for i in self.product.k.range(SIDE):
            for half in (0, WIDTH):
                yield i, half, *self._place(i, half)

    def _place(self, i: Value, half: Value | int) -> tuple[tuple[Value, Value], Value]:
        """A vector's place in the result, and its elements that count."""
        x, k, (first, column) = self.product, self.product.k, self.to
        counts = (self.origin + i >= self.row) & (self.origin + i < x.limit)
        place = first + i, k.minimum(column + half, x.m.columns - 1)
        return place, k.select(counts, k.maximum(x.m.columns - (column + half), 0), 0)


@kernel
def multiply_panels(
    k: Tracer, a: Array, b: Array, out: Array, *extent: Value, tokens: int, part: int, panels: int, **sizes: Any
) -> None:
    # out[i, j] = sum over words d of a[i, d] b[d, j]; b [k, n] in 16-bit elements, whose rows are paired here, or [n, k] in words
    m = Matrices(**sizes)
    limit = extent[0] if extent else k.const(m.rows, i64)
    words, sums = panel_words(k, panels, part), k.scratch(f32, slots_of(out.dtype), SIDE, SIDE)
    index, start, first = k.program(0), k.program(1) * tokens, k.program(2) * panels
    Product(k, m, a, b, out, index, start, limit, first, tokens, part, panels, words, sums).run()
