"""The kernel of rwkv6_gradient and rwkv7_gradient: a program has a head of a sequence, and some columns of its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import f32
from camshaft.lang import Array, Number, Tracer, Value, kernel
from camshaft.ops.recurrent.columns import Columns
from camshaft.ops.recurrent.gradient.parts import HEAD_STEPS
from camshaft.ops.recurrent.widths import WIDTH


@dataclass(frozen=True)
class Held(Columns):
    """The columns of a program, in scratch whose rows have these alone."""

    def get(self, array: Array, row: Number) -> list[Value]:
        """The columns of a row of a scratch."""
        return [self.k.load_vector(array, row, i * WIDTH, width=WIDTH) for i in range(self.n_vectors)]

    def put(self, array: Array, row: Number, vectors: Sequence[Value]) -> None:
        """Stores the columns of a row of a scratch."""
        for i, vector in enumerate(vectors):
            self.k.store_vector(array, vector, row, i * WIDTH)

    def dot(self, left: Sequence[Value], right: Sequence[Value]) -> Value:
        """The sum over the columns of the products."""
        total = left[0] * right[0]
        for x, y in zip(left[1:], right[1:], strict=True):
            total = self.k.fma(x, y, total)
        return self.k.vector_sum(total)


@dataclass(frozen=True)
class Head:
    """The inputs of a program's head, r, w, k, v and rwkv7's `pair` of a and b; its scratch: the state h, its gradient g, and the
    states that a chunk held."""

    s: Held
    given: Sequence[Array]
    pair: Sequence[Array]
    tokens: int
    heads: int
    keys: int
    h: Array
    g: Array
    held: Array

    def row_of(self, t: Value) -> Value:
        """The row of token t in arrays of tokens."""
        index = self.s.k.program(0)
        return (index // self.heads * self.tokens + t) * self.heads + index % self.heads

    def seen_by(self, row: Value, array: Array, first: Number) -> list[Value]:
        """a.T S, the state S from row `first` of `array` on; nothing in rwkv6."""
        if not self.pair:
            return []
        found = self.s.zeros()
        for d in self.s.k.range(self.keys):
            self.s.add(found, self.pair[0][row, d], self.s.get(array, first + d))
        return [x.value for x in found]

    def advance(self, row: Value) -> None:
        """h after the token of that row."""
        (_, w, key, v), s, k = self.given, self.s, self.s.k
        value, seen = s.load(v, row), self.seen_by(row, self.h, 0)
        for d in k.range(self.keys):
            decay, own = k.splat(k.exp(w[row, d]), WIDTH), k.splat(key[row, d], WIDTH)
            new = [k.fma(own, x, decay * y) for x, y in zip(value, s.get(self.h, d), strict=True)]
            if self.pair:
                to = k.splat(self.pair[1][row, d], WIDTH)
                new = [k.fma(to, x, y) for x, y in zip(seen, new, strict=True)]
            s.put(self.h, d, new)

    def hold(self, starts: Array, place: Value, begin: Value, count: Value) -> None:
        """Computes a chunk's states once more, from row `place` of `starts`, and holds them."""
        s, k = self.s, self.s.k
        for d in k.range(self.keys):
            start = s.get(starts, place + d)
            s.put(self.h, d, start)
            s.put(self.held, d, start)
        for j in k.range(count):
            self.advance(self.row_of(begin + j))
            for d in k.range(self.keys):
                s.put(self.held, (j + 1) * self.keys + d, s.get(self.h, d))

    def backward(self, row: Value, old: Value, dy: Array, outs: Sequence[Array], at: Value) -> None:
        """A token's gradients: that of v to its row, others to row `at`; `old` is the row of the state before it."""
        (r, w, key, v), s, k = self.given, self.s, self.s.k
        value, change = s.load(v, row), s.load(dy, row)
        seen = self.seen_by(row, self.held, old)
        of_value, into = s.zeros(), s.zeros()
        for d in k.range(self.keys):
            of_state, before = s.get(self.g, d), s.get(self.held, old + d)
            query = k.splat(r[row, d], WIDTH)
            read = [k.fma(query, x, y) for x, y in zip(change, of_state, strict=True)]
            of_state = read if self.pair else of_state
            outs[0][at, d] = s.dot(s.get(self.held, old + self.keys + d) if self.pair else before, change)
            outs[2][at, d] = s.dot(of_state, value)
            s.add(of_value, key[row, d], of_state)
            decay = k.splat(k.exp(w[row, d]), WIDTH)
            moved = [decay * x for x in of_state]
            outs[1][at, d] = s.dot(moved, before)
            if self.pair:
                outs[5][at, d] = s.dot(of_state, seen)
                s.add(into, self.pair[1][row, d], of_state)
            s.put(self.g, d, moved if self.pair else [k.fma(query, x, y) for x, y in zip(change, moved, strict=True)])
        s.store(outs[3], row, [x.value for x in of_value])
        if self.pair:
            self._through(row, old, [x.value for x in into], outs[4], at)

    def _through(self, row: Value, old: Value, through: Sequence[Value], da: Array, at: Value) -> None:
        """da = S e, g += outer(a, e)."""
        s, k = self.s, self.s.k
        for d in k.range(self.keys):
            da[at, d] = s.dot(s.get(self.held, old + d), through)
            by = k.splat(self.pair[0][row, d], WIDTH)
            s.put(self.g, d, [k.fma(by, x, y) for x, y in zip(through, s.get(self.g, d), strict=True)])


@kernel
def head_backward(
    k: Tracer, *arrays: Any, tokens: int, heads: int, key_size: int, value_size: int, rows: int, corrected: bool
) -> None:
    # r, w, k, v, (a, b,) state, dy, dstate; dr, dw, dk, dv, (da, db,) dfirst; starts
    more = 2 * corrected
    state, dy, dstate = arrays[4 + more : 7 + more]
    outs, starts = arrays[7 + more : -1], arrays[-1]
    s = Held(k, value_size)
    index, columns = k.program(0), s.n_vectors * WIDTH
    n_chunks, of_block = -(-tokens // HEAD_STEPS), k.program(1) * rows
    h, g = k.scratch(f32, key_size, columns), k.scratch(f32, key_size, columns)
    held = k.scratch(f32, (HEAD_STEPS + 1) * key_size, columns)
    head = Head(s, arrays[:4], arrays[4 : 4 + more], tokens, heads, key_size, h, g, held)
    place = (index * (-(-value_size // columns)) + k.program(1)) * n_chunks * key_size
    for d in k.range(key_size):
        s.put(h, d, s.load(state, index * key_size + d))
        s.put(g, d, s.load(dstate, index * key_size + d))
    for chunk in k.range(n_chunks):
        for d in k.range(key_size):
            s.put(starts, place + chunk * key_size + d, s.get(h, d))
        for t in k.range(chunk * HEAD_STEPS, k.minimum((chunk + 1) * HEAD_STEPS, tokens)):
            head.advance(head.row_of(t))
    for back in k.range(n_chunks):
        chunk = n_chunks - 1 - back
        begin = chunk * HEAD_STEPS
        count = k.minimum(tokens - begin, HEAD_STEPS)
        head.hold(starts, place + chunk * key_size, begin, count)
        for later in k.range(count):
            j = count - 1 - later
            row = head.row_of(begin + j)
            head.backward(row, j * key_size, dy, outs, of_block + row)
    for d in k.range(key_size):
        s.store(outs[-1], index * key_size + d, s.get(g, d))
