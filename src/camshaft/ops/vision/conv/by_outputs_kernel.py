"""The kernel of conv2d's `by_outputs`: a register tile of output positions by a panel of output channels.

The image has no padding: rows of a window outside it are multiplied as zeros, and tiles at the ends of a row of the result look
which columns of their windows are outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from camshaft.dtypes import f32
from camshaft.lang import Array, Number, Tracer, Value, Variable, kernel, tile_of
from camshaft.ops.matmul.shapes import WIDTH, Tiles
from camshaft.ops.vision.conv.kernels import Image

# Channels of x and rows of a panel that are prefetched ahead: without the former 1024 x 14^2 to 256 took 5 % longer, without the
# latter 512 x 7^2 to 2048 7 % (Emerald Rapids).
AHEAD = 8


@dataclass(frozen=True)
class Shape(Image):
    """Sizes of a convolution for the kernel. A row of the result has `tiles` tiles of places, of which `tall` have `tile`, the
    others one less. A program computes one of `blocks` even blocks of tiles and adds `part` channels at a time. Windows begin
    `top` rows above and `left` columns before the image."""

    groups: int
    outputs: int
    top: int
    left: int
    out_rows: int
    tile: int
    tiles: int
    tall: int
    blocks: int
    part: int
    vectors: int

    @property
    def panel(self) -> int:
        """Outputs of a tile."""
        return self.vectors * WIDTH

    @property
    def panels(self) -> int:
        """Panels of a group's outputs."""
        return -(-self.outputs // self.panel)

    @property
    def fetches(self) -> bool:
        """Whether there are instructions to spare for prefetching: with 12 sums of 8 lanes it took 5 % longer."""
        return self.vectors > 1

    @property
    def lead(self) -> int:
        """Zeros before the copy of a line, whose vectors do not straddle cache lines."""
        return -(-self.left // WIDTH) * WIDTH

    def reach_of(self, places: int) -> int:
        """Columns of the image from the first to the last of some windows."""
        return (places - 1) * self.column_step + (self.columns - 1) * self.column_gap + 1

    @property
    def reaches_out(self) -> bool:
        """Whether windows reach beyond the ends of the image's rows."""
        return self.left > 0 or self.reach_of(self.out_columns) - self.left > self.width

    @property
    def rows_inside(self) -> int:
        """Rows of the result whose windows end in the image."""
        reach = (self.rows - 1) * self.row_gap + 1
        return min((self.height + self.top - reach) // self.row_step + 1, self.out_rows)


@dataclass(frozen=True)
class Place:
    """`count` places of a row of the result from place `first` on, which is a number at the ends of a row."""

    row: Value
    first: Number
    count: int


@dataclass(frozen=True)
class Program:
    """A program's arrays, its image and group (`index`), and its panel of outputs."""

    k: Tracer
    s: Shape
    weights: Array
    x: Array
    out: Array
    sums: Array
    line: Array
    index: Value
    panel: Value

    def run(self, t: Value) -> None:
        """Computes tile t of an image's rows. Tiles at the ends of a row are others where windows reach beyond the image."""
        k, s = self.k, self.s
        tiles = Tiles(k, s.out_columns, s.tile, s.tall, None)
        row, at = t // s.tiles, t % s.tiles
        last = s.tile if s.tall == s.tiles else s.tile - 1
        ends = {} if not s.reaches_out else {0: (0, s.tile), s.tiles - 1: (s.out_columns - last, last)}
        for number, (place, count) in ends.items():
            with k.when(at == number):
                self.tile(Place(row, place, count))
        for count, low, high in ((s.tile, 0, s.tall), (s.tile - 1, s.tall, s.tiles)):
            low, high = (max(low, 1), min(high, s.tiles - 1)) if ends else (low, high)
            if low < high:
                with k.when((at >= low) & (at < high)):
                    self.tile(Place(row, tiles.first_row(at), count))

    def tile(self, at: Place) -> None:
        """The panel's outputs of some places."""
        k, s = self.k, self.s
        self.part(at, 0, min(s.part, s.channels))
        if s.channels > s.part:
            for c in k.range(s.part, s.channels, s.part):
                self.part(at, c, k.minimum(c + s.part, s.channels))
        output = self.panel * s.panel
        k.barrier()
        for o in k.range(k.minimum(s.outputs - output, s.panel)):
            place = ((self.index * s.outputs + output + o) * s.out_rows + at.row) * s.out_columns + at.first
            for i in k.lanes(at.count):
                self.out[place + i] = k.gather(self.sums, i, o)
        k.barrier()  # before the next places' sums

    def part(self, at: Place, start: Number, stop: Number) -> None:
        """The sums over some channels, added to those of the channels before."""
        k, s = self.k, self.s
        sums = tile_of(k, at.count, s.vectors, WIDTH)
        above = at.row * s.row_step - s.top
        for c in k.range(start, stop):
            later = (k.minimum(c + AHEAD, s.channels - 1) - c) * (s.height * s.width)

            def add(r: Value, c: Value = c, later: Value = later) -> None:
                line = (self.index * s.channels + c) * s.height + above + r * s.row_gap
                if s.fetches:
                    self.fetch(at, line * s.width + later)
                self.add(sums, (c * s.rows + r) * s.columns, self.elements(at, line))

            if s.top == 0 and s.rows_inside == s.out_rows:
                for r in k.range(s.rows):
                    add(r)
                continue
            first, last = (self.rows_before(above, edge) for edge in (0, s.height))
            for r in k.range(first, last):
                add(r)
            for begin, end in ((0, first), (last, s.rows)):
                for r in k.range(begin, end):
                    self.add(sums, (c * s.rows + r) * s.columns, lambda i, column: 0.0)
        for i, line in enumerate(sums):
            for j, total in enumerate(line):
                value = total.value
                if not isinstance(start, int):
                    value = k.load_vector(self.sums, i, j * WIDTH, width=WIDTH) + value
                k.store_vector(self.sums, value, i, j * WIDTH)

    def rows_before(self, above: Value, edge: int) -> Value:
        """The rows of windows that begin at row `above` of the image which are before row `edge`."""
        k, s = self.k, self.s
        return k.minimum(k.maximum(edge - above + (s.row_gap - 1), 0) // s.row_gap, s.rows)

    def add(self, sums: list[list[Variable]], d: Value, element: Callable[[int, Value], Number]) -> None:
        """Adds products with a row of windows, whose weights begin at row d of the panel."""
        k, s = self.k, self.s
        panel = self.index % s.groups * s.panels + self.panel
        # not unrolled: elements that two columns share would take registers from the sums
        for column in k.range(s.columns):
            weights = [k.load_vector(self.weights, panel, d + column, j * WIDTH, width=WIDTH) for j in range(s.vectors)]
            if s.fetches:
                later = k.minimum(d + column + AHEAD, s.channels * s.rows * s.columns - 1)
                for j in range(s.vectors):
                    k.prefetch(self.weights, panel, later, j * WIDTH)
            for i, line in enumerate(sums):
                x = k.splat(element(i, column), WIDTH)
                for total, w in zip(line, weights, strict=True):
                    total.set(k.fma(x, w, total.value))

    def elements(self, at: Place, line: Value) -> Callable[[int, Value], Number]:
        """Returns what loads an element of the windows of a tile in a line of x: by place in the tile, and column of the window.

        Windows that reach beyond the ends of the line are loaded from a copy between zeros. With selects instead 256 x 14^2 by
        3^2 took 1.1 times as long.
        """
        k, s = self.k, self.s
        first, reach = at.first * s.column_step - s.left, s.reach_of(at.count)
        if not isinstance(first, int) or 0 <= first <= s.width - reach:
            begin = line * s.width + first
            return lambda i, column: self.x[begin + column * s.column_gap + i * s.column_step]
        start = max(first, 0)
        k.barrier()
        for place in range(0, first + reach - start, WIDTH):
            count = min(s.width - start - place, WIDTH)
            found = k.splat(0.0, WIDTH)
            if count > 0:
                found = k.load_vector(self.x, line * s.width + start + place, width=WIDTH, count=count)
            k.store_vector(self.line, found, s.lead + place)
        k.barrier()
        return lambda i, column: self.line[column * s.column_gap + (i * s.column_step + s.lead + first - start)]

    def fetch(self, at: Place, line: Value) -> None:
        """Prefetches the part of a line of x that the windows of a tile cover."""
        k, s = self.k, self.s
        first = at.first * s.column_step - s.left
        reach = s.reach_of(at.count)
        for place in (*range(0, reach - 1, WIDTH), reach - 1):
            found = first + place
            k.prefetch(self.x, line + (min(max(found, 0), s.width - 1) if isinstance(found, int) else found))


@kernel
def outputs_by_places(k: Tracer, weights: Array, x: Array, out: Array, *, shape: tuple[int, ...]) -> None:
    # out[n, o, i, j] = sum_(c, r, s) x[n, c, i step + r gap, j step + s gap] weights[o, c, r, s], with o along vectors
    s = Shape(*shape)
    sums, line = k.scratch(f32, s.tile, s.panel), k.scratch(f32, s.lead + s.reach_of(s.tile) + WIDTH)
    program = Program(k, s, weights, x, out, sums, line, k.program(0), k.program(2))
    for place in range(0, s.lead, WIDTH):
        k.store_vector(line, k.splat(0.0, WIDTH), place)
    first, last = ((k.program(1) + n) * (s.out_rows * s.tiles) // s.blocks for n in (0, 1))
    for t in k.range(first, last):
        program.run(t)
