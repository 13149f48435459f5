"""The kernel of rwkv6_gradient and rwkv7_gradient: a program has a head of a sequence, and some columns of its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from camshaft.lang import Array, Number, Tracer, Value, kernel
from camshaft.ops.recurrent.gradient.head_kernel import Head, Held, Region, regions
from camshaft.ops.recurrent.state_layout import WIDTH


@dataclass(frozen=True)
class DiagonalHead(Head):
    """The inputs r, w, k, v, rwkv7's `pair` of a and b, and dy; and the gradients of all but dy."""

    given: Sequence[Array]
    pair: Sequence[Array]
    dy: Array
    outs: Sequence[Array]

    def seen_by(self, row: Value, rows: Region, first: Number) -> list[Value]:
        """a.T S, the state S from row `first` of `rows` on; nothing in rwkv6."""
        if not self.pair:
            return []
        found = self.s.zeros()
        for d in self.s.k.range(self.keys):
            self.s.add(found, self.pair[0][row, d], self.s.get(rows, first + d))
        return [x.value for x in found]

    def advance(self, t: Value) -> None:
        (_, w, key, v), s, k, row = self.given, self.s, self.s.k, self.row_of(t)
        value, seen = s.load(v, row), self.seen_by(row, self.h, 0)
        for d in k.range(self.keys):
            decay, own = k.splat(k.exp(w[row, d]), WIDTH), k.splat(key[row, d], WIDTH)
            new = [k.fma(own, x, decay * y) for x, y in zip(value, s.get(self.h, d), strict=True)]
            if self.pair:
                to = k.splat(self.pair[1][row, d], WIDTH)
                new = [k.fma(to, x, y) for x, y in zip(seen, new, strict=True)]
            s.put(self.h, d, new)

    def backward(self, t: Value, old: Value) -> None:
        (r, w, key, v), outs, s, k = self.given, self.outs, self.s, self.s.k
        row = self.row_of(t)
        at = self.of_block + row
        value, change = s.load(v, row), s.load(self.dy, row)
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
            self._through(row, old, [x.value for x in into], at)

    def _through(self, row: Value, old: Value, through: Sequence[Value], at: Value) -> None:
        """da = S e, g += outer(a, e)."""
        s, k = self.s, self.s.k
        for d in k.range(self.keys):
            self.outs[4][at, d] = s.dot(s.get(self.held, old + d), through)
            by = k.splat(self.pair[0][row, d], WIDTH)
            s.put(self.g, d, [k.fma(by, x, y) for x, y in zip(through, s.get(self.g, d), strict=True)])


@kernel
def head_backward(
    k: Tracer,
    *arrays: Any,
    tokens: int,
    heads: int,
    key_size: int,
    value_size: int,
    rows: int,
    corrected: bool,
    wide: int,
) -> None:
    # r, w, k, v, (a, b,) state, dy, dstate; dr, dw, dk, dv, (da, db,) dfirst; starts (, work)
    more = 2 * corrected
    state, dy, dstate = arrays[4 + more : 7 + more]
    *outs, dfirst = arrays[7 + more : 12 + 2 * more]
    starts, *work = arrays[12 + 2 * more :]
    s = Held(k, value_size, wide)
    places = regions(s, key_size, work[0] if work else None)
    sizes = tokens, heads, key_size, rows
    head = DiagonalHead(s, *sizes, *places, arrays[:4], arrays[4 : 4 + more], dy, outs)
    head.sweep(state, dstate, dfirst, starts)
