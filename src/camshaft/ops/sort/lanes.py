"""The kernels that sort a row per lane by a network: rows of the last axis, which are transposed, or columns of another axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import i64
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops.sort.keys import keys_of
from camshaft.ops.sort.network import BLOCK, Network, Words, transposed


@dataclass(frozen=True)
class Rows:
    """The rows of a program's lanes: row i is `first` + i of `n_rows`, times `inner`, plus `offset`. `columns` has a vector of
    the rows' words for each column; in between, the words of `width` columns for each row."""

    k: Tracer
    words: Words
    columns: Array
    width: int
    first: ir.Value
    n_rows: ir.Value
    inner: ir.Operand
    offset: ir.Value

    def load(self, x: Array, stop: ir.Value) -> None:
        """Loads the elements of the columns below `stop`. Lanes without a row have the last."""
        k = self.k
        for i in k.range(self.width):
            row = k.minimum(self.first + i, self.n_rows - 1) * self.inner + self.offset
            for column, at in self._tiles(stop):
                self.columns[column + i, k.lane()] = self.words.word(k, x[row, at], at)
        transpose(k, self.columns, stop, self.width)

    def store(self, stop: ir.Value, put: Callable[[ir.Value, ir.Value, ir.Value], None]) -> None:
        """Calls put(row, lanes' columns, words) for the columns below `stop`."""
        k = self.k
        transpose(k, self.columns, stop, self.width)
        for i in k.range(k.minimum(self.n_rows - self.first, self.width)):
            row = (self.first + i) * self.inner + self.offset
            for column, at in self._tiles(stop):
                put(row, at, self.columns[column + i, k.lane()])

    def _tiles(self, stop: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
        """The first of every `width` columns below `stop`, and that of every lane, under a mask where it is not below."""
        k = self.k
        whole = stop // self.width
        for tile in k.range(whole):
            yield tile * self.width, tile * self.width + k.lane()
        with k.when(whole * self.width + k.lane() < stop):
            yield whole * self.width, whole * self.width + k.lane()


def transpose(k: Tracer, columns: Array, stop: ir.Value, width: int) -> None:
    """Transposes every `width` vectors, for the columns below `stop`."""
    for tile in k.range((stop + (width - 1)) // width):
        places = [tile * width + i for i in range(width)]
        vectors = transposed(k, [columns[place, k.lane()] for place in places], width, apart=True)
        for place, vector in zip(places, vectors, strict=True):
            columns[place, k.lane()] = vector


def _ordered(k: Tracer, words: Words, columns: Array, dim: ir.Operand, levels: ir.Operand, times: ir.Operand) -> None:
    """Sorts every lane's column of `dim` words; the first BLOCK << levels of them are right where `times` is not 0."""
    n = k.var((k.number(dim, i64) + (BLOCK - 1)) // BLOCK * BLOCK, i64)
    for i in k.range(dim, n.value):
        columns[i, k.lane()] = k.const(words.greatest, words.dtype)
    Network(k, columns, n).sort(levels, times)


@kernel
def rows_by_lane(
    k: Tracer, x: Array, *results: Any, dtype: str, descending: bool, gives: str, rows: int, inner: int, dim: int,
    count: int, levels: int, times: int, room: int, width: int, outputs: int,
) -> None:  # fmt: skip
    # y[r, i] = the element of x[r] that i others precede, or its index, for row r of each lane
    outs, active = results[:outputs], results[outputs:]
    n_rows = active[0] if active else k.number(rows, i64)
    words = Words(keys_of(dtype, descending, "places" in gives), "places" in gives)
    columns = k.scratch(words.dtype, room, width)
    own = Rows(k, words, columns, width, k.program(0) * width, n_rows, inner, k.program(1))

    def put(row: ir.Value, column: ir.Value, word: ir.Value) -> None:
        if not words.indexed:
            outs[0][row, column] = words.bits(k, word)
            return
        place = words.index(word)
        outs[-1][row, column] = place.to(outs[-1].dtype)
        if len(outs) == 2:
            outs[0][row, column] = k.gather(x, row, place.to(i64))

    own.load(x, k.number(dim, i64))
    _ordered(k, words, columns, dim, levels, times)
    own.store(k.number(count, i64), put)


@kernel
def columns_by_lane(
    k: Tracer, x: Array, *outs: Array, dtype: str, descending: bool, gives: str, inner: int, dim: int, count: int,
    columns: int, levels: int, times: int, room: int, width: int, outputs: int,
) -> None:  # fmt: skip
    # y[r, i, c] = the element of x[r, :, c] that i others precede, or its index, for column c of each lane
    row, first = k.program(0) * inner + k.program(1), k.program(2) * width
    stop = k.minimum(first + width, columns)
    words = Words(keys_of(dtype, descending, "places" in gives), "places" in gives)
    found = k.scratch(words.dtype, room, width)
    for i in k.range(dim):
        for c in k.lanes(first, stop):
            found[i, c - first] = words.word(k, x[row, i, c], i)
    _ordered(k, words, found, dim, levels, times)
    for i in k.range(count):
        for c in k.lanes(first, stop):
            word = found[i, c - first]
            if not words.indexed:
                outs[0][row, i, c] = words.bits(k, word)
                continue
            place = words.index(word)
            outs[outputs - 1][row, i, c] = place.to(outs[outputs - 1].dtype)
            if outputs == 2:
                outs[0][row, i, c] = k.gather(x, row, place.to(i64), c)
