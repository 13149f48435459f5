"""The steps of the chunked delta rule on one chunk, in a program's scratch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from camshaft.dtypes import f32, i64
from camshaft.lang import Array, Number, Tracer, Value, Variable, add_products, tile_of
from camshaft.ops.recurrent.columns import NORM_EPS
from camshaft.ops.recurrent.state_layout import WIDTH

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
    system: Array
    sums: Array
    lost: Array
    grown: Array
    kept: Array
    rates: Array

    @classmethod
    def of(cls, k: Tracer, key_size: int, value_size: int, delta: bool, rows: int, vectors: int) -> Chunk:
        """A chunk with scratch of its own; without delta nothing reads `system` and `rates`."""
        keys, turned = k.scratch(f32, CHUNK, key_size), k.scratch(f32, key_size, CHUNK)
        queries, values = k.scratch(f32, CHUNK, key_size), k.scratch(f32, CHUNK, value_size)
        inside = k.scratch(f32, CHUNK, CHUNK)
        system = k.scratch(f32, CHUNK, CHUNK) if delta else inside
        sums, lost, grown, kept = (k.scratch(f32, CHUNK) for _ in range(4))
        rates = k.scratch(f32, CHUNK) if delta else kept
        arrays = keys, turned, queries, values, inside, system, sums, lost, grown, kept, rates
        return cls(k, key_size, value_size, delta, rows, vectors, *arrays)

    @property
    def width(self) -> int:
        """The columns of a register tile."""
        return self.vectors * WIDTH

    def vectors_of(self, array: Array, row: Number, column: Number) -> list[Value]:
        """A tile's columns of a row."""
        return [self.k.load_vector(array, row, column + v * WIDTH, width=WIDTH) for v in range(self.vectors)]

    def product(
        self, n_rows: int, columns: int, depth: Callable[[Value], Number], left: Callable[[Value, Value], Value],
        right: Array, start: Callable[[Value, Value], Tile], done: Callable[[Value, Value, Tile], None], first: Number = 0,
    ) -> None:  # fmt: skip
        """done(i, j, start + sum_d left(i + r, d) right[first + d, j + c]) for each tile; the depth is of i."""
        k = self.k
        for j in k.range(0, columns, self.width):
            for i in k.range(0, n_rows, self.rows):
                tile = start(i, j)
                for d in k.range(depth(i)):
                    row = self.vectors_of(right, first + d, j)
                    add_products(k, tile, [left(i + r, d) for r in range(self.rows)], row)
                done(i, j, tile)

    def zeros(self, i: Value, j: Value) -> Tile:
        """A tile of zeros."""
        return tile_of(self.k, self.rows, self.vectors, WIDTH)

    def store(self, array: Array, row: Number, column: Number, values: Sequence[Value]) -> None:
        """Stores a tile's columns of a row."""
        for v, value in enumerate(values):
            self.k.store_vector(array, value, row, column + v * WIDTH)

    def load(
        self, q: Array, keys: Array, rows: Callable[[Value], tuple[Value, Value]], active: Value,
        scale: float = 1.0, l2_norm: bool = False,
    ) -> None:  # fmt: skip
        """Loads a chunk's keys and queries; keys also transposed, for products with them as columns."""
        for source, to, factor in ((keys, self.keys, 1.0), (q, self.queries, scale)):
            self.copy(source, to, self.key_size, lambda r: rows(r)[0], active, factor, l2_norm)
        self.turn(self.keys, 0, CHUNK, self.key_size, self.turned, 0)

    def copy(
        self, source: Array, to: Array, size: int, row: Callable[[Value], Value], active: Value,
        factor: float = 1.0, l2_norm: bool = False,
    ) -> None:  # fmt: skip
        """Loads a chunk's rows times a factor, with zeros after the `active` ones and after a row's last column."""
        k = self.k
        for r in k.range(CHUNK):
            there, at = r < active, row(k.minimum(r, active - 1))
            unit = self._inverse_length(source, at) * factor if l2_norm else k.const(factor, f32)
            for d in k.range(0, size, WIDTH):
                x = k.load_vector(source, at, d, width=WIDTH, count=self.count(source, d)) * unit
                k.store_vector(to, k.select(there, x, k.splat(0.0, WIDTH)), r, d)

    def count(self, array: Array, column: Number) -> Number | None:
        """How many of 16 columns the rows of `array` have from `column` on; None for all, which a multiple of 32 has."""
        k, width = self.k, array.shape[-1]
        return None if width % (2 * WIDTH) == 0 else k.minimum(k.maximum(width - k.number(column, i64), 0), WIDTH)

    def turn(self, source: Array, first: Number, n_rows: int, columns: int, to: Array, place: Number) -> None:
        """Transposes rows of `source` from `first` on into rows of `to` from `place` on, in blocks that stay in the cache."""
        k = self.k
        for block in k.range(0, columns, WIDTH):
            for r in k.range(n_rows):
                for column in range(WIDTH):
                    to[place + block + column, r] = source[first + r, block + column]

    def _inverse_length(self, array: Array, row: Value) -> Value:
        k, total = self.k, self.k.splat(0.0, WIDTH)
        for d in range(0, self.key_size, WIDTH):
            x = k.load_vector(array, row, d, width=WIDTH)
            total = k.fma(x, x, total)
        return k.rsqrt(k.vector_sum(total) + NORM_EPS)

    def gates(self, g: Array, beta: Array | None, rows: Callable[[Value], tuple[Value, Value]], active: Value) -> None:
        """Sums the log decays and loads beta; rows after the active ones decay nothing and change nothing. G = sums + lost:
        near tokens after far decays differ by what rounding takes of the sums. grown = exp(G), and kept = exp(G_last - G)."""
        k = self.k
        total, rest = k.var(0.0), k.var(0.0)
        for r in k.range(CHUNK):
            _, row = rows(k.minimum(r, active - 1))
            before, added = total.value, k.select(r < active, g[row], k.const(0.0, f32))
            total.set(before + added)
            part = total.value - before
            rest.set(rest.value + ((before - (total.value - part)) + (added - part)))
            self.sums[r], self.lost[r] = total.value, rest.value
            if beta is not None:
                self.rates[r] = k.select(r < active, beta[row], k.const(0.0, f32))
        for at in range(0, CHUNK, WIDTH):
            sums, lost = (k.load_vector(array, at, width=WIDTH) for array in (self.sums, self.lost))
            k.store_vector(self.grown, k.exp(sums + lost), at)
            change = (k.splat(total.value, WIDTH) - sums) + (k.splat(rest.value, WIDTH) - lost)
            k.store_vector(self.kept, k.exp(change), at)

    def pairs(self, products: Sequence[tuple[Array, Array, bool]], right: Array, depth: int) -> None:
        """For each (left, to, strict): to = left right exp(G_i - G_j) up to the diagonal, 0 above it, and if strict on it."""
        k, step = self.k, self.rows // len(products)
        for j in k.range(0, CHUNK, self.width):
            for i in k.range(j // step * step, CHUNK, step):
                tiles = [tile_of(k, step, self.vectors, WIDTH) for _ in products]
                for d in k.range(depth):
                    columns = self.vectors_of(right, d, j)
                    for (left, _, _), tile in zip(products, tiles, strict=True):
                        add_products(k, tile, [left[i + r, d] for r in range(step)], columns)
                for (_, to, _), tile in zip(products, tiles, strict=True):
                    for n in range(step):
                        self.store(to, i + n, j, [x.value for x in tile[n]])
        for i in k.range(CHUNK):
            for j in k.range(0, (i // self.width + 1) * self.width, WIDTH):
                decay, below = self._decay(i, j), k.iota(WIDTH) + j < i
                for _, to, strict in products:
                    found = k.load_vector(to, i, j, width=WIDTH) * decay
                    k.store_vector(to, k.select(below, found, k.splat(0.0, WIDTH)) if strict else found, i, j)

    def _decay(self, row: Value, column: Value) -> Value:
        """exp(G_i - G_j) of 16 columns, 0 above the diagonal; exp would overflow there."""
        k = self.k
        near, far = (k.splat(a[row], WIDTH) - k.load_vector(a, column, width=WIDTH) for a in (self.sums, self.lost))
        change = near + far
        return k.exp(k.select(k.iota(WIDTH) + column <= row, change, k.splat(LOWEST, WIDTH)))

    def subtract(self, state: Array, first: Value) -> None:
        """values = v - exp(G) (k h)."""

        def finish(i: Value, j: Value, tile: Tile) -> None:
            for r in range(self.rows):
                old, factor = self.vectors_of(self.values, i + r, j), self.k.splat(self.grown[i + r], WIDTH)
                self.store(self.values, i + r, j, [x - factor * y.value for x, y in zip(old, tile[r], strict=True)])

        self.with_state(self.keys, state, first, finish)

    def solve(self, each: Callable[[Value, Value, list[Value]], None] = lambda row, column, found: None) -> None:
        """values = v', with v'_i = beta_i t_i, t_i = values_i - sum_j system[i, j] v'_j: forward substitution in blocks of rows,
        between rows of a block in registers. each(i, j, t_i) has the columns from j on."""
        k = self.k

        def finish(i: Value, j: Value, tile: Tile) -> None:
            found: list[list[Value]] = []
            for r in range(self.rows):
                row = [x - y.value for x, y in zip(self.vectors_of(self.values, i + r, j), tile[r], strict=True)]
                for before, done in enumerate(found):
                    factor = k.splat(-self.system[i + r, i + before], WIDTH)
                    row = [k.fma(factor, x, y) for x, y in zip(done, row, strict=True)]
                each(i + r, j, row)
                rate = k.splat(self.rates[i + r], WIDTH)
                found.append([rate * x for x in row])
                self.store(self.values, i + r, j, found[-1])

        self.product(
            CHUNK, self.value_size, lambda i: i, lambda i, d: self.system[i, d], self.values, self.zeros, finish
        )

    def with_state(self, left: Array, state: Array, first: Value, done: Callable[[Value, Value, Tile], None]) -> None:
        """done(i, j, left h) for each tile, h [K, V] from row `first` of `state` on."""
        depth, columns = self.key_size, self.value_size
        self.product(CHUNK, columns, lambda i: depth, lambda i, d: left[i, d], state, self.zeros, done, first)

    def scale_rows(self, tile: Tile, factors: Array, i: Value) -> None:
        """Multiplies row r of a tile by factors[i + r]."""
        for r, row in enumerate(tile):
            factor = self.k.splat(factors[i + r], WIDTH)
            for total in row:
                total.set(total.value * factor)

    def output(
        self, out: Array, state: Array, first: Value, rows: Callable[[Value], tuple[Value, Value]], active: Value
    ) -> None:
        """o = exp(G) (q h) + inside v'."""
        k = self.k

        def finish(i: Value, j: Value, tile: Tile) -> None:
            self.scale_rows(tile, self.grown, i)
            for d in k.range(i + self.rows):
                left = [self.inside[i + r, d] for r in range(self.rows)]
                add_products(k, tile, left, self.vectors_of(self.values, d, j))
            for r in range(self.rows):
                with k.when(i + r < active):
                    self.store(out, rows(i + r)[1], j, [x.value for x in tile[r]])

        self.with_state(self.queries, state, first, finish)

    def advance(self, state: Array, first: Value) -> None:
        """h = exp(G_last) h + k.T (exp(G_last - G) v')."""
        k = self.k
        for r in k.range(CHUNK):
            factor = k.splat(self.kept[r], WIDTH)
            for d in k.range(0, self.value_size, WIDTH):
                k.store_vector(self.values, k.load_vector(self.values, r, d, width=WIDTH) * factor, r, d)
        kept = k.splat(self.grown[CHUNK - 1], WIDTH)

        def start(i: Value, j: Value) -> Tile:
            rows = [self.vectors_of(state, first + i + r, j) for r in range(self.rows)]
            return [[k.var(x * kept) for x in row] for row in rows]

        def finish(i: Value, j: Value, tile: Tile) -> None:
            for r in range(self.rows):
                self.store(state, first + i + r, j, [x.value for x in tile[r]])

        self.product(
            self.key_size, self.value_size, lambda i: CHUNK, lambda i, d: self.keys[d, i], self.values, start, finish
        )
