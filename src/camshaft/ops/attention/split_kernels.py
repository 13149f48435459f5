"""The kernels of attention for few tokens: a split of one token's keys per program, then the merge of splits.

Lanes are the 16 keys of a cache block for q K and 16 columns of the head for p V, so no sum is across a vector. All q heads of
a group read each vector of the cache once. On a CPU a program takes all kv heads, block by block in memory order, for
hardware prefetching: 21 GB/s on a core of Zen 4, where reading one head at a time gave 9. The order of
every sum follows from shapes alone.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import f32, i64
from camshaft.lang import (
    Array,
    Tracer,
    Value,
    Variable,
    add_products,
    first_elements,
    greater,
    kernel,
    power_of_two,
    tile_of,
)
from camshaft.ops.attention.kv_cache_quantize import GROUP
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import LOWEST, WIDTH, Heads, Keys, arguments_of, columns_of, inside

MOST_MEMBERS = WIDTH // 2  # q heads of a register tile


@dataclass(frozen=True)
class Shape(Heads):
    """The sizes of one program: kv heads per program (`together`), keys, blocks of keys and chains of sums of a register tile
    for q K, blocks of one head before switching to the next (`turn`), registers of a tile, prefetch distance in bytes
    (`ahead`), columns of a value. `kv_heads` counts a head of the cache `parts` times, where the q heads that share one do not
    fit together."""

    keys: int
    together: int
    at_once: int
    chains: int
    turn: int
    registers: int
    ahead: int
    v_dim: int
    parts: int = 1

    @property
    def scratch_nbytes(self) -> int:
        """The bytes of scratch of a program."""
        return 4 * self.together * self.group * (self.padded + self.values.padded + self.keys + 2)

    @property
    def values(self) -> Heads:
        """The same heads with the columns of values."""
        return Heads(self.heads, self.kv_heads, self.v_dim)


@kernel
def some_keys_per_program(k: Tracer, *arguments: Any, scale: float, **sizes: int) -> None:
    # over keys base .. base + n: s = scale log2(e) q K, m = max s, p = 2^(s - m); partial = p V, extremes = (m, sum p)
    given = arguments_of(arguments)
    partial, extremes, *_ = given.rest
    shape = Shape(**sizes)
    token, first_head, split = k.program(0), k.program(1) * shape.together, k.program(2)
    base, last = split * shape.keys, given.positions[token].to(i64)
    with k.when(base <= last):
        count = k.minimum(last + 1 - base, shape.keys)
        keys = Keys(
            k, given.cache, given.table, given.slots[token].to(i64), first_head // shape.parts, base, count, shape.ahead
        )
        Work(k, shape, keys).run(given.q, (token, first_head, split), scale, partial, extremes)


class Work:
    """The workgroup memory of one program and the steps on it. A row is one q head of one of its kv heads."""

    def __init__(self, k: Tracer, shape: Shape, keys: Keys) -> None:
        self.k, self.shape, self.keys = k, shape, keys
        rows = shape.together * shape.group
        self.query, self.total = k.scratch(f32, rows, shape.padded), k.scratch(f32, rows, shape.values.padded)
        self.scores = k.scratch(f32, rows, shape.keys)
        self.peaks, self.weights = (k.scratch(f32, rows) for _ in range(2))
        if keys.cache.is_quantized:
            self.scaled = k.scratch(f32, MOST_MEMBERS, shape.head_dim // GROUP, WIDTH)

    def run(self, q: Array, at: tuple[Value, Value, Value], scale: float, partial: Array, extremes: Array) -> None:
        """Does all steps for a token, its heads from a first one on, and a split."""
        k, shape, (token, first_head, _) = self.k, self.shape, at
        self.start(q, token, first_head, scale)
        for first in k.range(0, self.keys.n_blocks, shape.turn):
            for h in k.range(shape.together):
                self.score(h, first)
        for row in k.range(shape.together * shape.group):
            self.weigh(row)
        for first in k.range(0, self.keys.n_blocks, shape.turn):
            for h in k.range(shape.together):
                self.mix(h, first)
        self.finish(partial, extremes, *at)

    def start(self, q: Array, token: Value, first_head: Value, scale: float) -> None:
        """Loads the queries, scaled for powers of two, and sets the totals to 0."""
        k, shape = self.k, self.shape
        for row in k.range(shape.together * shape.group):
            shape.load_query(k, q, (token, (first_head * shape.group + row) * shape.head_dim), self.query, row, scale)
            for d in shape.values.columns:
                k.store_vector(self.total, k.splat(0.0, WIDTH), row, d)

    def members(self, h: Value, most: int = MOST_MEMBERS) -> list[list[Value]]:
        """Splits the rows of a kv head into the fewest runs of at most `most`, of nearly equal length."""
        group = range(self.shape.group)
        step = -(-len(group) // -(-len(group) // most))
        return [[h * self.shape.group + g for g in group[i : i + step]] for i in group[::step]]

    def score(self, h: Value, first: Value) -> None:
        """scores[row, key] = query[row] . K[key] for the rows of a kv head and the keys of its turn."""
        k, shape, keys = self.k, self.shape, self.keys
        end = k.minimum(first + shape.turn, keys.n_blocks)
        for rows in self.members(h):
            for start in k.range(first, end, shape.at_once):
                # blocks after the last one reread it and are masked later
                blocks = [keys.block(k.minimum(start + i, keys.n_blocks - 1)) for i in range(shape.at_once)]
                for row, line in zip(rows, self._products(rows, h, blocks), strict=True):
                    for i, total in enumerate(line):
                        k.store_vector(self.scores, total, row, (start + i) * WIDTH)

    def _products(self, rows: list[Value], h: Value, blocks: list[Value]) -> list[list[Value]]:
        """Returns q K of some rows and blocks, summed in several chains to overlap the latency of multiply-adds."""
        k, shape, keys = self.k, self.shape, self.keys
        totals = tile_of(k, len(rows), len(blocks), WIDTH)
        for part in keys.parts():
            chains = [tile_of(k, len(rows), len(blocks), WIDTH) for _ in range(shape.chains)]
            for i, d, vectors in keys.components(blocks, h, part, shape.chains):
                add_products(k, chains[i], [self.query[row, d] for row in rows], vectors)
            scales = keys.key_scales(blocks, h, part)
            for r, line in enumerate(totals):
                for b, total in enumerate(line):
                    found = _pairwise([chain[r][b].value for chain in chains])
                    total.set(found if scales is None else k.fma(found, scales[b], total.value))
        return [[total.value for total in line] for line in totals]

    def weigh(self, row: Value) -> None:
        """Replaces scores[row] by 2^(score - maximum), 0 past the last key. Stores the maximum in peaks and the sum in
        weights."""
        k, keys, scores = self.k, self.keys, self.scores
        peaks = k.var(k.splat(LOWEST, WIDTH))
        for base in k.range(0, keys.n_blocks * WIDTH, WIDTH):
            seen = first_elements(k, keys.count - base, WIDTH)
            score = k.select(seen, k.load_vector(scores, row, base, width=WIDTH), LOWEST)
            k.store_vector(scores, score, row, base)
            peaks.set(greater(k, score, peaks.value))
        peak, weights = k.vector_max(peaks.value), k.var(k.splat(0.0, WIDTH))
        for base in k.range(0, keys.n_blocks * WIDTH, WIDTH):
            power = power_of_two(k, k.load_vector(scores, row, base, width=WIDTH) - peak)
            k.store_vector(scores, power, row, base)
            weights += power
        self.peaks[row] = peak
        self.weights[row] = k.vector_sum(weights.value)

    def mix(self, h: Value, first: Value) -> None:
        """total[row] += sum over the keys of a turn of scores[row, key] V[key], for the rows of a kv head."""
        k, shape, keys = self.k, self.shape, self.keys
        end = k.minimum(first + shape.turn, keys.n_blocks)
        whole = len(shape.values.columns)  # all columns at once, so that values are read in memory order
        for rows in self.members(h, max(1, min(MOST_MEMBERS, shape.registers // whole))):
            for columns in shape.values.even_steps(shape.registers // len(rows)):
                sums = [[k.var(k.load_vector(self.total, row, d, width=WIDTH)) for d in columns] for row in rows]
                for index in k.range(first, end):
                    self._mix_block(sums, rows, columns, h, index)
                for row, line in zip(rows, sums, strict=True):
                    for d, total in zip(columns, line, strict=True):
                        k.store_vector(self.total, total.value, row, d)

    def _mix_block(
        self, sums: list[list[Variable]], rows: list[Value], columns: list[int], h: Value, index: Value
    ) -> None:
        """Adds some columns of a block's values to `sums`. Multiplies the scores by the values' scales, 16 at a time."""
        k, keys, block, start = self.k, self.keys, self.keys.block(index), index * BLOCK_TOKENS
        parts = sorted({d // GROUP for d in columns}) if keys.cache.is_quantized else []
        for part in parts:
            scales = keys.value_scales(block, h, part)
            for r, row in enumerate(rows):
                k.store_vector(self.scaled, k.load_vector(self.scores, row, start, width=WIDTH) * scales, r, part, 0)
        for j in k.range(keys.in_block(index)):
            values = [keys.value_codes(block, h, j, d) for d in columns]
            if not parts:
                add_products(k, sums, [self.scores[row, start + j] for row in rows], values)
            for part in parts:
                of = slice(*(bisect_left(columns, n * GROUP) for n in (part, part + 1)))
                weights = [self.scaled[r, part, j] for r in range(len(rows))]
                add_products(k, [line[of] for line in sums], weights, values[of])

    def finish(self, partial: Array, extremes: Array, token: Value, first_head: Value, split: Value) -> None:
        """Stores the partial results that merge_splits reads."""
        k, shape = self.k, self.shape
        for row in k.range(shape.together * shape.group):
            head = first_head * shape.group + row
            extremes[token, head, split, 0] = self.peaks[row]
            extremes[token, head, split, 1] = self.weights[row]
            for d in shape.values.columns:
                k.store_vector(partial, k.load_vector(self.total, row, d, width=WIDTH), token, head, split, d)


def _pairwise(values: list[Value]) -> Value:
    """Returns the pairwise sum."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return _pairwise(values[:half]) + _pairwise(values[half:])


@kernel
def merge_splits(
    k: Tracer, partial: Array, extremes: Array, positions: Array, out: Array, *, head_dim: int, keys: int
) -> None:
    # out = sum_i 2^(m_i - M) partial_i / sum_i 2^(m_i - M) l_i, M = max m_i
    token, head = k.program(0), k.program(1)
    n_splits = positions[token].to(i64) // keys + 1
    peak, weight = k.var(LOWEST), k.var(0.0)
    for split in k.range(n_splits):
        peak.set(greater(k, extremes[token, head, split, 0], peak.value))
    totals = {d: k.var(k.splat(0.0, WIDTH)) for d in columns_of(head_dim)}
    for split in k.range(n_splits):
        share = power_of_two(k, extremes[token, head, split, 0] - peak.value)
        weight += share * extremes[token, head, split, 1]
        for d, total in totals.items():
            total += share * k.load_vector(partial, token, head, split, d, width=WIDTH)
    inverse = 1.0 / weight.value
    for d, total in totals.items():
        k.store_vector(out, total.value * inverse, token, head * head_dim + d, count=inside(head_dim, d))
