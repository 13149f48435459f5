"""Kernels of matmul of bf16 by bf16 on AMX for large products: a is packed to tiles first, then multiplied a block at a time.

The second cache limits deep products: both operands of a step are 4 KiB in 64 cycles, and rows of a that are a power of two apart
share sets of the first cache. So a block of 32 rows by `block` steps, 32 KiB in one piece, stays in the first cache while panels
of b pass, and sums wait in scratch. Lines of the next rows are prefetched in the order of their addresses, which the prefetcher
of the second cache continues: fetched by rows, they slow the tiles down by a quarter (docs/performance/amx.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import f32, i64
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops.matmul.blocks.bf16_panels_kernel import Product
from camshaft.ops.matmul.blocks.unit_panels import SIDE, WORDS, panel_words
from camshaft.ops.matmul.shapes import WIDTH, Matrices

# Steps that are packed at once: with one, 2048 x 2048 take 1.07 ms, with four 0.48 (Emerald Rapids).
PACKED_AT_ONCE = 4
LINE_NBYTES = 64


@kernel
def pack_tiles(k: Tracer, a: Array, tiles: Array, *extent: Value, rows: int, steps: int, streamed: bool) -> None:
    # tiles[block, step, r] = the words of a step of row 32 block + r; rows past the last repeat it
    matrix, number = k.program(0), k.program(1)
    last, block = (extent[0] if extent else k.const(rows, i64)) - 1, matrix * -(-rows // SIDE) + number
    each = 1 if streamed else PACKED_AT_ONCE
    for first in k.range(0, steps, each):
        for r in k.range(SIDE):
            row = matrix * rows + k.minimum(number * SIDE + r, last)
            for i in range(each):
                step = k.minimum(first + i, steps - 1) if steps % each else first + i
                for c in k.lanes(WORDS):
                    if streamed:
                        k.stream(tiles, a[row, step * WORDS + c], block, step, r, c)
                    else:
                        tiles[block, step, r, c] = a[row, step * WORDS + c]


@dataclass(frozen=True)
class Strip:
    """32 rows of a product from `row` on, tiles `number` of a, in a part of the depth from step `begin` on, `depth` steps deep.

    Blocks have `block` steps. `partial`: where sums wait between parts of the depth. `streamed`: whether the result is too large
    to stay in a cache."""

    product: Product
    partial: Array
    number: Value
    row: Value
    begin: Value
    depth: Value | int
    block: int
    streamed: bool

    @property
    def is_split(self) -> bool:
        """Whether the depth has several parts."""
        return self.product.part < self.product.steps

    def run(self) -> None:
        """Adds the product of a part of the depth to the result."""
        k, blocks = self.product.k, -(-self.product.part // self.block)
        for u in k.range(1):
            self._multiply(u, None, blocks == 1)
        if blocks == 1:
            return
        total = k.word_tile(SIDE, SIDE, f32, (self.product.sums, (0, 0, 0)))
        for u in k.range(1, blocks - 1) if blocks > 2 else ():
            self._multiply(u, total, False)
        for u in k.range(blocks - 1, blocks):
            self._multiply(u, total, True)

    def _multiply(self, u: Value, kept: Any, is_last: bool) -> None:
        """Multiplies block u of the depth by all panels. Sums lie in scratch from the first block to the last; `kept`: None in
        the first block, then a tile with those of panel 0."""
        x, k, first = self.product, self.product.k, u * self.block
        length = k.maximum(k.minimum(self.depth - first, self.block), 0)
        for p in k.range(x.width):
            following = k.select(p + 1 < x.width, p + 1, 0)
            if kept is None and self.is_split:
                self._take(p)
            total = kept or k.word_tile(SIDE, SIDE, f32, (x.sums, (p, 0, 0)) if self.is_split else None)
            for step in k.range(length):
                self._prefetch_rows((first * x.panels + p * length + step) * -(-SIDE // x.panels))
                if kept is None and self.is_split:
                    self._prefetch(self.partial, following, step)
                if is_last and not self.is_split and not self.streamed:
                    self._prefetch(x.out, p, step)
                at = first + step
                total.mma(x.a, (self.number, self.begin + at, 0, 0), x.words, (p, at, 0, 0), k=WORDS, passing="b")
            if kept is None:
                total.store(x.sums, (p, 0, 0))
            else:
                total.swap(x.sums, (p, 0, 0), (x.sums, (following, 0, 0)))
            if is_last:
                k.barrier()
                self._put(p)
                k.barrier()

    def _put(self, p: Value) -> None:
        """Stores a panel's sums: after the last part of the depth to the result."""
        x, k = self.product, self.product.k
        if not self.is_split or self.partial is x.out:
            self._store(x.out, p)
            return
        is_done = self.begin + self.depth == x.steps
        with k.when(is_done):
            self._store(x.out, p)
        with k.when(k.select(is_done, 0, 1) > 0):
            self._store(self.partial, p)

    def _prefetch_rows(self, first: Value) -> None:
        """Prefetches some lines of the next rows of a, from line `first` on, so that all panels and steps do all."""
        x, k = self.product, self.product.k
        following = k.minimum(self.number + 1, x.a.shape[0] - 1)
        for i in range(-(-SIDE // x.panels)):
            step = self.begin + k.minimum((first + i) // SIDE, self.depth - 1)
            k.prefetch(x.a, following, step, (first + i) % SIDE, 0, near=False)

    def _prefetch(self, out: Array, p: Value, step: Value) -> None:
        """Prefetches some lines of panel p's tile in the result or in what has its shape, so that the steps of a block do all."""
        k, in_row = self.product.k, SIDE * out.dtype.nbytes // LINE_NBYTES
        for i in range(each := -(-SIDE * in_row // self.block)):
            line = k.minimum(step * each + i, SIDE * in_row - 1)
            column = line % in_row * (SIDE // in_row)
            k.prefetch(out, *self._to(p, line // in_row, column), near=self.is_split)

    def _take(self, p: Value) -> None:
        """Sets a panel's sums to what the parts before have left in the result."""
        x, k = self.product, self.product.k
        k.barrier()
        for i in k.range(SIDE):
            for half in (0, WIDTH):
                count = k.select((self.begin > 0) & (self.row + i < x.limit), self._columns(p, half), 0)
                values = k.load_vector(self.partial, *self._to(p, i, half), width=WIDTH, count=count)
                k.store_vector(x.sums, values, p, i, half)
        k.barrier()

    def _store(self, out: Array, p: Value) -> None:
        """Stores a panel's sums to the result, or to what has its shape."""
        x, k = self.product, self.product.k
        is_whole = (self.row + SIDE <= x.limit) & (self._columns(p, 0) >= SIDE)
        with k.when(is_whole):
            for i in k.range(SIDE):
                row, column = self._to(p, i, 0)
                for c in k.lanes(SIDE):
                    if self.streamed:
                        k.stream(out, x.sums[p, i, c], row, column + c)
                    else:
                        out[row, column + c] = x.sums[p, i, c]
        with k.when(k.select(is_whole, 0, 1) > 0):
            for i in k.range(k.minimum(x.limit - self.row, SIDE)):
                for half in (0, WIDTH):
                    values = k.load_vector(x.sums, p, i, half, width=WIDTH)
                    k.store_vector(out, values, *self._to(p, i, half), count=self._columns(p, half))

    def _to(self, p: Value, i: Value, half: Value | int) -> tuple[Value, Value]:
        """The place of row i and column `half` of panel p's tile in the result."""
        x = self.product
        row, column = x.index * x.m.rows + x.k.minimum(self.row + i, x.m.rows - 1), (x.first + p) * SIDE + half
        return row, x.k.minimum(column, x.m.columns - 1) if x.m.columns % SIDE else column

    def _columns(self, p: Value, half: int) -> Value:
        """The result's columns from column `half` of panel p on."""
        return self.product.m.columns - ((self.product.first + p) * SIDE + half)


@kernel
def multiply_tiles(k: Tracer, a: Array, b: Array, out: Array, *extent: Value, **constants: Any) -> None:
    # out[i, j] = sum over words d of a[i, d] b[d, j]; a in tiles, b as multiply_panels has it
    _multiply(k, a, b, out, out, extent, **constants)


@kernel
def multiply_tiles_in_parts(
    k: Tracer, a: Array, b: Array, partial: Array, out: Array, *extent: Value, **constants: Any
) -> None:
    # like multiply_tiles, with the sums of a part of the depth in `partial`, of f32
    _multiply(k, a, b, partial, out, extent, **constants)


def _multiply(
    k: Tracer,
    a: Array,
    b: Array,
    partial: Array,
    out: Array,
    extent: tuple[Value, ...],
    *,
    tokens: int,
    part: int,
    panels: int,
    block: int,
    streamed: bool,
    **sizes: Any,
) -> None:
    m = Matrices(**sizes)
    limit = extent[0] if extent else k.const(m.rows, i64)
    words, sums = panel_words(k, panels, part), k.scratch(f32, panels, SIDE, SIDE)
    index, start, first = k.program(0), k.program(1) * tokens, k.program(2) * panels
    product = Product(k, m, a, b, out, index, start, limit, first, tokens, part, panels, words, sums)
    for begin, depth in product.parts():
        for i in k.range((k.minimum(limit - start, tokens) + (SIDE - 1)) // SIDE):
            number = m.a(index) * -(-m.rows // SIDE) + (start // SIDE + i)
            Strip(product, partial, number, start + i * SIDE, begin, depth, block, streamed).run()
