"""The product of conv2d's `winograd`: transformed weights by the transformed image (winograd_transforms.py), and the result.

Elements of a window's row are columns of the transformed image side by side, in one of its phases, so nothing is rearranged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from camshaft.dtypes import f32
from camshaft.lang import Array, Number, Tracer, Value, kernel, tile_of
from camshaft.ops.matmul.shapes import WIDTH, Tiles, even_panel
from camshaft.ops.vision.conv.winograd_transforms import TRANSFORMS, Transform, combined


@dataclass(frozen=True)
class Shape:
    """Sizes of a convolution of one group. A band is the rows of the result that a transform makes; they have `pitch` columns, of
    which `out_width` are the result's. Windows begin `step` rows and `column_step` columns apart. A program computes one of
    `blocks` even blocks of the tiles of rows by one of `panels` even panels of all vectors of columns, `vectors` or one less;
    `part` channels at a time."""

    step: int
    column_step: int
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
    tiles: int
    blocks: int
    vectors: int
    all_vectors: int
    panels: int
    part: int

    @property
    def transform(self) -> Transform:
        """The matrices."""
        return TRANSFORMS[self.step]

    @property
    def most_rows(self) -> int:
        """The most rows of a program."""
        return -(-self.tiles // self.blocks) * self.tile


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
    """A program's arrays, its matrices (`index`), its tiles of rows, and its columns: `vectors` vectors from p0 on."""

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
    vectors: int

    def run(self) -> None:
        """Computes the products of all points, then the result."""
        k = self.k
        for p in k.range(self.s.transform.points):
            self.multiply(p)
        k.barrier()
        for row in k.range(self.tiles.first_row(self.first), self.tiles.first_row(self.last)):
            self.finish(row)

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
        sums = tile_of(k, height, self.vectors, WIDTH)
        row = self.tiles.first_row(t)
        weights_at = k.minimum(p, len(s.transform.g) - 1) * (s.groups * s.outputs) + self.outputs_before + row
        plane = (self.index * s.transform.points + p) * s.channels
        for c in k.range(start, stop):
            for column in range(s.columns):
                shift, phase = divmod(column * s.gap, s.column_step)
                line_at, at = (plane + c) * s.column_step + phase, self.p0 + shift
                seen = [k.load_vector(self.v, line_at, at + j * WIDTH, width=WIDTH) for j in range(self.vectors)]
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
        for j in range(self.vectors):
            found = [k.load_vector(self.products, p, below, j * WIDTH, width=WIDTH) for p in range(s.transform.points)]
            for r, factors in enumerate(s.transform.a):
                y = combined(k, factors, found)
                check = k.fma(y, 0.0, check)
                k.store_vector(self.results, y, r, j * WIDTH)
        self.each_run(row, self.copy)
        with k.when(k.vector_sum(check) != 0.0):
            self.each_run(row, partial(self.compute, row))

    def each_run(self, row: Value, do: Callable[[Run], None]) -> None:
        """Calls `do` with each part of a row of the result that is in the panel."""
        k, s = self.k, self.s
        stop = k.minimum(self.p0 + self.vectors * WIDTH, s.bands * s.pitch)
        for i in k.range(self.p0 // s.pitch, (stop - 1) // s.pitch + 1):
            before = i * s.pitch
            start, end = k.maximum(self.p0 - before, 0), k.minimum(stop - before, s.out_width)
            for r in range(s.transform.made):
                y = i * s.transform.made + r
                with k.when(y < s.out_height):
                    at = ((self.index * s.outputs + row) * s.out_height + y) * s.out_width
                    do(Run(r, y, at, start, end, before - self.p0))

    def copy(self, run: Run) -> None:
        """Stores a run: the last vector again with elements of the one before, or under a mask if the run is shorter."""
        k, last = self.k, run.end - WIDTH
        for j in k.range(run.start, last, WIDTH):
            self.copy_vector(run, j, None)
        with k.when(last >= run.start):
            self.copy_vector(run, last, None)
        with k.when(last < run.start):
            self.copy_vector(run, run.start, run.end - run.start)

    def copy_vector(self, run: Run, j: Value, count: Value | None) -> None:
        """Stores some columns of a run."""
        values = self.k.load_vector(self.results, run.r, run.shift + j, width=WIDTH, count=count)
        self.k.store_vector(self.out, values, run.at + j, count=count)

    def compute(self, row: Value, run: Run) -> None:
        """Stores the sums over the windows of x."""
        k, s, sums = self.k, self.s, self.results
        k.barrier()
        for j in k.lanes(run.start, run.end):
            sums[run.r, run.shift + j] = 0.0
        for c in k.range(s.channels):
            plane = (self.index * s.channels + c) * s.height
            weights_at = ((self.outputs_before + row) * s.channels + c) * (s.transform.taken * s.columns)
            for r in range(s.transform.taken):
                y = run.y * s.step + (r - s.top)
                near = k.minimum(k.maximum(y, 0), s.height - 1)
                factors = [self.w[weights_at + (r * s.columns + column)] for column in range(s.columns)]
                for j in k.lanes(run.start, run.end):
                    total = sums[run.r, run.shift + j]
                    for column, factor in enumerate(factors):
                        at = j * s.column_step + (column * s.gap - s.left)
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
    products = k.scratch(f32, s.transform.points, s.most_rows, s.vectors * WIDTH)
    results = k.scratch(f32, s.transform.made, s.vectors * WIDTH)
    tiles = Tiles(k, s.outputs, s.tile, s.tall, None)
    index, panel, block = k.program(0), k.program(1), k.program(2)
    first, last = ((block + n) * s.tiles // s.blocks for n in (0, 1))
    start, stop = even_panel(panel, s.panels, s.all_vectors)
    for vectors in (s.vectors, s.vectors - 1)[: 1 + (s.vectors * s.panels > s.all_vectors)]:
        with k.when(stop - start == vectors):
            Program(k, s, u, v, x, w, out, products, results, tiles, index, first, last, start * WIDTH, vectors).run()
