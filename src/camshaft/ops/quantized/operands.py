"""Rows of weights and tokens in a kernel of a quantized product.

Up to 16 rows of weights are one explicit vector of interleaved rows. More rows are the threads of a workgroup, a row each: 16
adjacent threads read one cache line together, as the vector does. The weights are packed/weights.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from camshaft.dtypes import DType, f32
from camshaft.lang import Array, Number, Tracer, Value, Variable
from camshaft.ops.quantized.packed.packing import ROWS

# Tokens whose chains of dot products are interleaved. In sequence, as LLVM schedules them for fixed shapes, Q4_1 and Q4_K reach
# 67 and 66 % of the int8 peak at k = 14336 on Zen 4, interleaved 71 and 69.
ABREAST = 4
# A tile takes as long for one token as for its 12 or 16. Of a prompt of at most MOST_FEW tokens FEW are computed at once: for 2
# and 4 tokens SmolLM2 took 0.78 of the time on an Emerald Rapids restricted to AVX-512, for 8 as long.
MOST_FEW, FEW = 8, 4


class Rows:
    """`count` of n rows, starting at row `count * part`. The default part is program(0)."""

    def __init__(self, k: Tracer, count: int, n: int, part: Value | None = None) -> None:
        self.k, self.count, self.n = k, count, n
        part = k.program(0) if part is None else part
        self.first = part * count
        self.row: Value | int
        if count > ROWS:
            mine = k.minimum(self.first + k.lane(), n - 1)
            self.tile, self.row = mine // ROWS, mine % ROWS
            return
        parts = ROWS // count
        self.tile, self.row = (part, 0) if parts == 1 else (part // parts, part % parts * count)

    def load(self, array: Array, *at: Number) -> Value:
        """Loads array[tile, at .., row] of every row."""
        if self.count > ROWS:
            return self.k.gather(array, self.tile, *at, self.row)
        return self.k.load_vector(array, self.tile, *at, self.row, width=self.count)

    def at(self, array: Array, index: Value) -> Value:
        """Loads array[index], the same element for every row."""
        return array[index]

    def spread(self, x: Number, dtype: DType = f32) -> Value:
        """The same value for every row."""
        if self.count > ROWS:
            return x if isinstance(x, Value) else self.k.const(x, dtype)
        return self.k.splat(x, self.count, dtype)

    def store(self, out: Array, total: Variable, token: Value) -> None:
        """Stores out[token, rows] = total for rows below n."""
        k = self.k
        if self.count > ROWS:
            row = self.first + k.lane()
            with k.when(row < self.n):
                out[token, row] = total.value
        elif self.n % self.count == 0:
            k.store_vector(out, total.value, token, self.first)
        else:
            k.store_vector(out, total.value, token, self.first, count=k.minimum(self.n - self.first, self.count))


class SharedRows(Rows):
    """`rows` rows from row `rows * program(0)` on, and `shares` threads for each: thread (share, row), neighbours in row."""

    def __init__(self, k: Tracer, rows: int, shares: int, n: int) -> None:
        super().__init__(k, rows, n)
        self.rows, self.count, self.own, self.share = rows, rows * shares, k.lane() % rows, k.lane() // rows
        mine = k.minimum(self.first + self.own, n - 1)
        self.tile, self.row = mine // ROWS, mine % ROWS

    def at(self, array: Array, index: Value) -> Value:
        """Loads array[index], an element for each share."""
        return self.k.gather(array, index)


def abreast(count: int) -> Iterator[range]:
    """Yields tokens 0 to count - 1 in groups of ABREAST."""
    for first in range(0, count, ABREAST):
        yield range(first, min(first + ABREAST, count))


def dot_words(
    k: Tracer, starts: Sequence[Value], words: Sequence[Value], acted: Callable[[int, int], Value]
) -> list[Value]:
    """Returns starts[i] + the dot products of code words with activation words acted(i, w), i32, interleaved over i."""
    dots = list(starts)
    for w, word in enumerate(words):
        dots = [k.dot4(dot, word, acted(i, w)) for i, dot in enumerate(dots)]
    return dots


class Consecutive:
    """`count` rows of activations from row `first` on, so that their operands are at fixed distances."""

    def __init__(self, first: Value, count: int) -> None:
        self.first = first
        self.places: list[Value] = [first + c for c in range(count)]

    def along(self, per_token: int, at: Value) -> list[Value]:
        """Indexes of element `at` of each row in a flat array with `per_token` elements per row: the first row's, computed in the
        loop, plus constants."""
        start = self.first * per_token + at
        return [start + c * per_token for c in range(len(self.places))]


class Tokens(Consecutive):
    """A program's tokens, consecutive within the bound, so that their operands are at fixed distances.

    The last tile ends at the bound. Its tokens that the previous tile also computes, and inactive tokens, are computed but not
    stored. (With each token clamped, 113 of 380 instructions of Q4_1's loop moved pointers.) `mine`: the first one, by default
    that of the program."""

    def __init__(
        self, k: Tracer, columns: int, bound: int, active: tuple[Value, ...], mine: Value | None = None
    ) -> None:
        self.mine, self.active = k.program(1) * columns if mine is None else mine, active
        self.overlaps = bound % columns != 0 or mine is not None
        first = k.minimum(self.mine, bound - columns) if self.overlaps else self.mine
        self.k = k
        super().__init__(first, columns)
        self.stored: list[Value | None] = [self.is_stored(place) for place in self.places]

    def is_stored(self, place: Value) -> Value | None:
        """Returns whether this program stores the token; None if it stores all."""
        stored = place < self.active[0] if self.active else None
        return _both(place >= self.mine, stored) if self.overlaps else stored

    def store(self, rows: Rows, out: Array, totals: list[Variable]) -> None:
        for total, token, condition in zip(totals, self.places, self.stored, strict=True):
            if condition is None:
                rows.store(out, total, token)
            else:
                with self.k.when(condition):
                    rows.store(out, total, token)


def in_tiles(k: Tracer, columns: int, bound: int, active: tuple[Value, ...], compute: Callable[[Tokens], None]) -> None:
    """Computes a program's tokens: `columns` at once, or FEW at a time where at most MOST_FEW of many are active."""
    tokens = Tokens(k, columns, bound, active)
    if not active or columns <= MOST_FEW or columns == bound:
        compute(tokens)
        return
    left = active[0] - tokens.mine
    with k.when(left > MOST_FEW):
        compute(tokens)
    with k.when(left <= MOST_FEW):
        for first in k.range(0, left, FEW):
            compute(Tokens(k, FEW, bound, active, tokens.mine + first))


def _both(condition: Value, other: Value | None) -> Value:
    return condition if other is None else condition & other
