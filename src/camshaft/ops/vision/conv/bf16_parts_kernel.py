"""The kernels of conv2d's `bf16_parts`: products of f32 on AMX as six products of bf16, as precise as f32's.

An f32 is the sum of three bf16: 8 bits of its significand each. Of the nine products of the parts of two numbers the six largest
are added, in f32; the others are below 2^-22 of the product. The matrix unit takes parts below 2^-126 as zeros and makes NaN of
infinity, so a panel of x or a tile of weights whose greatest element is not within BOUNDS is multiplied in f32 instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import f32, i64, u32
from camshaft.lang import Array, Tracer, Value, Variable, kernel, tile_of
from camshaft.ops.matmul.blocks.unit_panels import SIDE, STEP, WORDS
from camshaft.ops.matmul.shapes import PAIR, WIDTH

PARTS = 3
# Parts of the weights and of x that are multiplied. Products with the same part of the weights share its tiles: loaded for each,
# 256 x 56^2 to 64 took a tenth longer.
PRODUCTS = ((2, 0), (1, 1), (1, 0), (0, 2), (0, 1), (0, 0))
HIGH = 0xFFFF0000
# Twice the bits of 2^-60 and of 2^60: the sign is shifted out.
BOUNDS = (127 - 60) << 24, (127 + 60) << 24
# Vectors of a panel in a step of the depth: two rows by 16 columns are one.
PIECES = WORDS * SIDE // WIDTH


@dataclass(frozen=True)
class Shape:
    """Sizes of a product of weights [outputs, depth] and x [depth, columns] for each image and group. A program computes
    `panels` panels of 32 columns by `tiles` tiles of 32 outputs."""

    groups: int
    outputs: int
    depth: int
    columns: int
    panels: int
    tiles: int

    @property
    def steps(self) -> int:
        """Steps of the depth."""
        return -(-self.depth // STEP)

    @property
    def all_panels(self) -> int:
        """Panels of a matrix of x."""
        return -(-self.columns // SIDE)

    @property
    def all_tiles(self) -> int:
        """Tiles of a group's outputs."""
        return -(-self.outputs // SIDE)


def parts_of(k: Tracer, x: Value) -> list[Value]:
    """Returns the bits of three bf16 in the high halves of words, whose sum is x."""
    found = []
    for _ in range(PARTS - 1):
        high = k.bitcast(x, u32) & HIGH
        x = x - k.bitcast(high, f32)
        found.append(high)
    return [*found, k.bitcast(x, u32)]


def in_bounds(k: Tracer, bits: Value) -> Value:
    """Whether the matrix unit may take elements of which the greatest has these bits, doubled."""
    low, high = BOUNDS
    return (bits == 0) | ((bits >= low) & (bits < high))


@kernel
def pack_weights(k: Tracer, w: Array, words: Array, greatest: Array, *, outputs: int, depth: int) -> None:
    # words[tile, step, p, i, j] = part p of weights (i, 2 j) and (i, 2 j + 1) of the tile's step; zeros past the last.
    # Each part is rounded to the nearest, halves up
    tile, tiles = k.program(0), -(-outputs // SIDE)
    group, first = tile // tiles, tile % tiles * SIDE
    most = k.accumulator("max", u32)
    for i in k.range(SIDE):
        output = k.minimum(first + i, outputs - 1)
        row = (group * outputs + output) * depth
        for step in k.range(-(-depth // STEP)):
            for j in k.lanes(WORDS):
                low: list[Value] = []
                for half in range(PAIR):
                    d = step * STEP + j * PAIR + half
                    counts = (d < depth) & (first + i < outputs)
                    rest = k.select(counts, k.gather(w, row + k.minimum(d, depth - 1)), 0.0)
                    bits = k.bitcast(rest, u32)
                    most.combine(bits + bits)
                    for p in range(PARTS):
                        high = (k.bitcast(rest, u32) + 0x8000) & HIGH
                        rest = rest - k.bitcast(high, f32)
                        if half:
                            words[tile, step, p, i, j] = high | low[p]
                        else:
                            low.append(high >> 16)
    greatest[tile] = k.lanes_max(most)


@dataclass(frozen=True)
class Program:
    """A program's arrays, its image and group (`index`), its first column and its tiles. `panels` has the words of two panels."""

    k: Tracer
    s: Shape
    words: Array
    greatest: Array
    x: Array
    w: Array
    out: Array
    panels: Array
    result: Array
    index: Value
    first: Value
    last: Value

    @property
    def x_row(self) -> Value:
        """The first row of x."""
        return self.index * self.s.depth

    def run(self, p: Value) -> None:
        """Computes all panels from panel p on, each while the next one is filled."""
        k, s = self.k, self.s
        stop = k.minimum(p + s.panels, s.all_panels)
        most = k.var(k.splat(0, WIDTH, u32), u32)
        for step in k.range(s.steps):
            for piece in k.range(PIECES):
                self.fill(p * SIDE, p % 2, step, piece, most)
        current = k.var(k.vector_max(most.value), u32)
        for panel in k.range(p, stop):
            k.barrier()
            most.set(k.splat(0, WIDTH, u32))
            for t in k.range(self.first, self.last):
                self.tile(t, panel, current.value, most)
            current.set(k.vector_max(most.value))

    def fill(self, column: Value, slot: Value, step: Value, piece: Value, most: Variable) -> None:
        """Fills a piece of a step of the panel that begins at a column, and finds the greatest bits."""
        k = self.k
        row, at = step * STEP + piece // PAIR * PAIR, column + piece % PAIR * WIDTH
        found = [parts_of(k, self.load(row + half, at, most)) for half in range(PAIR)]
        for p, (low, high) in enumerate(zip(*found, strict=True)):
            k.store_vector(self.panels, (high & HIGH) | (low >> 16), slot, step, p, piece // PAIR, piece % PAIR * WIDTH)

    def load(self, row: Value, column: Value, most: Variable) -> Value:
        """Returns a vector of x, zeros outside, and counts it in the greatest bits."""
        k, s, count = self.k, self.s, None
        if s.columns % SIDE:
            count, column = k.maximum(s.columns - column, 0), k.minimum(column, s.columns - 1)
        if s.depth % STEP:
            whole = k.const(WIDTH, i64) if count is None else count
            count, row = k.select(row < s.depth, whole, 0), k.minimum(row, s.depth - 1)
        values = k.load_vector(self.x, (self.x_row + row) * s.columns + column, width=WIDTH, count=count)
        bits = k.bitcast(values, u32)
        most.set(k.maximum(most.value, bits + bits))
        return values

    def tile(self, t: Value, panel: Value, current: Value, most: Variable) -> None:
        """Computes a tile of outputs by a panel, while a share of the next panel is filled."""
        k, s = self.k, self.s
        each = -(-PIECES // s.tiles)
        column, tile = panel * SIDE, self.index % s.groups * s.all_tiles + t
        slot, following = panel % 2, k.minimum(panel + 1, s.all_panels - 1) * SIDE
        total = k.word_tile(SIDE, SIDE, f32)
        for step in k.range(s.steps):
            self.fetch(t, column, step)
            for n, (of_w, of_x) in enumerate(PRODUCTS):
                total.mma(
                    self.words, (tile, step, of_w, 0, 0), self.panels, (slot, step, of_x, 0, 0), k=WORDS, passing="a"
                )
                for share in range(each * n // len(PRODUCTS), each * (n + 1) // len(PRODUCTS)):
                    piece = k.minimum((t - self.first) * each + share, PIECES - 1)
                    self.fill(following, 1 - slot, step, piece, most)
        self.store(total, t, column)
        most_weight = self.greatest[tile]
        with k.when(k.select(in_bounds(k, current) & in_bounds(k, most_weight), 0, 1) > 0):
            self.multiply(t, column)

    def fetch(self, t: Value, column: Value, step: Value) -> None:
        """Prefetches some lines of the tile's result."""
        k, s = self.k, self.s
        for n in range(each := -(-SIDE // s.steps)):
            row = k.minimum(t * SIDE + step * each + n, s.outputs - 1)
            for half in (0, WIDTH):
                k.prefetch(self.out, self.out_row + row, k.minimum(column + half, s.columns - 1))

    @property
    def out_row(self) -> Value:
        """The first row of the result."""
        return self.index * self.s.outputs

    def store(self, total: Any, t: Value, column: Value) -> None:
        """Stores a tile: a whole one at once, others by way of scratch."""
        k, s = self.k, self.s
        is_whole = (t * SIDE + SIDE <= s.outputs) & (column + SIDE <= s.columns)
        with k.when(is_whole):
            total.store(self.out, (self.out_row + t * SIDE, column))
        if s.outputs % SIDE == 0 and s.columns % SIDE == 0:
            return
        with k.when(k.select(is_whole, 0, 1) > 0):
            total.store(self.result, (0, 0))
            k.barrier()
            for i in k.range(k.minimum(s.outputs - t * SIDE, SIDE)):
                for half in (0, WIDTH):
                    self.put(k.load_vector(self.result, i, half, width=WIDTH), t * SIDE + i, column + half)
            k.barrier()

    def put(self, values: Value, output: Value, column: Value) -> None:
        """Stores a vector of the result, as far as there are columns."""
        k, s = self.k, self.s
        count = k.maximum(s.columns - column, 0) if s.columns % SIDE else None
        k.store_vector(self.out, values, self.out_row + output, k.minimum(column, s.columns - 1), count=count)

    def multiply(self, t: Value, column: Value) -> None:
        """Computes a tile in f32 from x and the weights."""
        k, s = self.k, self.s
        unused = k.var(k.splat(0, WIDTH, u32), u32)
        for i in k.range(k.minimum(s.outputs - t * SIDE, SIDE)):
            output = t * SIDE + i
            (sums,) = tile_of(k, 1, PAIR, WIDTH)
            for d in k.range(s.depth):
                weight = k.splat(self.w[(self.index % s.groups * s.outputs + output) * s.depth + d], WIDTH)
                for half, total in enumerate(sums):
                    total.set(k.fma(weight, self.load(d, column + half * WIDTH, unused), total.value))
            for half, total in enumerate(sums):
                self.put(total.value, output, column + half * WIDTH)


@kernel
def multiply_parts(
    k: Tracer, words: Array, greatest: Array, x: Array, w: Array, out: Array, *, shape: tuple[int, ...]
) -> None:
    # out[n, o, j] = sum_c w[o, c] x[n, c, j], as six products of the parts of w and x
    s = Shape(*shape)
    panels, result = k.scratch(u32, 2, s.steps, PARTS, WORDS, SIDE), k.scratch(f32, SIDE, SIDE)
    first = k.program(2) * s.tiles
    last = k.minimum(first + s.tiles, s.all_tiles)
    Program(k, s, words, greatest, x, w, out, panels, result, k.program(0), first, last).run(k.program(1) * s.panels)
