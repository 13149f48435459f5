"""A tile of rows and the steps of online softmax on it, in AMX's tiles of bf16 (unit_tiles.py).

A word of a tile has two bf16: of columns d and d + 16 of a head in q K, of keys j and j + 16 in p V, so that words come from
two vectors as they are loaded, and nothing is transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from camshaft.dtypes import f32, i32, i64, u32
from camshaft.lang import Array, Number, Tracer, Value, first_elements, greater, power_of_two
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import LOG2_E, LOWEST, WIDTH, Heads, Keys, inside
from camshaft.ops.attention.tiled_steps import SLACK
from camshaft.ops.kernels.bits import coarse_power, pair, rest
from camshaft.ops.matmul.blocks.unit_panels import SIDE, WORDS


@dataclass(frozen=True)
class Shape(Heads):
    """The sizes of one program: tokens of a tile, and keys that are unpacked together."""

    tile_tokens: int
    tile_keys: int

    @property
    def blocks(self) -> int:
        """Blocks of 32 rows."""
        return -(-self.tile_tokens * self.group // SIDE)

    @property
    def steps(self) -> int:
        """Steps of 32 columns of a head."""
        return -(-self.head_dim // SIDE)

    @property
    def groups(self) -> int:
        """Groups of 32 keys."""
        return self.tile_keys // SIDE

    @property
    def scratch_nbytes(self) -> int:
        """The bytes of scratch of a program: of q, K and V, of the sums, and of scores and weights of 32 rows."""
        words, square = 4 * SIDE * WORDS, 4 * SIDE * SIDE
        per_block = self.steps * (2 * words + square) + SIDE * (4 * WIDTH + 8)
        return self.blocks * per_block + self.groups * (3 * self.steps * words + 4 * (SIDE + 1) * SIDE + words)


class UnitTile:
    """The scratch of one program and the steps on it. A row is one q head of one token."""

    def __init__(self, k: Tracer, shape: Shape) -> None:
        self.k, self.shape = k, shape
        rows, steps = shape.blocks * SIDE, shape.steps
        self.query = [k.scratch(u32, shape.blocks, steps, SIDE, WORDS) for _ in range(2)]
        self.keys = [k.scratch(u32, shape.groups, steps, WORDS, SIDE) for _ in range(2)]
        self.values = k.scratch(u32, shape.groups, steps, WORDS, SIDE)
        self.scores = k.scratch(f32, shape.groups, SIDE + 1, SIDE)  # a group's rows do not share the sets of a cache
        self.powers = k.scratch(u32, shape.groups, SIDE, WORDS)
        self.total = k.scratch(f32, shape.blocks, steps, SIDE, SIDE)
        self.weights, self.peaks = k.scratch(f32, rows, WIDTH), k.scratch(f32, rows)
        self.lasts = k.scratch(i32, rows)

    def start(self, q: Array, positions: Array, first: Value, n_rows: Value, kv_head: Value, scale: float) -> None:
        """Loads the rows of q, scaled for powers of two, and clears the sums. Rows past the last repeat it."""
        k, shape = self.k, self.shape
        for row in k.range((n_rows + (SIDE - 1)) // SIDE * SIDE):
            source = k.minimum(row, n_rows - 1)
            token, column = (
                first + source // shape.group,
                (kv_head * shape.group + source % shape.group) * shape.head_dim,
            )
            for step in range(shape.steps):
                halves = [self._query(q, token, column, d, scale) for d in (step * SIDE, step * SIDE + WIDTH)]
                self._store_both(self.query, halves, row // SIDE, step, row % SIDE, 0)
                for start in (0, WIDTH):
                    k.store_vector(self.total, k.splat(0.0, WIDTH), row // SIDE, step, row % SIDE, start)
            k.store_vector(self.weights, k.splat(0.0, WIDTH), row, 0)
            self.peaks[row] = LOWEST
            self.lasts[row] = positions[token]

    def _query(self, q: Array, token: Value, column: Value, d: int, scale: float) -> Value:
        if d >= self.shape.head_dim:
            return self.k.splat(0.0, WIDTH)
        count = inside(self.shape.head_dim, d)
        return self.k.load_vector(q, token, column + d, width=WIDTH, count=count) * (scale * LOG2_E)

    def _store_both(self, to: list[Array], halves: list[Value], *at: Number) -> None:
        """Stores the words of two vectors, and those of what bf16 leaves of them."""
        self.k.store_vector(to[0], pair(self.k, *halves), *at)
        self.k.store_vector(to[1], pair(self.k, *(rest(self.k, half) for half in halves)), *at)

    def reach(self, block: Value) -> Value:
        """Returns the largest position of a block's rows."""
        greatest = self.k.var(self.lasts[block * SIDE], i32)
        for row in self.k.range(1, SIDE):
            greatest.set(self.k.maximum(greatest.value, self.lasts[block * SIDE + row]))
        return greatest.value.to(i64)

    def unpack(self, keys: Keys) -> None:
        """Writes the words of keys and values. Keys past the last are those of the last block, values there are 0."""
        k, shape = self.k, self.shape
        for group in k.range((keys.count + (SIDE - 1)) // SIDE):
            blocks = [k.minimum(group * 2 + half, keys.n_blocks - 1) for half in (0, 1)]
            for half, index in enumerate(blocks):
                block = keys.block(index)
                for step, d in self._columns():
                    pairs = [self._component(keys, block, step * SIDE + d + more) for more in (0, WIDTH)]
                    self._store_both(self.keys, pairs, group, step, d, half * WIDTH)
            for j in k.range(BLOCK_TOKENS):
                for step in range(shape.steps):
                    for column in (0, WIDTH):
                        d = step * SIDE + column
                        halves = [self._value(keys, group * 2 + half, blocks[half], j, d) for half in (0, 1)]
                        k.store_vector(self.values, pair(k, *halves), group, step, j, column)

    def _columns(self) -> Iterator[tuple[Number, Number]]:
        """Yields the words of a head as a step and a word in it."""
        for step in range(self.shape.steps):
            for d in self.k.range(WORDS):
                yield step, d

    def _component(self, keys: Keys, block: Value, d: Number) -> Value:
        """Returns component d of a block's keys, 0 past the head's columns."""
        k, head_dim = self.k, self.shape.head_dim
        if head_dim % SIDE == 0:
            return k.load_vector(keys.cache.keys, block, keys.kv_head, d, 0, width=WIDTH)
        found = k.load_vector(keys.cache.keys, block, keys.kv_head, k.minimum(d, head_dim - 1), 0, width=WIDTH)
        return k.select(k.minimum(d, head_dim) < head_dim, found, k.splat(0.0, WIDTH))

    def _value(self, keys: Keys, index: Value, block: Value, j: Value, d: int) -> Value:
        """Returns 16 columns of key j of the block at `index`, 0 past the keys: there lies whatever was there before."""
        if d >= self.shape.head_dim:
            return self.k.splat(0.0, WIDTH)
        found = keys.values(keys.block(block), 0, j, d)
        return self.k.select(index * BLOCK_TOKENS + j < keys.count, found, self.k.splat(0.0, WIDTH))

    def score(self, block: Value, reach: Value, base: Value, begin: Value | int = 0) -> None:
        """scores = query K of a block's rows, for the groups of keys that it attends to, from group `begin` on."""
        k = self.k
        for group in k.range(begin, self.n_groups(reach, base)):
            sums = k.word_tile(SIDE, SIDE, f32)
            for step in k.range(self.shape.steps):
                for mine, theirs in ((0, 0), (1, 0), (0, 1)):
                    left, right = self.query[mine], self.keys[theirs]
                    sums.mma(left, (block, step, 0, 0), right, (group, step, 0, 0), k=WORDS)
            sums.store(self.scores, (group, 0, 0))
        k.barrier()

    def weigh(self, block: Value, base: Value) -> None:
        """Makes the words of each row's weights, and adds the weights to their sum."""
        k = self.k
        pairs = (self.n_groups(self.reach(block), base) + 1) // 2
        for r in k.range(SIDE):
            row = block * SIDE + r
            seen = k.maximum(self.lasts[row].to(i64) + 1 - base, 0)
            whole = k.minimum(seen // (2 * SIDE), pairs)
            top = k.var(k.splat(LOWEST, WIDTH))
            for first, last, masked in ((k.const(0, i64), whole, False), (whole, pairs, True)):
                for n in k.range(first, last):
                    for score in self._scores(r, n, seen if masked else None):
                        top.set(greater(k, score, top.value))
            self._raise_peak(block, r, top.value)
            peak, weight = self.peaks[row], k.var(k.load_vector(self.weights, row, 0, width=WIDTH))
            for first, last, masked in ((k.const(0, i64), whole, False), (whole, pairs, True)):
                for n in k.range(first, last):
                    powers = self._powers(r, n, seen if masked else None, peak)
                    for power in powers:
                        weight.set(weight.value + power)
                    for half in (0, 1):
                        word = pair(k, *powers[2 * half : 2 * half + 2])
                        k.store_vector(self.powers, word, 2 * n + half, r, 0)
            k.store_vector(self.weights, weight.value, row, 0)
        k.barrier()

    def _scores(self, r: Value, n: Value, seen: Value | None) -> list[Value]:
        """Returns the scores of two groups of keys, the lowest number for those past the first `seen`."""
        k = self.k
        starts = range(0, 2 * SIDE, WIDTH)
        found = [k.load_vector(self.scores, 2 * n + start // SIDE, r, start % SIDE, width=WIDTH) for start in starts]
        return found if seen is None else self._first(found, n, seen, LOWEST)

    def _powers(self, r: Value, n: Value, seen: Value | None, peak: Value) -> list[Value]:
        """Returns the weights of two groups of keys, 0 for those past the first `seen`, whose powers are not 0."""
        found = [coarse_power(self.k, score - peak) for score in self._scores(r, n, seen)]
        return found if seen is None else self._first(found, n, seen, 0.0)

    def _first(self, found: list[Value], n: Value, seen: Value, other: float) -> list[Value]:
        """Returns vectors of two groups of keys with `other` for those past the first `seen`."""
        k = self.k
        counts = [seen - (n * (2 * SIDE) + i * WIDTH) for i in range(len(found))]
        return [k.select(first_elements(k, c, WIDTH), x, other) for c, x in zip(counts, found, strict=True)]

    def n_groups(self, reach: Value, base: Value) -> Value:
        """Returns the number of groups of keys from `base` on that a block's rows attend to."""
        return self.k.minimum((reach - base) // SIDE + 1, self.shape.groups)

    def _raise_peak(self, block: Value, r: Value, top: Value) -> None:
        """Sets a row's peak to its largest score if that is more than SLACK above it, and its sums relative to that."""
        k, row = self.k, block * SIDE + r
        peak = self.peaks[row]
        # on integers: a maximum of floats takes five times the instructions, for NaN and the sign of 0
        above = k.select(top > k.splat(peak + SLACK, WIDTH), k.splat(1, WIDTH, i32), k.splat(0, WIDTH, i32))
        with k.when(k.vector_max(above) > 0):
            top = k.vector_max(top)
            factor = power_of_two(k, k.splat(peak - top, WIDTH))
            self.peaks[row] = top
            k.store_vector(self.weights, k.load_vector(self.weights, row, 0, width=WIDTH) * factor, row, 0)
            for step in range(self.shape.steps):
                for start in (0, WIDTH):
                    total = k.load_vector(self.total, block, step, r, start, width=WIDTH)
                    k.store_vector(self.total, total * factor, block, step, r, start)

    def mix(self, block: Value, reach: Value, base: Value, begin: Value | int = 0) -> None:
        """total += weights V for a block's rows."""
        k = self.k
        for step in k.range(self.shape.steps):
            at = (block, step, 0, 0)
            total = k.word_tile(SIDE, SIDE, f32, (self.total, at))
            for group in k.range(begin, self.n_groups(reach, base)):
                total.mma(self.powers, (group, 0, 0), self.values, (group, step, 0, 0), k=WORDS)
            total.store(self.total, at)
        k.barrier()

    def finish(self, out: Array, first: Value, n_rows: Value, kv_head: Value) -> None:
        """out = total / sum of weights."""
        k, shape = self.k, self.shape
        for row in k.range(n_rows):
            inverse = 1.0 / k.vector_sum(k.load_vector(self.weights, row, 0, width=WIDTH))
            column = (kv_head * shape.group + row % shape.group) * shape.head_dim
            for d in shape.columns:
                total = k.load_vector(self.total, row // SIDE, d // SIDE, row % SIDE, d % SIDE, width=WIDTH)
                at = first + row // shape.group, column + d
                k.store_vector(out, total * inverse, *at, count=inside(shape.head_dim, d))
