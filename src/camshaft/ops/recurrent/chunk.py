"""The steps of the chunked delta rule on one chunk, in a program's scratch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import f32
from camshaft.lang import Array, Number, Tracer, Value, Variable, add_products, tile_of
from camshaft.ops.recurrent.columns import NORM_EPS
from camshaft.ops.recurrent.widths import WIDTH

CHUNK = 64
# exp of it is 0, and it is finite.
LOWEST = -1e30
Tile = list[list[Variable]]


@dataclass(frozen=True)
class Chunk:
    """The scratch of a program and the steps on a chunk. `rows` and `vectors` are a register tile's."""

    k: Tracer
    key_size: int
    value_size: int
    delta: bool
    rows: int
    vectors: int
    keys: Array
    turned: Array
    queries: Array
    values: Array
    inside: Array
    sums: Array
    system: Array
    rates: Array

    @property
    def width(self) -> int:
        """The columns of a register tile."""
        return self.vectors * WIDTH

    def vectors_of(self, array: Array, row: Number, column: Number) -> list[Value]:
        """A tile's columns of a row."""
        return [self.k.load_vector(array, row, column + v * WIDTH, width=WIDTH) for v in range(self.vectors)]

    def product(
        self, n_rows: int, columns: int, depth: Callable[[Value], Number], left: Callable[[Value, Value], Value],
        right: Array, start: Callable[[Value, Value], Tile], done: Callable[[Value, Value, Tile], None],
    ) -> None:  # fmt: skip
        """done(i, j, start + sum_d left(i + r, d) right[d, j + c]) for each tile; the depth is of i."""
        k = self.k
        for j in k.range(0, columns, self.width):
            for i in k.range(0, n_rows, self.rows):
                tile = start(i, j)
                for d in k.range(depth(i)):
                    add_products(k, tile, [left(i + r, d) for r in range(self.rows)], self.vectors_of(right, d, j))
                done(i, j, tile)

    def zeros(self, i: Value, j: Value) -> Tile:
        """A tile of zeros."""
        return tile_of(self.k, self.rows, self.vectors, WIDTH)

    def store(self, array: Array, row: Number, column: Number, values: Sequence[Value]) -> None:
        """Stores a tile's columns of a row."""
        for v, value in enumerate(values):
            self.k.store_vector(array, value, row, column + v * WIDTH)

    def load(
        self, q: Array, keys: Array, v: Array, rows: Callable[[Value], tuple[Value, Value]], active: Value,
        scale: float, l2_norm: bool,
    ) -> None:  # fmt: skip
        """Loads a chunk's rows, with zeros after the `active` ones; keys also transposed, for products with them as columns."""
        k = self.k
        for r in k.range(CHUNK):
            there = r < active
            at, row = rows(k.minimum(r, active - 1))
            for source, to, factor in ((keys, self.keys, 1.0), (q, self.queries, scale)):
                unit = self._inverse_length(source, at) * factor if l2_norm else k.const(factor, f32)
                for d in range(0, self.key_size, WIDTH):
                    x = k.load_vector(source, at, d, width=WIDTH) * unit
                    k.store_vector(to, k.select(there, x, k.splat(0.0, WIDTH)), r, d)
            for d in range(0, self.value_size, WIDTH):
                x = k.load_vector(v, row, d, width=WIDTH)
                k.store_vector(self.values, k.select(there, x, k.splat(0.0, WIDTH)), r, d)
        for r in k.range(CHUNK):
            for column in k.range(self.key_size):
                self.turned[column, r] = self.keys[r, column]

    def _inverse_length(self, array: Array, row: Value) -> Value:
        k, total = self.k, self.k.splat(0.0, WIDTH)
        for d in range(0, self.key_size, WIDTH):
            x = k.load_vector(array, row, d, width=WIDTH)
            total = k.fma(x, x, total)
        return k.rsqrt(k.vector_sum(total) + NORM_EPS)

    def gates(self, g: Array, beta: Array | None, rows: Callable[[Value], tuple[Value, Value]], active: Value) -> None:
        """Sums the log decays and loads beta; rows after the active ones decay nothing and change nothing."""
        k = self.k
        total = k.var(0.0)
        for r in k.range(CHUNK):
            _, row = rows(k.minimum(r, active - 1))
            total.set(k.select(r < active, total.value + g[row], total.value))
            self.sums[r] = total.value
            if beta is not None:
                self.rates[r] = k.select(r < active, beta[row], k.const(0.0, f32))

    def pairs(self) -> None:
        """inside = tril(q k.T exp(G_i - G_j)); system = beta (k k.T) exp(G_i - G_j), of which only what is below the diagonal
        is meant."""
        k, step = self.k, self.rows // 2 if self.delta else self.rows
        left = [(self.queries, self.inside), (self.keys, self.system)][: 1 + self.delta]
        for j in k.range(0, CHUNK, self.width):
            for i in k.range(j // step * step, CHUNK, step):
                tiles = [tile_of(k, step, self.vectors, WIDTH) for _ in left]
                for d in k.range(self.key_size):
                    right = self.vectors_of(self.turned, d, j)
                    for (array, _), tile in zip(left, tiles, strict=True):
                        add_products(k, tile, [array[i + r, d] for r in range(step)], right)
                for r in range(step):
                    for v in range(self.vectors):
                        decay = self._decay(i + r, j + v * WIDTH)
                        for (_, to), tile in zip(left, tiles, strict=True):
                            rate = decay if to is self.inside else decay * self.rates[i + r]
                            k.store_vector(to, tile[r][v].value * rate, i + r, j + v * WIDTH)

    def _decay(self, row: Value, column: Value) -> Value:
        """exp(G_i - G_j) of 16 columns, 0 above the diagonal; exp would overflow there."""
        k = self.k
        change = k.splat(self.sums[row], WIDTH) - k.load_vector(self.sums, column, width=WIDTH)
        return k.exp(k.select(k.iota(WIDTH) + column <= row, change, k.splat(LOWEST, WIDTH)))

    def solve(self) -> None:
        """values = [u w]: forward substitution in blocks of rows, between rows of a block in registers."""
        k = self.k
        for r in k.range(CHUNK):
            rate = self.rates[r]
            decayed = rate * k.exp(self.sums[r])
            for d in range(0, self.value_size, WIDTH):
                k.store_vector(self.values, k.load_vector(self.values, r, d, width=WIDTH) * rate, r, d)
            for d in range(0, self.key_size, WIDTH):
                x = k.load_vector(self.keys, r, d, width=WIDTH) * decayed
                k.store_vector(self.values, x, r, self.value_size + d)

        def finish(i: Value, j: Value, tile: Tile) -> None:
            found: list[list[Value]] = []
            for r in range(self.rows):
                row = [x - y.value for x, y in zip(self.vectors_of(self.values, i + r, j), tile[r], strict=True)]
                for before, done in enumerate(found):
                    factor = k.splat(-self.system[i + r, i + before], WIDTH)
                    row = [k.fma(factor, x, y) for x, y in zip(done, row, strict=True)]
                self.store(self.values, i + r, j, row)
                found.append(row)

        columns = self.value_size + self.key_size
        self.product(CHUNK, columns, lambda i: i, lambda i, d: self.system[i, d], self.values, self.zeros, finish)

    def correct(self, state: Array, first: Value) -> None:
        """v' = u - w h, in place of u."""

        def finish(i: Value, j: Value, tile: Tile) -> None:
            for r in range(self.rows):
                old = self.vectors_of(self.values, i + r, j)
                self.store(self.values, i + r, j, [x - y.value for x, y in zip(old, tile[r], strict=True)])

        self._with_state(lambda i, d: self.values[i, self.value_size + d], state, first, finish)

    def _with_state(self, left: Any, state: Array, first: Value, done: Any) -> None:
        k = self.k
        for j in k.range(0, self.value_size, self.width):
            for i in k.range(0, CHUNK, self.rows):
                tile = self.zeros(i, j)
                for d in k.range(self.key_size):
                    right = self.vectors_of(state, first + d, j)
                    add_products(k, tile, [left(i + r, d) for r in range(self.rows)], right)
                done(i, j, tile)

    def output(
        self, out: Array, state: Array, first: Value, rows: Callable[[Value], tuple[Value, Value]], active: Value
    ) -> None:
        """o = exp(G) (q h) + inside v'."""
        k = self.k

        def finish(i: Value, j: Value, tile: Tile) -> None:
            for r in range(self.rows):
                factor = k.splat(k.exp(self.sums[i + r]), WIDTH)
                for total in tile[r]:
                    total.set(total.value * factor)
            for d in k.range(i + self.rows):
                left = [self.inside[i + r, d] for r in range(self.rows)]
                add_products(k, tile, left, self.vectors_of(self.values, d, j))
            for r in range(self.rows):
                with k.when(i + r < active):
                    self.store(out, rows(i + r)[1], j, [x.value for x in tile[r]])

        self._with_state(lambda i, d: self.queries[i, d], state, first, finish)

    def advance(self, state: Array, first: Value) -> None:
        """h = exp(G_last) h + k.T (exp(G_last - G) v')."""
        k, last = self.k, self.sums[CHUNK - 1]
        for r in k.range(CHUNK):
            factor = k.splat(k.exp(last - self.sums[r]), WIDTH)
            for d in range(0, self.value_size, WIDTH):
                k.store_vector(self.values, k.load_vector(self.values, r, d, width=WIDTH) * factor, r, d)
        kept = k.splat(k.exp(last), WIDTH)

        def start(i: Value, j: Value) -> Tile:
            rows = [self.vectors_of(state, first + i + r, j) for r in range(self.rows)]
            return [[k.var(x * kept) for x in row] for row in rows]

        def finish(i: Value, j: Value, tile: Tile) -> None:
            for r in range(self.rows):
                self.store(state, first + i + r, j, [x.value for x in tile[r]])

        self.product(
            self.key_size, self.value_size, lambda i: CHUNK, lambda i, d: self.keys[d, i], self.values, start, finish
        )
