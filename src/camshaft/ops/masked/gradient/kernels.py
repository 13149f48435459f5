"""The kernel of attention_gradient: tiles of queries times tiles of keys, whose weights are computed again from the log-sum-exp.

A program has one head of queries. For each tile of keys and of queries it computes P and dS, a register block of rows times
vectors of keys at a time, then adds dS K to dq, dS^T Q to dk and P^T dy to dv, whose lanes are the columns of a head. Elements of
the left factor are broadcast, so only K and V are turned, once for all heads of a group (FlashAttention-2, Dao, 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import f32, i32, i64
from camshaft.lang import Array, Tracer, Value, add_products, first_elements, kernel, power_of_two, tile_of
from camshaft.ops.attention.paged import LOG2_E, WIDTH, columns_of, inside


@dataclass(frozen=True)
class Span:
    """Which keys the query at a position sees, as a half-open range; options are off at 0."""

    causal: bool
    window: int
    chunk: int
    offset: int
    keys: int

    def of(self, k: Tracer, query: Value) -> tuple[Value, Value]:
        """The first key that a query sees, and the end of those that it sees."""
        position, first, end = query + self.offset, k.const(0, i64), k.const(self.keys, i64)
        if self.window:
            first = k.maximum(first, position - (self.window - 1))
        if self.chunk:
            first = k.maximum(first, position // self.chunk * self.chunk)
        if self.causal:
            end = k.minimum(end, position + 1)
        if self.window and not self.causal:
            end = k.minimum(end, position + self.window)
        if self.chunk and not self.causal:
            end = k.minimum(end, (position // self.chunk + 1) * self.chunk)
        return first, end

    def queries(self, k: Tracer, first: Value, n_keys: int, n_queries: int) -> tuple[Value, Value]:
        """The queries, as a range, that may see any of n_keys keys from `first` on."""
        zero, most, last = k.const(0, i64), k.const(n_queries, i64), first + (n_keys - 1)
        start, end = zero, most
        if self.causal:
            start = k.maximum(start, first - self.offset)
        if self.window:
            end = k.minimum(end, last + (self.window - self.offset))
        if self.chunk:
            end = k.minimum(end, (last // self.chunk + 1) * self.chunk - self.offset)
        return start, end


def mask_place(k: Tracer, mask: Array, head: Value, heads: int, query: Value) -> tuple[Value, Value, Value]:
    """The indices of the mask's row of a head, counted over all batches, and a query; an axis of 1 is broadcast."""
    zero = k.const(0, i64)
    batches, of_heads, queries = (int(n) > 1 for n in mask.shape[:3])
    return head // heads if batches else zero, head % heads if of_heads else zero, query if queries else zero


@dataclass(frozen=True, kw_only=True)
class Part:
    """The operands of one program, and its tile: `rows` queries by `columns` keys, in register blocks of `block` rows by
    `vectors` vectors. `p` and `ds` are scratch [rows, columns]; `head` counts heads of queries, `kv_head` those of keys, of all
    batches."""

    k: Tracer
    q: Array
    keys: Array
    turned_keys: Array
    turned_values: Array
    dy: Array
    sums: Array
    delta: Array
    mask: Array | None
    p: Array
    ds: Array
    head: Value
    kv_head: Value
    heads: int
    span: Span
    scale: float
    rows: int
    columns: int
    block: int
    vectors: int

    @property
    def n_queries(self) -> int:
        return int(self.q.shape[1])

    def weigh(self, row: Value, query: Value, base: Value) -> None:
        """Computes P and dS of a block's rows, `row` in scratch, for the tile of keys at `base`; 0 where a key is not seen."""
        k, step = self.k, self.vectors * WIDTH
        last = k.minimum(query + (self.block - 1), self.n_queries - 1)
        end = self.span.of(k, last)[1]
        for start in k.range(0, self.columns, step):
            with k.when(base + start < end):
                self._weigh_vectors(row, query, base, start)
            with k.when(base + start >= end):
                for r in range(self.block):
                    for at in range(0, step, WIDTH):
                        for part in (self.p, self.ds):
                            k.store_vector(part, k.splat(0.0, WIDTH), row + r, start + at)

    def _weigh_vectors(self, row: Value, query: Value, base: Value, start: Value) -> None:
        k, places = self.k, [(i, start + i * WIDTH) for i in range(self.vectors)]
        sources = [k.minimum(query + r, self.n_queries - 1) for r in range(self.block)]
        scores = self._products(self.q, self.turned_keys, sources, base + start)
        for r, source in enumerate(sources):
            first, end = self.span.of(k, source)
            end = k.select(query + r < self.n_queries, end, k.const(0, i64))
            least = k.splat(self.sums[self.head, source] * -LOG2_E, WIDTH)
            for i, at in places:
                seen = self._seen(source, base + at, first, end)
                power = power_of_two(k, k.fma(scores[r][i].value, k.splat(self.scale * LOG2_E, WIDTH), least))
                k.store_vector(self.p, k.select(seen, power, 0.0), row + r, at)
        products = self._products(self.dy, self.turned_values, sources, base + start)
        for r, source in enumerate(sources):
            delta = self.delta[self.head, source]
            for i, at in places:
                p = k.load_vector(self.p, row + r, at, width=WIDTH)
                ds = p * (products[r][i].value - delta) * self.scale
                k.store_vector(self.ds, k.select(p == 0.0, 0.0, ds), row + r, at)  # ds may be NaN past the last key

    def _products(self, left: Array, right: Array, sources: Sequence[Value], key: Value) -> list[list[Any]]:
        """Rows of `left` times vectors of keys of `right`, which is turned."""
        k, sums = self.k, tile_of(self.k, self.block, self.vectors, WIDTH)
        for d in k.range(int(left.shape[2])):
            found = [k.load_vector(right, self.kv_head, d, key + i * WIDTH, width=WIDTH) for i in range(self.vectors)]
            add_products(k, sums, [left[self.head, source, d] for source in sources], found)
        return sums

    def _seen(self, source: Value, key: Value, first: Value, end: Value) -> Value:
        """Which of 16 keys from `key` on a query sees."""
        k, span = self.k, self.span
        seen = first_elements(k, end - key, WIDTH)
        if span.window or span.chunk:
            seen = seen & (k.iota(WIDTH, i32) >= k.splat((first - key).to(i32), WIDTH, i32))
        if self.mask is not None:
            keys = int(self.mask.shape[3])
            at = mask_place(k, self.mask, self.head, self.heads, source)
            count = k.maximum(k.minimum(keys - key, WIDTH), 0)
            seen = seen & k.load_vector(self.mask, *at, k.minimum(key, keys - 1), width=WIDTH, count=count)
        return seen

    def add_rows(self, out: Array, row: Value, query: Value, base: Value) -> None:
        """dq += dS K for a block's rows."""
        k, size, n = self.k, int(out.shape[2]), self.n_queries
        last = self.span.of(k, k.minimum(query + (self.block - 1), n - 1))[1]
        count = k.maximum(k.minimum(last - base, self.columns), 0)
        targets = [query + r for r in range(self.block)]
        for columns in self._steps(size):
            sums = self._held(out, targets, n, columns)
            for j in k.range(count):
                found = [
                    k.load_vector(self.keys, self.kv_head, base + j, d, width=WIDTH, count=inside(size, d))
                    for d in columns
                ]
                add_products(k, sums, [self.ds[row + r, j] for r in range(self.block)], found)
            self._keep(out, targets, n, columns, sums)

    def add_keys(self, out: Array, weights: Array, right: Array, key: Value, base: Value, first: Value) -> None:
        """dk += dS^T Q, or dv += P^T dy, for a block of keys from `key` of the tile on, over the rows of the tile at `first`."""
        k, size, n = self.k, int(out.shape[2]), self.span.keys
        start, end = self.span.queries(k, base + key, self.block, self.n_queries)
        start, end = k.maximum(start - first, 0), k.minimum(end - first, self.rows)
        targets = [base + key + r for r in range(self.block)]
        for columns in self._steps(size):
            sums = self._held(out, targets, n, columns)
            for r in k.range(start, end):
                found = [
                    k.load_vector(right, self.head, first + r, d, width=WIDTH, count=inside(size, d)) for d in columns
                ]
                add_products(k, sums, [weights[r, key + j] for j in range(self.block)], found)
            self._keep(out, targets, n, columns, sums)

    def _steps(self, size: int) -> list[list[int]]:
        """The columns of a head's vectors, as many at a time as a register block has."""
        starts = list(columns_of(size))
        return [starts[i : i + self.vectors] for i in range(0, len(starts), self.vectors)]

    def _held(self, out: Array, targets: Sequence[Value], n: int, columns: list[int]) -> list[list[Any]]:
        """The sums so far of rows of `out`, of rows past the last those of the last."""
        k, size = self.k, int(out.shape[2])
        places = [k.minimum(target, n - 1) for target in targets]
        return [
            [k.var(k.load_vector(out, self.head, at, d, width=WIDTH, count=inside(size, d))) for d in columns]
            for at in places
        ]

    def _keep(self, out: Array, targets: Sequence[Value], n: int, columns: list[int], sums: list[list[Any]]) -> None:
        k, size = self.k, int(out.shape[2])
        for target, line in zip(targets, sums, strict=True):
            with k.when(target < n):
                for d, total in zip(columns, line, strict=True):
                    k.store_vector(out, total.value, self.head, target, d, count=inside(size, d))


def cleared(k: Tracer, out: Array, head: Value) -> None:
    """Sets a head of `out` to 0."""
    _, n, size = (int(d) for d in out.shape)
    for row in k.range(n):
        for d in columns_of(size):
            k.store_vector(out, k.splat(0.0, WIDTH), head, row, d, count=inside(size, d))


@kernel
def one_head_per_program(
    k: Tracer, *arrays: Array, heads: int, group: int, masked: bool, causal: bool, window: int, chunk: int, offset: int,
    scale: float, rows: int, columns: int, block: int, vectors: int,
) -> None:  # fmt: skip
    # P = exp(scale q K^T - lse); dS = scale P (dy V^T - delta); dq = dS K; dk = dS^T q; dv = P^T dy
    q, keys, turned_keys, turned_values, dy, sums, delta, *rest = arrays
    mask = rest[0] if masked else None
    dq, dk, dv = rest[masked:]
    head = k.program(0)
    span = Span(causal, window, chunk, offset, int(keys.shape[1]))
    part = Part(
        k=k, q=q, keys=keys, turned_keys=turned_keys, turned_values=turned_values, dy=dy, sums=sums, delta=delta, mask=mask,
        p=k.scratch(f32, rows, columns), ds=k.scratch(f32, rows, columns), head=head, kv_head=head // group, heads=heads,
        span=span, scale=scale, rows=rows, columns=columns, block=block, vectors=vectors,
    )  # fmt: skip
    for out in (dq, dk, dv):
        cleared(k, out, head)
    for base in k.range(0, span.keys, columns):
        start, end = span.queries(k, base, columns, part.n_queries)
        for first in k.range(start, end, rows):
            n_rows = k.minimum(end - first, rows)
            for row in k.range(0, n_rows, block):
                part.weigh(row, first + row, base)
                part.add_rows(dq, row, first + row, base)
            for key in k.range(0, k.minimum(span.keys - base, columns), block):
                part.add_keys(dk, part.ds, q, key, base, first)
                part.add_keys(dv, part.p, dy, key, base, first)
