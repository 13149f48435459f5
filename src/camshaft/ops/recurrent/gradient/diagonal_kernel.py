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


@kernel
def head_backward(
    k: Tracer, *arrays: Any, tokens: int, heads: int, key_size: int, value_size: int, rows: int, corrected: bool
) -> None:
    # r, w, k, v, (a, b,) state, dy, dstate; dr, dw, dk, dv, (da, db,) dfirst; starts
    more = 2 * corrected
    r, w, key, v = arrays[:4]
    state, dy, dstate = arrays[4 + more : 7 + more]
    outs, starts = arrays[7 + more : -1], arrays[-1]
    pair = arrays[4 : 4 + more]
    s = Held(k, value_size)
    index, columns = k.program(0), s.n_vectors * WIDTH
    n_chunks, of_block = -(-tokens // HEAD_STEPS), k.program(1) * rows
    h, g = k.scratch(f32, key_size, columns), k.scratch(f32, key_size, columns)
    held = k.scratch(f32, (HEAD_STEPS + 1) * key_size, columns)
    place = (index * (-(-value_size // columns)) + k.program(1)) * n_chunks * key_size

    def row_of(t: Value) -> Value:
        return (index // heads * tokens + t) * heads + index % heads

    def seen_by(row: Value, array: Array, first: Number) -> list[Value]:
        found = s.zeros()
        for d in k.range(key_size):
            s.add(found, pair[0][row, d], s.get(array, first + d))
        return [x.value for x in found]

    def advance(row: Value) -> None:
        value, seen = s.load(v, row), seen_by(row, h, 0) if corrected else []
        for d in k.range(key_size):
            decay, own = k.splat(k.exp(w[row, d]), WIDTH), k.splat(key[row, d], WIDTH)
            new = [k.fma(own, x, decay * y) for x, y in zip(value, s.get(h, d), strict=True)]
            if corrected:
                to = k.splat(pair[1][row, d], WIDTH)
                new = [k.fma(to, x, y) for x, y in zip(seen, new, strict=True)]
            s.put(h, d, new)

    for d in k.range(key_size):
        s.put(h, d, s.load(state, index * key_size + d))
        s.put(g, d, s.load(dstate, index * key_size + d))
    for chunk in k.range(n_chunks):
        for d in k.range(key_size):
            s.put(starts, place + chunk * key_size + d, s.get(h, d))
        for t in k.range(chunk * HEAD_STEPS, k.minimum((chunk + 1) * HEAD_STEPS, tokens)):
            advance(row_of(t))
    for back in k.range(n_chunks):
        chunk = n_chunks - 1 - back
        begin = chunk * HEAD_STEPS
        count = k.minimum(tokens - begin, HEAD_STEPS)
        for d in k.range(key_size):
            start = s.get(starts, place + chunk * key_size + d)
            s.put(h, d, start)
            s.put(held, d, start)
        for j in k.range(count):
            advance(row_of(begin + j))
            for d in k.range(key_size):
                s.put(held, (j + 1) * key_size + d, s.get(h, d))
        for later in k.range(count):
            j = count - 1 - later
            row = row_of(begin + j)
            value, change, old = s.load(v, row), s.load(dy, row), j * key_size
            seen = seen_by(row, held, old) if corrected else []
            of_value, into, at = s.zeros(), s.zeros(), of_block + row
            for d in k.range(key_size):
                of_state, before = s.get(g, d), s.get(held, old + d)
                query = k.splat(r[row, d], WIDTH)
                read = [k.fma(query, x, y) for x, y in zip(change, of_state, strict=True)]
                of_state = read if corrected else of_state
                outs[0][at, d] = s.dot(s.get(held, old + key_size + d) if corrected else before, change)
                outs[2][at, d] = s.dot(of_state, value)
                s.add(of_value, key[row, d], of_state)
                decay = k.splat(k.exp(w[row, d]), WIDTH)
                moved = [decay * x for x in of_state]
                outs[1][at, d] = s.dot(moved, before)
                if corrected:
                    outs[5][at, d] = s.dot(of_state, seen)
                    s.add(into, pair[1][row, d], of_state)
                s.put(g, d, moved if corrected else [k.fma(query, x, y) for x, y in zip(change, moved, strict=True)])
            s.store(outs[3], row, [x.value for x in of_value])
            if corrected:
                through = [x.value for x in into]
                for d in k.range(key_size):
                    outs[4][at, d] = s.dot(s.get(held, old + d), through)
                    by = k.splat(pair[0][row, d], WIDTH)
                    s.put(g, d, [k.fma(by, x, y) for x, y in zip(through, s.get(g, d), strict=True)])
    for d in k.range(key_size):
        s.store(outs[-1], index * key_size + d, s.get(g, d))
