"""A tile of rows and the steps of online softmax on it, register block by register block.

There are two passes over a tile of keys, block by block: for scores and weights, where the processor overlaps a block's powers
with the next one's products, then for the values. One pass alternates between K and V, which together fill the L1 cache: for
heads of 128 it was 3 to 5 % slower (Zen 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from camshaft.dtypes import f32, i32, i64
from camshaft.lang import Array, Number, Tracer, Value, add_products, first_elements, greater, power_of_two
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import LOWEST, WIDTH, Heads, Keys, inside

# A row's powers are of score - peak. The peak is set to the largest score of the first keys, and again when a score exceeds it
# by more than this: powers of 2^30 are as exact as those of 1, and sums are rarely rescaled.
SLACK = 30.0
# If a row's peak changes by more, its scores are recomputed: relative to so distant a peak, they lose low bits.
FAR = 128.0
BLOCK_ROWS = 6


def divisors(n: int) -> list[int]:
    """Returns the numbers that divide n, in order."""
    return [i for i in range(1, n + 1) if n % i == 0]


@dataclass(frozen=True)
class Shape(Heads):
    """The sizes of one program: tokens and keys of a tile; vectors of a register block, which has BLOCK_ROWS rows; 1 if a
    tile's keys and values are unpacked to f32 first. `kv_heads` counts a head of the cache `parts` times, where the q heads that
    share one do not fit together."""

    tile_tokens: int
    tile_keys: int
    block_vectors: int
    unpacked: int
    parts: int = 1

    @property
    def rows(self) -> int:
        """Rows of a tile, rounded up to full register blocks."""
        return self.padded_rows(self.tile_tokens * self.group)

    def padded_rows(self, rows: int) -> int:
        """Rows in register blocks."""
        return -(-rows // BLOCK_ROWS) * BLOCK_ROWS

    @property
    def scratch_nbytes(self) -> int:
        """The bytes of scratch of a program."""
        columns = self.padded
        rows = self.rows * (2 * columns + self.tile_keys + WIDTH + 2)
        return 4 * (rows + self.unpacked * 2 * self.tile_keys * columns)


class Tile:
    """The workgroup memory of one program and the steps on it. A row is one q head of one token."""

    def __init__(self, k: Tracer, shape: Shape) -> None:
        self.k, self.shape = k, shape
        self.query, self.total = (k.scratch(f32, shape.rows, shape.padded) for _ in range(2))
        self.scores = k.scratch(f32, shape.rows, shape.tile_keys)
        self.weights = k.scratch(f32, shape.rows, WIDTH)
        self.peaks = k.scratch(f32, shape.rows)
        self.lasts = k.scratch(i32, shape.rows)
        if shape.unpacked:
            self.keys = k.scratch(f32, shape.tile_keys // BLOCK_TOKENS, shape.head_dim, BLOCK_TOKENS)
            self.values = k.scratch(f32, shape.tile_keys, shape.padded)

    def start(
        self, q: Array, positions: Array, first: Value, n_rows: Value, whole: Value, kv_head: Value, scale: float
    ) -> None:
        """Loads the rows of q, scaled for powers of two, and clears the sums. Rows past the last repeat it."""
        k, group, head_dim = self.k, self.shape.group, self.shape.head_dim
        for row in k.range(whole):
            source = k.minimum(row, n_rows - 1)
            token, column = first + source // group, (kv_head * group + source % group) * head_dim
            self.shape.load_query(k, q, (token, column), self.query, row, scale)
            for d in self.shape.columns:
                k.store_vector(self.total, k.splat(0.0, WIDTH), row, d)
            k.store_vector(self.weights, k.splat(0.0, WIDTH), row, 0)
            self.peaks[row] = 0.0
            self.lasts[row] = positions[token]
            for start in range(0, self.shape.tile_keys, WIDTH):
                k.store_vector(self.scores, k.splat(0.0, WIDTH), row, start)

    def reach(self, row: Value) -> tuple[Value, Value]:
        """Returns the smallest and the largest position of a block's rows."""
        k = self.k
        lasts = [self.lasts[row + r] for r in range(BLOCK_ROWS)]
        least, greatest = lasts[0], lasts[0]
        for last in lasts[1:]:
            least, greatest = k.minimum(least, last), k.maximum(greatest, last)
        return least.to(i64), greatest.to(i64)

    def unpack(self, keys: Keys) -> None:
        """Unpacks keys and values to f32 once for all register blocks: converting 8-bit codes in each took 15 % of the time
        (Zen 4)."""
        k, columns = self.k, self.shape.columns
        for index in k.range(keys.n_blocks):
            block, start = keys.block(index), index * BLOCK_TOKENS
            for part in keys.parts():
                scales: Sequence[Number] = keys.key_scales([block], 0, part) or [1.0]
                for _, d, vectors in keys.components([block], 0, part, 1):
                    k.store_vector(self.keys, vectors[0] * scales[0], index, d, 0)
            for j in k.range(keys.in_block(index)):
                for d in columns:
                    k.store_vector(self.values, keys.values(block, 0, j, d), start + j, d)

    def score(self, row: Value, keys: Keys) -> None:
        """Computes scores = query K - peak for a block's rows, with as many key blocks at a time as fit the registers."""
        k, step = self.k, self.shape.block_vectors
        done: Value = k.const(0, i64)
        while step:
            whole = done + (keys.n_blocks - done) // step * step
            for index in k.range(done, whole, step):
                self._score_blocks(row, keys, [index + i for i in range(step)])
            done, step = whole, step // 2

    def _score_blocks(self, row: Value, keys: Keys, indexes: Sequence[Value], n_rows: int = BLOCK_ROWS) -> None:
        k, rows = self.k, range(n_rows)
        starts = [k.splat(-self.peaks[row + r], WIDTH) for r in rows]
        sums = [[k.var(start) for _ in indexes] for start in starts]
        for d, right in self._components(keys, indexes):
            add_products(k, sums, [self.query[row + r, d] for r in rows], right)
        for r, line in zip(rows, sums, strict=True):
            for index, total in zip(indexes, line, strict=True):
                k.store_vector(self.scores, total.value, row + r, index * WIDTH)

    def _components(self, keys: Keys, indexes: Sequence[Value]) -> Iterator[tuple[Number, list[Value]]]:
        """Yields each component of a head: its index, and its value for the 16 keys of each block."""
        if self.shape.unpacked:
            for row in self.k.range(self.shape.head_dim):
                yield row, [self.k.load_vector(self.keys, index, row, 0, width=WIDTH) for index in indexes]
            return
        blocks = [keys.block(index) for index in indexes]
        for part in keys.parts():
            scales = keys.key_scales(blocks, 0, part)
            for _, d, vectors in keys.components(blocks, 0, part, 1):
                yield d, vectors if scales is None else [v * s for v, s in zip(vectors, scales, strict=True)]

    def mask(self, row: Value, base: Value, n_rows: int = BLOCK_ROWS) -> None:
        """Masks scores of keys after a row's position with the lowest number."""
        k = self.k
        for r in k.range(n_rows):
            seen = self.lasts[row + r].to(i64) + 1 - base
            for start in range(0, self.shape.tile_keys, WIDTH):
                score = k.load_vector(self.scores, row + r, start, width=WIDTH)
                score = k.select(first_elements(k, seen - start, WIDTH), score, LOWEST)
                k.store_vector(self.scores, score, row + r, start)

    def move_peaks(self, row: Value, keys: Keys) -> None:
        """Raises the peak of each row with a score above SLACK by that score (at the first keys, of all rows), and adjusts
        scores and sums."""
        k, is_first = self.k, keys.base == 0
        over = k.splat(LOWEST, WIDTH)  # a row of NaN changes nothing
        for member in range(BLOCK_ROWS):
            over = greater(k, self._greatest(row + member), over)
        with k.when(is_first | (k.vector_max(over) > SLACK)):
            for r in k.range(BLOCK_ROWS):
                top = k.vector_max(self._greatest(row + r))
                step = k.select(is_first, greater(k, top, k.const(LOWEST, f32)), k.select(top > SLACK, top, 0.0))
                self._move_peak(row + r, step)
                with k.when((keys.base > 0) & (step > FAR)):
                    self._score_again(row + r, keys)

    def _score_again(self, row: Value, keys: Keys) -> None:
        """Recomputes the scores of one row relative to its current peak. Raises the peak to the largest score if that is
        above SLACK."""
        k = self.k
        for index in k.range(keys.n_blocks):
            self._score_blocks(row, keys, [index], 1)
        self.mask(row, keys.base, 1)
        top = k.vector_max(self._greatest(row))
        self._move_peak(row, k.select(top > SLACK, top, 0.0))

    def _move_peak(self, row: Value, step: Value) -> None:
        k = self.k
        self.peaks[row] = self.peaks[row] + step
        for start in range(0, self.shape.tile_keys, WIDTH):
            k.store_vector(self.scores, k.load_vector(self.scores, row, start, width=WIDTH) - step, row, start)
        self._shrink(row, power_of_two(k, k.splat(k.select(step > 0.0, -step, 0.0), WIDTH)))

    def _shrink(self, row: Value, factor: Value) -> None:
        """Multiplies a row's sums by a factor."""
        k = self.k
        k.store_vector(self.weights, k.load_vector(self.weights, row, 0, width=WIDTH) * factor, row, 0)
        for d in self.shape.columns:
            k.store_vector(self.total, k.load_vector(self.total, row, d, width=WIDTH) * factor, row, d)

    def _greatest(self, row: Number) -> Value:
        """Returns the largest scores of a row in each of 16 lanes."""
        k = self.k
        found = k.load_vector(self.scores, row, 0, width=WIDTH)
        for start in range(WIDTH, self.shape.tile_keys, WIDTH):
            found = greater(k, k.load_vector(self.scores, row, start, width=WIDTH), found)
        return found

    def weigh(self, row: Value) -> None:
        """Replaces scores by their powers of 2 and adds these to the weights."""
        k = self.k
        for r in k.range(BLOCK_ROWS):
            weight = k.load_vector(self.weights, row + r, 0, width=WIDTH)
            for start in range(0, self.shape.tile_keys, WIDTH):
                power = power_of_two(k, k.load_vector(self.scores, row + r, start, width=WIDTH))
                k.store_vector(self.scores, power, row + r, start)
                weight = weight + power
            k.store_vector(self.weights, weight, row + r, 0)

    def mix(self, row: Value, keys: Keys) -> None:
        """total += scores V for a block's rows, as many columns at a time as fit registers."""
        k, rows = self.k, range(BLOCK_ROWS)
        for columns in self.shape.even_steps(self.shape.block_vectors):
            sums = [[k.var(k.load_vector(self.total, row + r, d, width=WIDTH)) for d in columns] for r in rows]
            for index in k.range(keys.n_blocks):
                block, start = keys.block(index), index * BLOCK_TOKENS
                for j in k.range(keys.in_block(index)):
                    right = self._values(keys, block, start, j, columns)
                    add_products(k, sums, [self.scores[row + r, start + j] for r in rows], right)
            for r, line in zip(rows, sums, strict=True):
                for d, total in zip(columns, line, strict=True):
                    k.store_vector(self.total, total.value, row + r, d)

    def _values(self, keys: Keys, block: Value, start: Value, j: Value, columns: list[int]) -> list[Value]:
        """Returns columns of the value of key j of a block, which is key start + j of the tile."""
        if self.shape.unpacked:
            return [self.k.load_vector(self.values, start + j, d, width=WIDTH) for d in columns]
        return [keys.values(block, 0, j, d) for d in columns]

    def finish(self, out: Array, first: Value, n_rows: Value, kv_head: Value) -> None:
        """out = total / sum of weights."""
        k, group, head_dim = self.k, self.shape.group, self.shape.head_dim
        for row in k.range(n_rows):
            inverse = 1.0 / k.vector_sum(k.load_vector(self.weights, row, 0, width=WIDTH))
            column = (kv_head * group + row % group) * head_dim
            for d in self.shape.columns:
                x = k.load_vector(self.total, row, d, width=WIDTH) * inverse
                k.store_vector(out, x, first + row // group, column + d, count=inside(head_dim, d))
