"""Kernels of matmul of bf16 by bf16 on AMX for large products: a is packed to tiles first, then multiplied a block at a time.

The second cache limits deep products: both operands of a step are 4 KiB in 64 cycles, and rows of a that are a power of two apart
share sets of the first cache. So a block of 32 rows by `block` steps, 32 KiB in one piece, stays in the first cache while panels
of b pass, and sums wait in scratch. Lines of the next rows are prefetched in the order of their addresses, which the prefetcher
of the second cache continues: fetched by rows, they slow the tiles down by a quarter (docs/performance/amx.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import f32, i64, u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops.matmul.blocks.bf16_panels_kernel import Product
from camshaft.ops.matmul.blocks.unit_panels import SIDE, WORDS
from camshaft.ops.matmul.shapes import WIDTH, Matrices

# Steps that are packed at once: with one, 2048 x 2048 take 1.07 ms, with four 0.48 (Emerald Rapids).
PACKED_AT_ONCE = 4
LINES = SIDE * SIDE // WIDTH  # of a tile of sums


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
            self._multiply(u, True, blocks == 1)
        for u in k.range(1, blocks - 1) if blocks > 2 else ():
            self._multiply(u, False, False)
        for u in k.range(blocks - 1, blocks) if blocks > 1 else ():
            self._multiply(u, False, True)

    def _multiply(self, u: Value, is_first: bool, is_last: bool) -> None:
        """Multiplies block u of the depth by all panels. Sums lie in scratch from the first block to the last."""
        x, k, first = self.product, self.product.k, u * self.block
        length = k.maximum(k.minimum(self.depth - first, self.block), 0)
        for p in k.range(x.width):
            if is_first and self.is_split:
                self._take(p)
            total = k.word_tile(SIDE, SIDE, f32, (x.sums, (p, 0, 0)) if self.is_split or not is_first else None)
            for step in k.range(length):
                self._prefetch_rows((first * x.panels + p * length + step) * -(-SIDE // x.panels))
                self._prefetch_sums(k.select(p + 1 < x.width, p + 1, 0), step, is_first and self.is_split)
                at = first + step
                total.mma(x.a, (self.number, self.begin + at, 0, 0), x.words, (p, at, 0, 0), k=WORDS, passing="b")
            total.store(x.sums, (p, 0, 0))
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

    def _prefetch_sums(self, p: Value, step: Value, are_taken: bool) -> None:
        """Prefetches some lines of panel p's sums, which are taken from the result or lie in scratch."""
        x, k = self.product, self.product.k
        for i in range(each := -(-LINES // self.block)):
            line = k.minimum(step * each + i, LINES - 1)
            row, half = line // 2, line % 2 * WIDTH
            if are_taken:
                row, column = self._to(p, row, half)
                k.prefetch(self.partial, row, column)
            else:
                k.prefetch(x.sums, p, row, half)

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
    words, sums = k.scratch(u32, panels, part, WORDS, SIDE), k.scratch(f32, panels, SIDE, SIDE)
    index, start, first = k.program(0), k.program(1) * tokens, k.program(2) * panels
    product = Product(k, m, a, b, out, index, start, limit, first, tokens, part, panels, words, sums)
    for begin, depth in product.parts():
        for i in k.range((k.minimum(limit - start, tokens) + (SIDE - 1)) // SIDE):
            number = m.a(index) * -(-m.rows // SIDE) + (start // SIDE + i)
            Strip(product, partial, number, start + i * SIDE, begin, depth, block, streamed).run()
