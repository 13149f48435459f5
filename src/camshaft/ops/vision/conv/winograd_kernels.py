"""The kernels of conv2d by Winograd's F(4, 3) along the rows of an image: transforms of weights and image, then the product.

Four rows of the result need 6 products of matrices instead of 12: with the six rows d of x and the three rows g of a window,
A ((G g) (B d)) for the points 0, 1, -1, 1/2, -2 and infinity, which round least (Barabasz et al., 2020). Elements of a window's
row are columns of the transformed image side by side, so nothing is rearranged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from camshaft.dtypes import f32
from camshaft.lang import Array, Number, Tracer, Value, kernel, tile_of
from camshaft.ops.matmul.shapes import WIDTH, Tiles

B = (
    (1, -3 / 2, -2, 3 / 2, 1, 0),
    (0, -1, 1 / 2, 5 / 2, 1, 0),
    (0, 1, -5 / 2, 1 / 2, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 1 / 2, -1, -1 / 2, 1, 0),
    (0, 1, -3 / 2, -2, 3 / 2, 1),
)
G = (
    (1, 0, 0),
    (1 / 3, 1 / 3, 1 / 3),
    (-1 / 3, 1 / 3, -1 / 3),
    (-16 / 15, -8 / 15, -4 / 15),
    (1 / 15, -2 / 15, 4 / 15),
    (0, 0, 1),
)
A = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 1 / 2, -2, 0), (0, 1, 1, 1 / 4, 4, 0), (0, 1, -1, 1 / 8, -8, 1))
POINTS, TAKEN, MADE = len(B), len(G[0]), len(A)  # 6 products, 3 rows of a window, 4 rows of the result


def combined(k: Tracer, factors: Sequence[float], values: Sequence[Value]) -> Value:
    """The sum of values by factors, in order."""
    total: Value | None = None
    for factor, value in zip(factors, values, strict=True):
        if factor and total is None:
            total = value if factor == 1 else value * factor
        elif factor and total is not None:
            total = total + value if factor == 1 else total - value if factor == -1 else k.fma(value, factor, total)
    assert total is not None
    return total


@kernel
def transform_weights(k: Tracer, w: Array, out: Array, *, outputs: int, channels: int, columns: int) -> None:
    # out[p, o, (c, s)] = sum_r G[p, r] w[o, c, r, s]
    o = k.program(0)
    for d in k.lanes(channels * columns):
        at = (o * channels + d // columns) * (TAKEN * columns) + d % columns
        rows = [k.gather(w, at + r * columns) for r in range(TAKEN)]
        for p, factors in enumerate(G):
            out[p * outputs + o, d] = combined(k, factors, rows)


@kernel
def transform_image(
    k: Tracer, x: Array, out: Array, *, channels: int, height: int, width: int, top: int, left: int, pitch: int, bands: int,
    length: int,
) -> None:  # fmt: skip
    # out[image, p, c, (i, left + j)] = sum_r B[p, r] x[image, c, 4 i + r - top, j], and 0 in all other columns
    plane, i = k.program(0), k.program(1)
    first, at = plane // channels * (POINTS * channels) + plane % channels, i * pitch
    ys = [i * MADE + (r - top) for r in range(POINTS)]
    nearest = [k.minimum(k.maximum(y, 0), height - 1) for y in ys]
    for j in k.lanes(width):
        rows = [
            k.select(near == y, x[(plane * height + near) * width + j], 0.0)
            for y, near in zip(ys, nearest, strict=True)
        ]
        for p, factors in enumerate(B):
            out[first + p * channels, at + left + j] = combined(k, factors, rows)
    stop = k.select(i == bands - 1, length, at + pitch)
    for p in range(POINTS):
        for j in k.range(at, at + left):
            out[first + p * channels, j] = 0.0
        for j in k.range(at + (left + width), stop):
            out[first + p * channels, j] = 0.0


@dataclass(frozen=True)
class Shape:
    """Sizes of a convolution of one group. A band is MADE rows of the result, which have `pitch` columns, of which `out_width`
    are the result's. A program computes `block` tiles of rows by `vectors` vectors of columns, `part` channels at a time."""

    groups: int
    channels: int
    outputs: int
    height: int
    width: int
    top: int
    left: int
    columns: int
    gap: int
    pitch: int
    out_height: int
    out_width: int
    bands: int
    tile: int
    tall: int
    vectors: int
    block: int
    part: int

    @property
    def panel(self) -> int:
        """Columns of a program."""
        return self.vectors * WIDTH


@dataclass(frozen=True)
class Run:
    """Columns `start` to `end` of row y of the result, which is row r of its band; column 0 has its place in `out`, and in the
    panel if that is not negative."""

    r: int
    y: Value
    at: Value
    start: Value
    end: Value
    shift: Value


@dataclass(frozen=True)
class Program:
    """A program's arrays, its matrices (`index`), its tiles of rows and its first column."""

    k: Tracer
    s: Shape
    u: Array
    v: Array
    x: Array
    w: Array
    out: Array
    products: Array
    results: Array
    tiles: Tiles
    index: Value
    first: Value
    last: Value
    p0: Value

    @property
    def outputs_before(self) -> Value:
        """The weights' outputs before this group's."""
        return self.index % self.s.groups * self.s.outputs

    def multiply(self, p: Value) -> None:
        """Product p of all tiles, a part of the channels at a time."""
        k, s = self.k, self.s
        self.part_of(p, 0, min(s.part, s.channels))
        if s.channels > s.part:
            for c in k.range(s.part, s.channels, s.part):
                self.part_of(p, c, k.minimum(c + s.part, s.channels))

    def part_of(self, p: Value, start: Number, stop: Number) -> None:
        """A part of product p of all tiles."""
        k, tiles = self.k, self.tiles
        for t in k.range(self.first, k.minimum(self.last, tiles.tall) if tiles.has_short else self.last):
            self.tile(t, tiles.tile, p, start, stop)
        if tiles.has_short:
            for t in k.range(k.maximum(self.first, tiles.tall), self.last):
                self.tile(t, tiles.tile - 1, p, start, stop)

    def tile(self, t: Value, height: int, p: Value, start: Number, stop: Number) -> None:
        """A register tile: `height` outputs by the panel, over some channels; added to the sums of those before."""
        k, s = self.k, self.s
        sums = tile_of(k, height, s.vectors, WIDTH)
        row = self.tiles.first_row(t)
        weights_at = p * (s.groups * s.outputs) + self.outputs_before + row
        plane = (self.index * POINTS + p) * s.channels
        for c in k.range(start, stop):
            for column in range(s.columns):
                at = self.p0 + column * s.gap
                seen = [k.load_vector(self.v, plane + c, at + j * WIDTH, width=WIDTH) for j in range(s.vectors)]
                for i, line in enumerate(sums):
                    weight = k.splat(self.u[weights_at + i, c * s.columns + column], WIDTH)
                    for total, values in zip(line, seen, strict=True):
                        total.set(k.fma(weight, values, total.value))
        below = row - self.tiles.first_row(self.first)
        for i, line in enumerate(sums):
            for j, total in enumerate(line):
                place = p, below + i, j * WIDTH
                value = total.value
                if not isinstance(start, int):
                    value = k.load_vector(self.products, *place, width=WIDTH) + value
                k.store_vector(self.products, value, *place)

    def finish(self, row: Value) -> None:
        """The result's rows of one output. Where one is not finite they are computed from x, because transforms spread that."""
        k, s = self.k, self.s
        below, check = row - self.tiles.first_row(self.first), k.splat(0.0, WIDTH)
        for j in range(s.vectors):
            found = [k.load_vector(self.products, p, below, j * WIDTH, width=WIDTH) for p in range(POINTS)]
            for r, factors in enumerate(A):
                y = combined(k, factors, found)
                check = k.fma(y, 0.0, check)
                k.store_vector(self.results, y, r, j * WIDTH)
        self.each_run(row, self.copy)
        with k.when(k.vector_sum(check) != 0.0):
            self.each_run(row, partial(self.compute, row))

    def each_run(self, row: Value, do: Callable[[Run], None]) -> None:
        """Calls `do` with each part of a row of the result that is in the panel."""
        k, s = self.k, self.s
        stop = k.minimum(self.p0 + s.panel, s.bands * s.pitch)
        for i in k.range(self.p0 // s.pitch, (stop - 1) // s.pitch + 1):
            before = i * s.pitch
            start, end = k.maximum(self.p0 - before, 0), k.minimum(stop - before, s.out_width)
            for r in range(MADE):
                y = i * MADE + r
                with k.when(y < s.out_height):
                    at = ((self.index * s.outputs + row) * s.out_height + y) * s.out_width
                    do(Run(r, y, at, start, end, before - self.p0))

    def copy(self, run: Run) -> None:
        """Stores a run."""
        k = self.k
        for j in k.range(run.start, run.end, WIDTH):
            values = k.load_vector(self.results, run.r, run.shift + j, width=WIDTH, count=run.end - j)
            k.store_vector(self.out, values, run.at + j, count=run.end - j)

    def compute(self, row: Value, run: Run) -> None:
        """Stores the sums over the windows of x."""
        k, s, sums = self.k, self.s, self.results
        k.barrier()
        for j in k.lanes(run.start, run.end):
            sums[run.r, run.shift + j] = 0.0
        for c in k.range(s.channels):
            plane = (self.index * s.channels + c) * s.height
            weights_at = ((self.outputs_before + row) * s.channels + c) * (TAKEN * s.columns)
            for r in range(TAKEN):
                y = run.y + (r - s.top)
                near = k.minimum(k.maximum(y, 0), s.height - 1)
                factors = [self.w[weights_at + (r * s.columns + column)] for column in range(s.columns)]
                for j in k.lanes(run.start, run.end):
                    total = sums[run.r, run.shift + j]
                    for column, factor in enumerate(factors):
                        at = j + (column * s.gap - s.left)
                        near_at = k.minimum(k.maximum(at, 0), s.width - 1)
                        found = k.gather(self.x, (plane + near) * s.width + near_at)
                        total = k.fma(factor, k.select((near == y) & (near_at == at), found, 0.0), total)
                    sums[run.r, run.shift + j] = total
        k.barrier()
        self.copy(run)


@kernel
def multiply_bands(k: Tracer, u: Array, v: Array, x: Array, w: Array, out: Array, *, shape: tuple[int, ...]) -> None:
    # out[o, (i, q), j] = sum_p A[q, p] sum_(c, s) u[p, o, (c, s)] v[p, c, (i, j + s)]
    s = Shape(*shape)
    products, results = k.scratch(f32, POINTS, s.block * s.tile, s.panel), k.scratch(f32, MADE, s.panel)
    tiles = Tiles(k, s.outputs, s.tile, s.tall, None)
    index, p0, first = k.program(0), k.program(1) * s.panel, k.program(2) * s.block
    last = k.minimum(first + s.block, tiles.count)
    program = Program(k, s, u, v, x, w, out, products, results, tiles, index, first, last, p0)
    for p in k.range(POINTS):
        program.multiply(p)
    k.barrier()
    for row in k.range(tiles.first_row(first), tiles.first_row(last)):
        program.finish(row)
