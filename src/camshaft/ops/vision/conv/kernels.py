"""The kernels of conv2d: one for every target, and one in the blocks of matmul that packs its columns from the image.

Both read an image that is padded already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from camshaft.dtypes import DTYPES, f32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops.matmul.blocks.blocked_kernel import multiply
from camshaft.ops.matmul.blocks.product import Part, Product
from camshaft.ops.matmul.lanes import added
from camshaft.ops.matmul.shapes import WIDTH, Blocks

UNROLL = 8  # elements of a window's row that one pass over the sums adds


@kernel
def direct(
    k: Tracer, x: Array, weights: Array, out: Array, *, groups: int, channels: int, per_group: int, height: int, width: int,
    rows: int, columns: int, row_step: int, column_step: int, row_gap: int, column_gap: int, out_rows: int, out_columns: int,
    block: int, dtype: str,
) -> None:  # fmt: skip
    # out[n, o, i, j] = sum_(c, r, s) x[n, c, i step + r gap, j step + s gap] weights[o, c, r, s]: a block of one row
    plane, i, first = k.program(0), k.program(1), k.program(2) * block
    stop = k.minimum(first + block, out_columns)
    kernel_at = plane % (groups * per_group)
    image = plane // (groups * per_group) * groups + kernel_at // per_group
    sums = k.scratch(DTYPES[dtype], block)
    for j in k.lanes(first, stop):
        sums[j - first] = 0
    for c in k.range(channels):
        for r in k.range(rows):
            start = ((image * channels + c) * height + i * row_step + r * row_gap) * width
            factor_at = ((kernel_at * channels + c) * rows + r) * columns

            def add(s: Value | int, n: int, start: Value = start, factor_at: Value = factor_at) -> None:
                factors = [weights[factor_at + (s + t)] for t in range(n)]
                for j in k.lanes(first, stop):
                    total = sums[j - first]
                    for t, factor in enumerate(factors):
                        place = start + (s + t) * column_gap
                        found = x[place + j] if column_step == 1 else k.gather(x, j * column_step + place)
                        total = added(k, factor, found, total)
                    sums[j - first] = total

            full = columns // UNROLL * UNROLL
            if full > UNROLL:
                for s in k.range(0, full, UNROLL):
                    add(s, UNROLL)
            elif full:
                add(0, UNROLL)
            if full < columns:
                add(full, columns - full)
    for j in k.lanes(first, stop):
        out[(plane * out_rows + i) * out_columns + j] = sums[j - first]


@dataclass(frozen=True)
class Image:
    """The sizes of an image and of the windows over it. A row of the depth is (channel, row, column) of a window."""

    channels: int
    height: int
    width: int
    rows: int
    columns: int
    row_step: int
    column_step: int
    row_gap: int
    column_gap: int
    out_columns: int


@dataclass(frozen=True, kw_only=True)
class ImageProduct(Product):
    """A product whose b are the windows of an image: b[(c, r, s), (i, j)] = image[c, i step + r gap, j step + s gap]. Each
    program packs its panel's part, so that windows are never in memory. A row of the image has every step-th column side by
    side."""

    image: Image

    def pair_part(self, p: Value, part: Part) -> None:
        """Packs a panel's part of the windows, once for all tiles."""
        k, m = self.k, self.image
        assert self.paired_part is not None
        base = self.b_row * (m.channels * m.height * m.width)
        k.barrier()
        fill = self.filling(p)
        if self.columns % (self.vectors * WIDTH):
            # what scratch has there may be subnormal: 512 x 7^2 to 512 by 3^2 took ten times as long
            with k.when(p + self.vectors * WIDTH > self.columns):
                for n in k.range(part.length):
                    for v in range(self.vectors):
                        k.store_vector(self.paired_part, k.splat(0.0, WIDTH), n, v * WIDTH)
        for n in k.range(part.length):
            d = part.start + n
            r = d // m.columns
            row = r // m.rows * m.height + r % m.rows * m.row_gap
            column = d % m.columns * m.column_gap
            if m.column_step > 1:
                column = column % m.column_step * (m.width // m.column_step) + column // m.column_step
            fill(n, base + row * m.width + column)
        k.barrier()

    def filling(self, p: Value) -> Callable[[Value, Value], None]:
        """Returns what copies row n of a panel, whose first window's element is at a place of the image.

        A vector is a few pieces of rows, stored from the last to the first, so that each covers what the one after it wrote too
        much. With gathers 64 x 56^2 by 3^2 took half as long again.
        """
        k, m, panel = self.k, self.image, self.paired_part
        assert panel is not None
        pieces = []
        for v in range(self.vectors):
            first = k.minimum(p + v * WIDTH, self.columns - 1)
            count = k.maximum(k.minimum(self.columns - (p + v * WIDTH), WIDTH), 0)
            i, j = first // m.out_columns, first % m.out_columns
            for more in range((WIDTH - 2) // m.out_columns + 2):
                done = m.out_columns * more - j  # columns of the vector before this piece
                start = (i + more) * (m.row_step * m.width) - done
                end = k.minimum(k.maximum(done + m.out_columns, 0), count)
                pieces.append((v, start, end, done))

        def fill(n: Value, at: Value) -> None:
            for v, start, end, done in reversed(pieces):
                with k.when(done < end):
                    values = k.load_vector(self.b, at + start, width=WIDTH, count=end)
                    k.store_vector(panel, values, n, v * WIDTH, count=end)

        return fill


@kernel
def multiply_windows(k: Tracer, a: Array, b: Array, out: Array, *, image: tuple[int, ...], **constants: Any) -> None:
    # out[o, (i, j)] = sum_(c, r, s) weights[o, (c, r, s)] windows[(c, r, s), (i, j)]
    s = Blocks(**constants)
    sums = k.scratch(f32, s.block * s.tile, s.panels * s.width) if s.depth > s.part and out.dtype != f32 else None
    part = k.scratch(f32, s.part, s.width)
    make: Callable[..., Product] = partial(ImageProduct, image=Image(*image))
    multiply(k, make, s, (), 1, a=a, b=b, out=out, sums=sums, paired_part=part)
