"""The backward steps of the chunked delta rule on one chunk, in a program's scratch.

With z = beta dr the gradient of v, dv' that of v' and dh that of the state after the chunk, whose start is h: dv' = P.T do +
exp(G_last - G) (k dh); (I + beta B).T dr = dv'; E = (do v'.T) exp(G_i - G_j) and F = -(z v'.T) exp(G_i - G_j) below the
diagonal, and e = do . v' on that of E; dq = exp(G) (do h.T) + E k + e k; dk is the sum of F k - exp(G) (z h.T), of E.T q + F.T
k, of exp(G_last - G) (v' dh.T) and of e q; dbeta = dr . t; before the chunk dh = exp(G_last) dh + q.T (exp(G) do) - k.T
(exp(G) z). In linear attention v' = v, and nothing has z.

That of G is the product of q or k with each part but those of e, in which it cancels, negative for E.T and F.T; the third part
of dk reaches the decays after its token, of which it has exp(G_last - G).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from camshaft.dtypes import f32
from camshaft.lang import Array, Tracer, Value, Variable, add_products, tile_of
from camshaft.ops.recurrent.chunk import CHUNK, Chunk, Tile
from camshaft.ops.recurrent.state_layout import WIDTH

RowOf = Callable[[Value], Value]


@dataclass(frozen=True)
class Backward:
    """The scratch beside the chunk's, and the steps in their order. The chunk's `values` are t, later v' and exp(G_last - G) v';
    `dy` has do; `found` dv', then z, then -z; `turned` v' transposed; `diagonal` e. `of_sums` is the gradient of G, `passed` that
    of the decays after each token, `last` that of G_last, `of_rates` that of beta."""

    chunk: Chunk
    dy: Array
    found: Array
    turned: Array
    diagonal: Array
    of_sums: Array
    passed: Array
    of_rates: Array
    last: Variable

    @classmethod
    def of(cls, chunk: Chunk) -> Backward:
        """The steps with scratch of their own."""
        k, values = chunk.k, chunk.value_size
        dy, found, turned = (k.scratch(f32, *size) for size in ((CHUNK, values), (CHUNK, values), (values, CHUNK)))
        diagonal, of_sums, passed, of_rates = (k.scratch(f32, CHUNK) for _ in range(4))
        return cls(chunk, dy, found, turned, diagonal, of_sums, passed, of_rates, k.var(0.0))

    @property
    def k(self) -> Tracer:
        return self.chunk.k

    def clear(self) -> None:
        """Starts the sums of a chunk."""
        self.last.set(self.k.const(0.0, f32))
        for r in range(0, CHUNK, WIDTH):
            for sums in (self.of_sums, self.passed, self.of_rates):
                self.k.store_vector(sums, self.k.splat(0.0, WIDTH), r)

    def dot(self, left: Sequence[Value], right: Sequence[Value]) -> Value:
        """left . right of a tile's columns."""
        total = left[0] * right[0]
        for x, y in zip(left[1:], right[1:], strict=True):
            total = self.k.fma(x, y, total)
        return self.k.vector_sum(total)

    def write(self, array: Array, row: Value, column: Value, vectors: Sequence[Value]) -> None:
        """Stores a tile's columns, of which `array` may have fewer."""
        for v, vector in enumerate(vectors):
            at = column + v * WIDTH
            self.k.store_vector(array, vector, row, at, count=self.chunk.count(array, at))

    def of_values(self, change: Array, first: Value) -> None:
        """found = dv' = P.T do + exp(G_last - G) (k dh), dh [K, V] from row `first` of `change` on."""
        k, c = self.k, self.chunk

        def finish(i: Value, j: Value, tile: Tile) -> None:
            c.scale_rows(tile, c.kept, i)
            for d in k.range(i, CHUNK):
                add_products(k, tile, [c.inside[d, i + r] for r in range(c.rows)], c.vectors_of(self.dy, d, j))
            for r in range(c.rows):
                c.store(self.found, i + r, j, [x.value for x in tile[r]])

        c.with_state(c.keys, change, first, finish)

    def solve(self) -> None:
        """found = z and of_rates += dr . t: substitution from the last block of rows to the first."""
        k, c = self.k, self.chunk
        for j in k.range(0, c.value_size, c.width):
            for back in k.range(c.rows, CHUNK + 1, c.rows):
                i = CHUNK - back
                tile = c.zeros(i, j)
                for d in k.range(i + c.rows, CHUNK):
                    add_products(k, tile, [c.system[d, i + r] for r in range(c.rows)], c.vectors_of(self.found, d, j))
                self._solve_block(i, j, tile)

    def _solve_block(self, i: Value, j: Value, tile: Tile) -> None:
        k, c = self.k, self.chunk
        done: dict[int, list[Value]] = {}
        for r in reversed(range(c.rows)):
            row = [x - y.value for x, y in zip(c.vectors_of(self.found, i + r, j), tile[r], strict=True)]
            for later, z in done.items():
                factor = k.splat(-c.system[i + later, i + r], WIDTH)
                row = [k.fma(factor, x, y) for x, y in zip(z, row, strict=True)]
            self.of_rates[i + r] = self.of_rates[i + r] + self.dot(row, c.vectors_of(c.values, i + r, j))
            rate = k.splat(c.rates[i + r], WIDTH)
            done[r] = [rate * x for x in row]
            c.store(self.found, i + r, j, done[r])

    def write_values(self, dv: Array, row: RowOf, active: Value) -> None:
        """Writes dv = z, then found = -z and values = v' = beta t."""
        k, c = self.k, self.chunk
        for r in k.range(CHUNK):
            for d in k.range(0, c.value_size, WIDTH):
                z = k.load_vector(self.found, r, d, width=WIDTH)
                with k.when(r < active):
                    k.store_vector(dv, z, row(r), d, count=self.chunk.count(dv, d))
                if c.delta:
                    rate = k.splat(c.rates[r], WIDTH)
                    k.store_vector(self.found, -z, r, d)
                    k.store_vector(c.values, rate * k.load_vector(c.values, r, d, width=WIDTH), r, d)

    def of_pairs(self) -> None:
        """inside = E, system = F, the diagonal e, and values = exp(G_last - G) v'."""
        k, c = self.k, self.chunk
        c.turn(c.values, 0, CHUNK, c.value_size, self.turned, 0)
        c.pairs([(self.dy, c.inside, True), (self.found, c.system, True)][: 1 + c.delta], self.turned, c.value_size)
        for r in k.range(CHUNK):
            total, factor = k.var(k.splat(0.0, WIDTH)), k.splat(c.kept[r], WIDTH)
            for d in k.range(0, c.value_size, WIDTH):
                change = k.load_vector(c.values, r, d, width=WIDTH)
                total.set(k.fma(change, k.load_vector(self.dy, r, d, width=WIDTH), total.value))
                k.store_vector(c.values, factor * change, r, d)
            self.diagonal[r] = k.vector_sum(total.value)

    def queries_and_keys(self, state: Array, first: Value, dq: Array, dk: Array, row: RowOf, active: Value) -> None:
        """Writes dq, and dk without dk'. h transposed [V, K] is from row `first` of `state` on."""
        k, c = self.k, self.chunk
        parts = [(self.dy, c.inside, dq, c.queries), (self.found, c.system, dk, c.keys)][: 1 + c.delta]
        step = c.rows // len(parts)
        for j in k.range(0, c.key_size, c.width):
            for i in k.range(0, CHUNK, step):
                tiles = [tile_of(k, step, c.vectors, WIDTH) for _ in parts]
                for d in k.range(c.value_size):
                    columns = c.vectors_of(state, first + d, j)
                    for (left, _, _, _), tile in zip(parts, tiles, strict=True):
                        add_products(k, tile, [left[i + r, d] for r in range(step)], columns)
                for tile in tiles:
                    c.scale_rows(tile, c.grown, i)
                for d in k.range(i + step):
                    columns = c.vectors_of(c.keys, d, j)
                    for (_, inside, _, _), tile in zip(parts, tiles, strict=True):
                        add_products(k, tile, [inside[i + r, d] for r in range(step)], columns)
                for (_, _, out, own), tile in zip(parts, tiles, strict=True):
                    self._write(out, own, i, j, tile, row, active)

    def _write(self, out: Array, own: Array, i: Value, j: Value, tile: Tile, row: RowOf, active: Value) -> None:
        """Writes a tile of dq or dk, and adds own . tile to the gradients of G."""
        c = self.chunk
        for r, totals in enumerate(tile):
            made = [x.value for x in totals]
            self.of_sums[i + r] = self.of_sums[i + r] + self.dot(made, c.vectors_of(own, i + r, j))
            if own is c.queries:
                made = self.with_diagonal(made, c.keys, i + r, j)
            with self.k.when(i + r < active):
                self.write(out, row(i + r), j, made)

    def with_diagonal(self, made: Sequence[Value], array: Array, row: Value, column: Value) -> list[Value]:
        """made + e x, with x the row of q or k."""
        e = self.k.splat(self.diagonal[row], WIDTH)
        return [self.k.fma(e, x, y) for x, y in zip(self.chunk.vectors_of(array, row, column), made, strict=True)]

    def keys_before(self, change: Array, first: Value, dk: Array, row: RowOf, active: Value) -> None:
        """Adds the other parts to dk, in linear attention all. dh transposed [V, K] is from row `first` of `change` on."""
        k, c = self.k, self.chunk
        parts = [(c.inside, c.queries), (c.system, c.keys)][: 1 + c.delta]

        def start(i: Value, j: Value) -> Tile:
            tile = c.zeros(i, j)
            for d in k.range(i, CHUNK):
                for inside, array in parts:
                    add_products(k, tile, [inside[d, i + r] for r in range(c.rows)], c.vectors_of(array, d, j))
            for r in range(c.rows):
                found = self.dot([x.value for x in tile[r]], c.vectors_of(c.keys, i + r, j))
                self.of_sums[i + r] = self.of_sums[i + r] - found
                self.passed[i + r] = self.passed[i + r] - found
            return tile

        def finish(i: Value, j: Value, tile: Tile) -> None:
            for r in range(c.rows):
                made = [x.value for x in tile[r]]
                self.passed[i + r] = self.passed[i + r] + self.dot(made, c.vectors_of(c.keys, i + r, j))
                made = self.with_diagonal(made, c.queries, i + r, j)
                with k.when(i + r < active):
                    at = row(i + r)
                    self.write(dk, at, j, self._added(dk, at, j, made) if c.delta else made)

        columns, depth = c.key_size, c.value_size
        c.product(CHUNK, columns, lambda i: depth, lambda i, d: c.values[i, d], change, start, finish, first)

    def _added(self, array: Array, row: Value, column: Value, vectors: Sequence[Value]) -> list[Value]:
        """The vectors and what the array has there."""
        places = [column + v * WIDTH for v in range(len(vectors))]
        return [
            self.k.load_vector(array, row, at, width=WIDTH, count=self.chunk.count(array, at)) + vector
            for at, vector in zip(places, vectors, strict=True)
        ]

    def retreat(self, change: Array, state: Array, first: Value, start: Value) -> None:
        """dh = exp(G_last) dh + q.T (exp(G) do) - k.T (exp(G) z), in place; adds to `last` what h, from row
        `start` of `state` on, passes on."""
        k, c = self.k, self.chunk
        parts = [(c.queries, self.dy), (c.keys, self.found)][: 1 + c.delta]
        for r in k.range(CHUNK):
            factor = k.splat(c.grown[r], WIDTH)
            for _, array in parts:
                for d in k.range(0, c.value_size, WIDTH):
                    k.store_vector(array, factor * k.load_vector(array, r, d, width=WIDTH), r, d)
        kept = k.splat(c.grown[CHUNK - 1], WIDTH)
        for j in k.range(0, c.value_size, c.width):
            for i in k.range(0, c.key_size, c.rows):
                tile: Tile = []
                for n in range(c.rows):
                    row = [x * kept for x in c.vectors_of(change, first + i + n, j)]
                    self.last.set(self.last.value + self.dot(row, c.vectors_of(state, start + i + n, j)))
                    tile.append([k.var(x) for x in row])
                for d in k.range(CHUNK):
                    for keys, array in parts:
                        add_products(k, tile, [keys[d, i + n] for n in range(c.rows)], c.vectors_of(array, d, j))
                for n, totals in enumerate(tile):
                    c.store(change, first + i + n, j, [x.value for x in totals])

    def write_gates(self, dg: Array, dbeta: Array | None, row: RowOf, active: Value) -> None:
        """Writes dbeta and dg, the sum of the gradients of G from each token on and of what tokens before it passed."""
        k, total = self.k, self.k.var(self.last.value)
        for r in k.range(CHUNK):
            found = self.passed[r]
            self.passed[r] = total.value
            total.set(total.value + found)
        total.set(k.const(0.0, f32))
        for back in k.range(CHUNK):
            r = CHUNK - 1 - back
            total.set(total.value + self.of_sums[r])
            with k.when(r < active):
                dg[row(r)] = total.value + self.passed[r]
                if dbeta is not None:
                    dbeta[row(r)] = self.of_rates[r]
