"""Products on AMX by panels: 32 columns of b as words of two k, which stay in a cache while all rows of a program pass.

A program fills its panels a part of the depth at a time and multiplies 32 rows at a time by them, with 2 x 2 tiles of f32 sums
over the part. Sums of several parts lie in scratch between. `multiply` serves packed weights (quantized/products/).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from camshaft.dtypes import boolean, f32, i32, i64, u32
from camshaft.emit.target import BF16_TILES
from camshaft.lang import Array, Tracer, Value
from camshaft.lang.verifier.verify import MAX_SCRATCH_NBYTES
from camshaft.ops import op as ops
from camshaft.ops.matmul.shapes import PAIR, WIDTH

# Rows and columns of four tiles of sums; k of a step, the depth of a tile, and its words of two.
SIDE, STEP = 32, 32
WORDS = STEP // PAIR
# The most rows of a program: each block of so many fills the panels again.
MOST_ROWS = 512
# Steps of a part of the depth, and panels of a program.
PARTS, PANELS = (8, 12, 16, 20, 24, 32, 48, 64), (1, 2, 3, 4, 6, 8)
# Steps of a panel up to which it stays in the first cache while the rows pass. A program of more than WHOLE steps has parts.
NEAR_STEPS, WHOLE = 20, 48
At: TypeAlias = tuple[Any, ...]


def without_tiles(target: ops.Target) -> str | None:
    """Returns why a target has no tiles of bf16, or None."""
    there = target.backend == "simd" and target.features >= BF16_TILES
    return None if there else "takes CPUs with AMX's tiles of bf16"


def values_for(steps: int, columns: int) -> dict[str, int]:
    """Returns the part and the panels for a depth: the whole depth and one panel, or if it is deep a part that stays in the first
    cache, and as many panels as make up for reading a again (2048 k: 948 GFLOP/s, 657 as a whole), for an even number of
    programs."""
    if steps <= WHOLE:
        return {"part": next(p for p in PARTS if p >= steps), "panels": 1}
    panels = -(-columns // SIDE)
    programs = -(-panels // PANELS[-1])
    each = -(-panels // (programs + programs % 2))
    return {"part": NEAR_STEPS, "panels": next(n for n in reversed(PANELS) if n <= each)}


def even_part(steps: int, part: int) -> int:
    """Returns the steps of each of the fewest parts of at most `part` steps."""
    return -(-steps // -(-steps // part))


def refusal_of(values: ops.Values, steps: int, rows: int, more: int = 0) -> str | None:
    """Returns why the panels of a program with so many rows, their sums and `more` bytes are no scratch; None if they are."""
    part, panels = even_part(steps, values["part"]), values["panels"]
    nbytes = more + 4 * SIDE * (panels * part * WORDS + (panels * rows if part < steps else SIDE))
    return f"{nbytes} bytes of scratch; at most {MAX_SCRATCH_NBYTES}" if nbytes > MAX_SCRATCH_NBYTES else None


def panel_words(k: Tracer, panels: int, steps: int) -> Array:
    """Returns scratch for the words of panels: those of a step are a tile of 16 columns, then one of the next 16, each in one
    piece: side by side in rows of 32 columns 2048 cubed takes 7 % longer."""
    return k.scratch(u32, panels, steps, SIDE // WIDTH * WORDS, WIDTH)


@dataclass(frozen=True)
class Panel:
    """Steps `begin` to `begin + depth` of 32 columns: their words lie in words[at.., first + step] (`panel_words`)."""

    k: Tracer
    words: Array
    at: At
    begin: Value
    depth: Value
    first: Value | int = 0

    def times(
        self, a: Array, place: Callable[[Value], At], sums: tuple[Array, At] | None = None, rows: int = SIDE
    ) -> Any:
        """Returns the product of 32 or 16 rows by the panel, added to `sums` if given. `place`: where the rows' words of a step
        are."""
        total = self.k.word_tile(rows, SIDE, f32, sums)
        passing = "a" if self.words.shape[-3] <= NEAR_STEPS else "ab"
        for step in self.k.range(self.depth):
            total.mma(a, place(self.begin + step), self.words, (*self.at, step, 0, 0), k=WORDS, passing=passing)
        return total


@dataclass(frozen=True)
class Block:
    """What a program computes: some panels of columns from panel `first` on, of n columns, and some rows from `start` on, below
    `limit`; a part of the depth has `part` of `steps` steps."""

    first: Value
    start: Value
    limit: Value
    n: int
    steps: int
    rows: int
    part: int
    panels: int


Fill: TypeAlias = Callable[[Panel, Value], None]
"""Fills a panel with the columns of panel number `Value`."""


def times_filled(
    k: Tracer, words: Array, steps: int, fill: Callable[[Panel], None], a: Array, place: Callable[[Value], At]
) -> Any:
    """Returns the product of 16 rows by a panel of `steps` steps, each as soon as it is filled, so that words stay in the first
    cache: 8 rows of Q4_1 take 0.08 ns per weight, 0.11 by a whole panel of 768 k (Emerald Rapids)."""
    total, ring = k.word_tile(WIDTH, SIDE, f32), min(2, words.shape[1])
    for step in k.range(steps):
        slot = step % ring
        fill(Panel(k, words, (k.const(0, i64),), step, k.const(1, i64), slot))
        k.barrier()
        total.mma(a, place(step), words, (0, slot, 0, 0), k=WORDS)
    return total


@dataclass(frozen=True)
class Product:
    """The arrays of a block's product. place(row, step): where 32 rows' words of a step are. `words`: the panels; `sums`: what
    earlier parts of the depth left, or a tile."""

    k: Tracer
    a: Array
    out: Array
    block: Block
    place: Callable[[Value, Value], At]
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

    def add_few(self, fill: Fill, p: Value) -> None:
        """Multiplies at most 16 rows by panel p as it is filled, and stores the result."""
        k, block = self.k, self.block
        number = block.first + p
        place = partial(self.place, block.start)
        total = times_filled(k, self.words, block.steps, lambda step: fill(step, number), self.a, place)
        total.store(self.sums, (0, 0, 0))
        k.barrier()
        _store_part(k, self.out, self.sums, (0, 0), (block.start, number * SIDE), (block.limit - block.start, block.n))
        k.barrier()

    def add(self, p: Value, i: Value, number: Value, rows: int = SIDE) -> None:
        """Multiplies the first `rows` of 32 rows by a panel, and stores the result after the last part: whole tiles of f32 at
        once, others through scratch."""
        k, block, is_last = self.k, self.block, number == self.parts - 1
        row, at = block.start + i * SIDE, (p, i * SIDE, 0) if self.parts > 1 else (0, 0, 0)
        to = row, (block.first + p) * SIDE
        with k.when(is_last):
            fetch_tile(k, self.out, to, rows)
        sums = (self.sums, at) if self.parts > 1 else None
        total = self.panel(p, number).times(self.a, partial(self.place, row), sums, rows)
        is_whole = (row + rows <= block.limit) & (to[1] + SIDE <= block.n)
        is_direct = is_last & is_whole if self.out.dtype == f32 else k.const(False, boolean)
        if self.out.dtype == f32:
            with k.when(is_direct):
                total.store(self.out, to)
        with k.when(k.select(is_direct, 0, 1) > 0):
            total.store(self.sums, at)
        with k.when(k.select(is_direct, 0, is_last.to(i32)) > 0):
            k.barrier()
            _store_part(k, self.out, self.sums, (at[0], at[1]), to, (k.minimum(block.limit - row, rows), block.n))
            k.barrier()


def multiply(k: Tracer, a: Array, out: Array, block: Block, fill: Fill, place: Callable[[Value, Value], At]) -> None:
    """Computes a block; the arguments are those of Product."""
    width = k.minimum(-(-block.n // SIDE) - block.first, block.panels)
    count, whole = tiles_of(k.minimum(block.limit - block.start, block.rows))
    words, several = panel_words(k, block.panels, block.part), block.steps > block.part
    sums = k.scratch(f32, block.panels, block.rows, SIDE) if several else k.scratch(f32, 1, SIDE, SIDE)
    product = Product(k, a, out, block, place, words, sums)
    with k.when(whole == 0):
        for p in k.range(width):
            product.add_few(fill, p)
    for number in k.range(k.select(whole == 0, k.const(0, i64), k.const(product.parts, i64))):
        k.barrier()
        for p in k.range(width):
            fill(product.panel(p, number), block.first + p)
            if several:
                _clear(k, sums, p, k.select(number == 0, count * SIDE, 0))
        k.barrier()
        for p in k.range(width):
            for i in k.range(whole):
                product.add(p, i, number)
            with k.when(whole < count):
                product.add(p, whole, number, WIDTH)


def tiles_of(rows: Value) -> tuple[Value, Value]:
    """Returns the tiles of 32 rows, and how many have more than 16; the last may have fewer, which take half of the time."""
    return (rows + (SIDE - 1)) // SIDE, (rows + (WIDTH - 1)) // SIDE


def _clear(k: Tracer, sums: Array, panel: Value, rows: Value) -> None:
    for i in k.range(rows):
        for half in (0, WIDTH):
            k.store_vector(sums, k.splat(0.0, WIDTH), panel, i, half)


def fetch_tile(k: Tracer, out: Array, to: tuple[Value, Value], rows: int = SIDE) -> None:
    """Prefetches the lines of a tile of the result while it is computed: 30 % of the time of 896 x 4864 (Emerald Rapids)."""
    for i in k.range(rows):
        for half in (0, WIDTH):
            k.prefetch(out, k.minimum(to[0] + i, out.shape[0] - 1), k.minimum(to[1] + half, out.shape[1] - 1))


def _store_part(k: Tracer, out: Array, sums: Array, at: At, to: tuple[Value, Value], limits: tuple[Value, int]) -> None:
    """Stores the first rows of a tile, and its columns below the limit."""
    (panel, first), (row, column), (rows, n) = at, to, limits
    for i in k.range(rows):
        for half in (0, WIDTH):
            with k.when(column + half < n):
                values = k.load_vector(sums, panel, first + i, half, width=WIDTH)
                k.store_vector(out, values, row + i, column + half, count=k.minimum(n - (column + half), WIDTH))
