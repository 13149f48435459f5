"""The columns of a state that one program computes, as explicit vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from camshaft.lang import Array, Number, Tracer, Value, Variable
from camshaft.ops import op as ops
from camshaft.ops.recurrent.state_layout import VECTORS, WIDTH

# Keeps the inverse length of a vector of zeros finite (transformers and fla).
NORM_EPS = 1e-6


def vectors_of(columns: int) -> int:
    """How many vectors of `columns` columns a program computes."""
    return VECTORS if columns % (VECTORS * WIDTH) == 0 else 1


def column_blocks(columns: int) -> ops.Cells:
    """The axis of the grid that has the blocks of the columns."""
    return ops.Cells(columns, WIDTH * vectors_of(columns))


@dataclass(frozen=True)
class Columns:
    """The columns of a program: those of its block of `n`, by axis 1 of the grid. No column needs another."""

    k: Tracer
    n: int

    @property
    def n_vectors(self) -> int:
        return vectors_of(self.n)

    @property
    def starts(self) -> list[Value]:
        first = self.k.program(1) * (self.n_vectors * WIDTH)
        return [first + i * WIDTH for i in range(self.n_vectors)]

    def count(self, at: Value) -> Value | None:
        """How many columns there are from `at` on; None if vectors are never partial."""
        return None if self.n % WIDTH == 0 else self.n - at

    def load(self, array: Array, row: Number, offset: Number = 0) -> list[Value]:
        """The program's columns of a row, which begin at column `offset`."""
        return [self.k.load_vector(array, row, at + offset, width=WIDTH, count=self.count(at)) for at in self.starts]

    def store(self, array: Array, row: Number, vectors: Sequence[Value], offset: Number = 0) -> None:
        """Stores the program's columns of a row."""
        for at, vector in zip(self.starts, vectors, strict=True):
            self.k.store_vector(array, vector, row, at + offset, count=self.count(at))

    def zeros(self) -> list[Variable]:
        """A variable of zeros per vector."""
        return [self.k.var(self.k.splat(0.0, WIDTH)) for _ in range(self.n_vectors)]

    def add(self, totals: Sequence[Variable], factor: Value, vectors: Sequence[Value]) -> None:
        """totals += factor vectors."""
        wide = self.k.splat(factor, WIDTH)
        for total, vector in zip(totals, vectors, strict=True):
            total.set(self.k.fma(wide, vector, total.value))


def inverse_length(k: Tracer, array: Array, row: Value, n: int, first: Number = 0) -> Value:
    """1 / sqrt(x . x + eps) of n columns of a row."""
    total = k.var(k.splat(0.0, WIDTH))
    for d in k.range(0, n, WIDTH):
        count = None if n % WIDTH == 0 else n - d
        x = k.load_vector(array, row, first + d, width=WIDTH, count=count)
        total.set(k.fma(x, x, total.value))
    return k.rsqrt(k.vector_sum(total.value) + NORM_EPS)
