"""Shared parts of the kernels that compute gradients of recurrences token by token, one head per program.

A program has a head of a sequence, and some columns of its values. A sweep forward keeps the state before each chunk of tokens;
the sweep backward recomputes those of a chunk and holds them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from camshaft.dtypes import f32
from camshaft.lang import Array, Number, Value
from camshaft.ops.recurrent.columns import Columns
from camshaft.ops.recurrent.gradient.parts import HEAD_STEPS
from camshaft.ops.recurrent.state_layout import WIDTH


@dataclass(frozen=True)
class Region:
    """The rows of an array from `first` on."""

    array: Array
    first: Number = 0

    def at(self, row: Number) -> Region:
        """The rows from that one on."""
        return Region(self.array, row + self.first)


@dataclass(frozen=True)
class Held(Columns):
    """The columns of a program in `wide` vectors, in scratch whose rows have these alone."""

    wide: int

    @property
    def n_vectors(self) -> int:
        return self.wide

    def get(self, rows: Region, row: Number) -> list[Value]:
        """The columns of a row of a scratch."""
        place = rows.at(row).first
        return [self.k.load_vector(rows.array, place, i * WIDTH, width=WIDTH) for i in range(self.n_vectors)]

    def put(self, rows: Region, row: Number, vectors: Sequence[Value]) -> None:
        """Stores the columns of a row of a scratch."""
        place = rows.at(row).first
        for i, vector in enumerate(vectors):
            self.k.store_vector(rows.array, vector, place, i * WIDTH)

    def dot(self, left: Sequence[Value], right: Sequence[Value]) -> Value:
        """The sum over the columns of the products."""
        total = left[0] * right[0]
        for x, y in zip(left[1:], right[1:], strict=True):
            total = self.k.fma(x, y, total)
        return self.k.vector_sum(total)


def n_blocks(values: int, wide: int) -> int:
    """How many programs of `wide` vectors have the columns of one head."""
    return -(-values // (wide * WIDTH))


def n_rows(keys: int) -> int:
    """The rows of a program's scratch: the state, its gradient, and the states that it holds."""
    return (HEAD_STEPS + 3) * keys


@dataclass(frozen=True)
class Head:
    """A program's state h, its gradient g, and the states that a chunk held. `rows` is the number of all heads' tokens: rows of
    parts of sums over columns are `of_block` further on."""

    s: Held
    tokens: int
    heads: int
    keys: int
    rows: int
    h: Region
    g: Region
    held: Region

    @property
    def n_blocks(self) -> int:
        """How many programs have columns of one head."""
        return n_blocks(self.s.n, self.s.wide)

    @property
    def of_block(self) -> Value:
        return self.s.k.program(1) * self.rows

    def token(self, t: Value) -> Value:
        """The number of token t of the program's sequence among those of all."""
        return self.s.k.program(0) // self.heads * self.tokens + t

    def row_of(self, t: Value) -> Value:
        """The row of token t in arrays of tokens and heads."""
        return self.token(t) * self.heads + self.s.k.program(0) % self.heads

    @abstractmethod
    def advance(self, t: Value) -> None:
        """h after token t."""

    @abstractmethod
    def backward(self, t: Value, old: Value) -> None:
        """The gradients of token t, and g before it; from row `old` of `held` on are the states before and after it."""

    def sweep(self, state: Array, dstate: Array, dfirst: Array, starts: Array) -> None:
        """Both sweeps. `starts` has the state before each chunk."""
        s, k = self.s, self.s.k
        index, n_chunks = k.program(0), -(-self.tokens // HEAD_STEPS)
        kept = Region(starts, (index * self.n_blocks + k.program(1)) * n_chunks * self.keys)
        for d in k.range(self.keys):
            s.put(self.h, d, s.load(state, index * self.keys + d))
            s.put(self.g, d, s.load(dstate, index * self.keys + d))
        for chunk in k.range(n_chunks):
            self._copy(self.h, kept.at(chunk * self.keys))
            for t in k.range(chunk * HEAD_STEPS, k.minimum((chunk + 1) * HEAD_STEPS, self.tokens)):
                self.advance(t)
        for back in k.range(n_chunks):
            chunk = n_chunks - 1 - back
            begin = chunk * HEAD_STEPS
            count = k.minimum(self.tokens - begin, HEAD_STEPS)
            self._hold(kept.at(chunk * self.keys), begin, count)
            for later in k.range(count):
                j = count - 1 - later
                self.backward(begin + j, j * self.keys)
        for d in k.range(self.keys):
            s.store(dfirst, index * self.keys + d, s.get(self.g, d))

    def _copy(self, source: Region, to: Region) -> None:
        for d in self.s.k.range(self.keys):
            self.s.put(to, d, self.s.get(source, d))

    def _hold(self, start: Region, begin: Value, count: Value) -> None:
        """Computes a chunk's states once more, and holds them."""
        self._copy(start, self.h)
        self._copy(start, self.held)
        for j in self.s.k.range(count):
            self.advance(begin + j)
            self._copy(self.h, self.held.at((j + 1) * self.keys))


def regions(s: Held, keys: int, work: Array | None) -> tuple[Region, Region, Region]:
    """h, g and held of a program: in `work`, which has rows for each program, or in scratch of the program."""
    k = s.k
    if work is None:
        sizes = keys, keys, (HEAD_STEPS + 1) * keys
        h, g, held = (Region(k.scratch(f32, n, s.wide * WIDTH)) for n in sizes)
        return h, g, held
    first = (k.program(0) * n_blocks(s.n, s.wide) + k.program(1)) * n_rows(keys)
    return Region(work, first), Region(work, first + keys), Region(work, first + 2 * keys)
