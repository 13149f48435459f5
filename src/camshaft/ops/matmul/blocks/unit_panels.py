"""Products on AMX by panels: 32 columns of b as words of two k, which stay in a cache while all rows of a program pass.

A program fills its panels a part of the depth at a time and multiplies 32 rows at a time by them, with 2 x 2 tiles of f32 sums
over the part. Sums of several parts lie in scratch between. `multiply` serves bf16 (here) and packed weights
(quantized/products/).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from camshaft.dtypes import boolean, f32, i32, i64, u32
from camshaft.emit.target import BF16_TILES
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.lang.verifier.verify import MAX_SCRATCH_NBYTES
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks.panels import paired_rows
from camshaft.ops.matmul.shapes import PAIR, WIDTH, Matrices

# Rows and columns of four tiles of sums; k of a step, the depth of a tile, and its words of two.
SIDE, STEP = 32, 32
WORDS = STEP // PAIR
# The most rows of a program: each block of so many fills the panels again.
MOST_ROWS = 512
# Steps of a part of the depth, and panels of a program.
PARTS, PANELS = (8, 12, 16, 24, 32, 48, 64), (1, 2, 3, 4, 6, 8)
At: TypeAlias = tuple[Any, ...]


def without_tiles(target: ops.Target) -> str | None:
    """Returns why a target has no tiles of bf16, or None."""
    there = target.backend == "simd" and target.features >= BF16_TILES
    return None if there else "takes CPUs with AMX's tiles of bf16"


def values_for(steps: int) -> dict[str, int]:
    """Returns the part and the panels for a depth: one part where a panel of the whole depth fits, else so few that the sums of
    several panels pay for reading a again."""
    deep = steps > PARTS[-1]
    return {"part": 24 if deep else next(p for p in PARTS if p >= steps), "panels": 4 if deep else 1}


def even_part(steps: int, part: int) -> int:
    """Returns the steps of each of the fewest parts of at most `part` steps."""
    return -(-steps // -(-steps // part))


def refusal_of(values: ops.Values, steps: int, rows: int) -> str | None:
    """Returns why the panels of a program with so many rows, and their sums, are no scratch; None if they are."""
    part, panels = even_part(steps, values["part"]), values["panels"]
    nbytes = 4 * SIDE * (panels * part * WORDS + (panels * rows if part < steps else SIDE))
    return f"{nbytes} bytes of scratch; at most {MAX_SCRATCH_NBYTES}" if nbytes > MAX_SCRATCH_NBYTES else None


@dataclass(frozen=True)
class Panel:
    """Steps `begin` to `begin + depth` of 32 columns: their words lie in words[at.., step]."""

    k: Tracer
    words: Array
    at: At
    begin: Value
    depth: Value

    def times(self, a: Array, place: Callable[[Value], At], sums: tuple[Array, At] | None = None) -> Any:
        """Returns the product of 32 rows by the panel, added to `sums` if given. `place`: where the rows' words of a step are."""
        total = self.k.word_tile(SIDE, SIDE, f32, sums)
        for step in self.k.range(self.depth):
            total.mma(a, place(self.begin + step), self.words, (*self.at, step, 0, 0), k=WORDS)
        return total


@dataclass(frozen=True)
class Block:
    """What a program computes: columns from panel `first` on of n, rows `start` to `limit` of a matrix whose first row is `base`
    in the result; sizes as in `multiply_panels`."""

    first: Value
    start: Value
    limit: Value
    base: Value | int
    n: int
    steps: int
    rows: int
    part: int
    panels: int


Fill: TypeAlias = Callable[[Panel, Value], None]
"""Fills a panel with the columns of panel number `Value`."""


@dataclass(frozen=True)
class Product:
    """The arrays of a block's product. place(row, step): where 32 rows' words of a step are. `last_start`: the last row at which
    32 rows of a start, None if a is padded. `words`: the panels; `sums`: what earlier parts of the depth left, or a tile."""

    k: Tracer
    a: Array
    out: Array
    block: Block
    place: Callable[[Value, Value], At]
    last_start: int | None
    words: Array
    sums: Array

    @property
    def parts(self) -> int:
        """Parts of the depth."""
        return -(-self.block.steps // self.block.part)

    def panel(self, p: Value, number: Value) -> Panel:
        """Returns panel p in part `number` of the depth."""
        begin = number * self.block.part
        return Panel(self.k, self.words, (p,), begin, self.k.minimum(self.block.steps - begin, self.block.part))

    def add(self, p: Value, i: Value, number: Value) -> None:
        """Multiplies 32 rows by a panel, and stores the result after the last part: whole tiles of f32 at once, others through
        scratch."""
        k, block, is_last = self.k, self.block, number == self.parts - 1
        row, at = block.start + i * SIDE, (p, i * SIDE, 0) if self.parts > 1 else (0, 0, 0)
        source = row if self.last_start is None else k.minimum(row, self.last_start)
        to = block.base + row, (block.first + p) * SIDE
        with k.when(is_last):
            fetch_tile(k, self.out, to)
        sums = (self.sums, at) if self.parts > 1 else None
        total = self.panel(p, number).times(self.a, partial(self.place, source), sums)
        is_whole = (row + SIDE <= block.limit) & (to[1] + SIDE <= block.n)
        is_direct = is_last & is_whole if self.out.dtype == f32 else k.const(False, boolean)
        if self.out.dtype == f32:
            with k.when(is_direct):
                total.store(self.out, to)
        with k.when(k.select(is_direct, 0, 1) > 0):
            total.store(self.sums, at)
        with k.when(k.select(is_direct, 0, is_last.to(i32)) > 0):
            k.barrier()
            _store_part(k, self.out, self.sums, (at[0], at[1] + (row - source)), to, (block.limit - row, block.n))
            k.barrier()


def multiply(
    k: Tracer,
    a: Array,
    out: Array,
    block: Block,
    fill: Fill,
    place: Callable[[Value, Value], At],
    last_start: int | None,
) -> None:
    """Computes a block; the arguments are those of Product."""
    width = k.minimum(-(-block.n // SIDE) - block.first, block.panels)
    count = (k.minimum(block.limit - block.start, block.rows) + (SIDE - 1)) // SIDE
    words, several = k.scratch(u32, block.panels, block.part, WORDS, SIDE), block.steps > block.part
    sums = k.scratch(f32, block.panels, block.rows, SIDE) if several else k.scratch(f32, 1, SIDE, SIDE)
    product = Product(k, a, out, block, place, last_start, words, sums)
    for number in k.range(product.parts):
        k.barrier()
        for p in k.range(width):
            fill(product.panel(p, number), block.first + p)
            if several:
                _clear(k, sums, p, k.select(number == 0, count * SIDE, 0))
        k.barrier()
        for p in k.range(width):
            for i in k.range(count):
                product.add(p, i, number)


def _clear(k: Tracer, sums: Array, panel: Value, rows: Value) -> None:
    for i in k.range(rows):
        for half in (0, WIDTH):
            k.store_vector(sums, k.splat(0.0, WIDTH), panel, i, half)


def fetch_tile(k: Tracer, out: Array, to: tuple[Value, Value]) -> None:
    """Prefetches the lines of a tile of the result while it is computed: 30 % of the time of 896 x 4864 (Emerald Rapids)."""
    for i in k.range(SIDE):
        for half in (0, WIDTH):
            k.prefetch(out, k.minimum(to[0] + i, out.shape[0] - 1), k.minimum(to[1] + half, out.shape[1] - 1))


def _store_part(k: Tracer, out: Array, sums: Array, at: At, to: tuple[Value, Value], limits: tuple[Value, int]) -> None:
    """Stores the first rows of a tile, and its columns below the limit."""
    (panel, first), (row, column), (rows, n) = at, to, limits
    for i in k.range(k.minimum(rows, SIDE)):
        for half in (0, WIDTH):
            with k.when(column + half < n):
                values = k.load_vector(sums, panel, first + i, half, width=WIDTH)
                k.store_vector(out, values, row + i, column + half, count=k.minimum(n - (column + half), WIDTH))


def _paired(k: Tracer, b: Array, m: Matrices, matrix: Any, panel: Panel, number: Value) -> None:
    """Fills a panel from pairs of rows of b [k, n]."""
    for step in k.range(panel.depth):
        for w in k.range(WORDS):
            row = matrix * (PAIR * m.depth) + ((panel.begin + step) * WORDS + w) * PAIR
            for half in (0, WIDTH):
                column, count = number * SIDE + half, None
                if m.columns % SIDE:
                    count = k.maximum(m.columns - column, 0)
                    column = k.minimum(column, m.columns - 1)
                k.store_vector(panel.words, paired_rows(k, b, row, column, count), *panel.at, step, w, half)


def _turned(k: Tracer, b: Array, m: Matrices, matrix: Any, panel: Panel, number: Value) -> None:
    """Fills a panel from the words of 32 rows of b [n, k]: all rows at one word, whose lines serve 16 words."""
    for step in k.range(panel.depth):
        for c in k.lanes(SIDE):
            row = k.minimum(number * SIDE + c, m.columns - 1) + matrix * m.columns
            for w in range(WORDS):
                panel.words[(*panel.at, step, w, c)] = k.gather(b, row, (panel.begin + step) * WORDS + w)


@kernel
def multiply_panels(
    k: Tracer, a: Array, b: Array, out: Array, *extent: Value, tokens: int, part: int, panels: int, **sizes: Any
) -> None:
    # out[i, j] = sum over words d of a[i, d] b[d, j]; b [k, n] in 16-bit elements, whose rows are paired here, or [n, k] in words
    m = Matrices(**sizes)
    index, start, steps = k.program(0), k.program(1) * tokens, m.depth // WORDS
    limit, base = extent[0] if extent else k.const(m.rows, i64), index * m.rows

    fill = partial(_turned if b.dtype == u32 else _paired, k, b, m, m.b(index))
    block = Block(k.program(2) * panels, start, limit, base, m.columns, steps, tokens, part, panels)
    first = m.a(index) * m.rows
    multiply(k, a, out, block, fill, lambda row, step: (first + row, step * WORDS), m.rows - SIDE)
