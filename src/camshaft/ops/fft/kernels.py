"""Kernels of Fourier transforms of rows: a pass (factors.py), and what real rows need before or after their passes.

Rows of callers are [rows, width] of real numbers; complex ones are pairs. Between passes, real and imaginary parts are apart:
[rows, 2, n]. An inverse transform is one with real and imaginary parts exchanged at both ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import TypeAlias

import numpy as np

from camshaft.dtypes import DTYPES, f32, u32, u64
from camshaft.lang import Array, Tracer, Value, kernel

Complex: TypeAlias = tuple[Value, Value]
# The pitch of a tile is odd: rows at a distance of a power of two would share a cache set.
TILE, PITCH = 32, 33


@kernel
def fft_pass(
    k: Tracer,
    x: Array,
    factors: Array,
    out: Array,
    *,
    radix: int,
    m: int,
    step: int,
    table: int,
    turn: int,
    across: int,
    width: int,
    kind: str,
    made: str,
    limit: int,
    inverse: bool,
    scale: float,
    before: int,
    after: int,
    real: int,
) -> None:
    # y[q + step (radix p + j)] = w^(p j) sum_i x[q + step (p + m i)] exp(-2 pi sqrt(-1) i j / radix)
    row, p = k.program(0), k.program(1)
    source = _Source(k, x, row, width, kind, inverse)
    for q in k.lanes(step):
        values = []
        for i in range(radix):
            place = (p + m * i) if m > 1 else k.number(i, p.dtype)
            at = q + place * step
            if across:
                value = source.at(q * across + place)
                value = times(k, value, (factors[0, at + turn], factors[1, at + turn]))
            else:
                value = source.at(at)
            if before:
                value = times(k, value, _factor(factors, at + before, inverse))
            values.append(value)
        for j, value in enumerate(transformed(k, values)):
            if j and m > 1:
                place = p * (radix - 1) + (table + j - 1)
                value = times(k, value, (factors[0, place], factors[1, place]))
            if scale != 1.0:
                value = value[0] * scale, value[1] * scale
            if after:
                place = q + (p * radix + j) * step + after
                value = times(k, value, _factor(factors, place, inverse))
            _store(k, out, row, q + (p * radix + j) * step, value, made, limit, inverse, real)


def _factor(factors: Array, place: Value, inverse: bool) -> Complex:
    """A factor of what is read or stored; where real and imaginary parts are exchanged, its conjugate."""
    imaginary = factors[1, place]
    return factors[0, place], -imaginary if inverse else imaginary


class _Source:
    """The row that a pass reads: `kind` 'parts', of [rows, 2, n]; 'pairs' or 'real' of [rows, width], where what is beyond the
    row is 0; or 'words', pairs of f32 as u64 [rows, n]."""

    def __init__(self, k: Tracer, x: Array, row: Value, width: int, kind: str, inverse: bool) -> None:
        self.k, self.x, self.row, self.width, self.kind, self.inverse = k, x, row, width, kind, inverse

    def at(self, i: Value) -> Complex:
        """Element i, which varies by lane."""
        if self.kind == "parts":
            return self._of_parts(i)
        if self.kind == "words":
            word = self.x[self.row, i]
            low, high = (self.k.bitcast(part.to(u32), f32) for part in (word, word >> 32))
            return (high, low) if self.inverse else (low, high)
        if self.kind == "real":
            pair = self._number(i), self.k.const(0.0, self.x.dtype)
        else:
            pair = self._number(i * 2), self._number(i * 2 + 1)
        return (pair[1], pair[0]) if self.inverse else pair

    def _of_parts(self, i: Value) -> Complex:
        return self.k.gather(self.x, self.row, 0, i), self.k.gather(self.x, self.row, 1, i)

    def _number(self, i: Value) -> Value:
        inside = self.k.minimum(i, self.width - 1)
        return self.k.select(i < self.width, self.k.gather(self.x, self.row, inside), 0.0)


def _store(
    k: Tracer, out: Array, row: Value, i: Value, value: Complex, made: str, limit: int, inverse: bool, real_n: int
) -> None:
    """Stores element i: as `made` says in 'parts', or as 'pairs', 'words' or 'real' numbers of the row's first `limit`
    elements. The spectrum of `real_n` real numbers is real at 0 and real_n / 2, also where one is NaN or infinity."""
    if made == "parts":
        out[row, 0, i], out[row, 1, i] = value
        return
    real, imaginary = (value[1], value[0]) if inverse else value
    if real_n:
        imaginary = k.select((i < 1) | (i == real_n // 2) if real_n % 2 == 0 else i < 1, 0.0, imaginary)
    if made == "words":
        out[row, i] = as_word(k, real, imaginary)
        return
    with k.when(i < limit):
        if made == "real":
            k.scatter(out, real, row, i)
        else:
            k.scatter(out, real, row, i * 2)
            k.scatter(out, imaginary, row, i * 2 + 1)


def as_word(k: Tracer, real: Value, imaginary: Value) -> Value:
    """Two f32 as one u64."""
    low, high = (k.bitcast(part, u32).to(u64) for part in (real, imaginary))
    return low | (high << 32)


@kernel
def transposed_columns(
    k: Tracer, x: Array, factors: Array, out: Array, *, rows: int, columns: int, turn: int, dtype: str
) -> None:
    # y[c, r] = x[r, c] factor[c, r], TILE x TILE at a time through scratch, so that loads and stores are contiguous
    at, row, column = k.program(0), k.program(1) * TILE, k.program(2) * TILE
    last_row, last_column = k.minimum(row + TILE, rows), k.minimum(column + TILE, columns)
    tile = k.scratch(DTYPES[dtype], 2, TILE * PITCH)
    for r in k.range(row, last_row):
        for c in k.lanes(column, last_column):
            for part in (0, 1):
                tile[part, (r - row) * PITCH + (c - column)] = x[at, part, r * columns + c]
    k.barrier()
    for c in k.range(column, last_column):
        for r in k.lanes(row, last_row):
            place, to = (r - row) * PITCH + (c - column), c * rows + r
            value = k.gather(tile, 0, place), k.gather(tile, 1, place)
            out[at, 0, to], out[at, 1, to] = times(k, value, (factors[0, to + turn], factors[1, to + turn]))


@kernel
def real_spectrum(
    k: Tracer, z: Array, factors: Array, out: Array, *, n: int, turn: int, block: int, scale: float, made: str
) -> None:
    # y[f] = (z[f] + conj z[n - f]) / 2 - sqrt(-1) w^f (z[f] - conj z[n - f]) / 2 for f <= n, z[n] = z[0]
    row, first = k.program(0), k.program(1) * block
    with k.when(k.program(1) < 1):
        end = (z[row, 0, 0] - z[row, 1, 0]) * scale, k.const(0.0, z.dtype)
        if made == "words":
            out[row, n] = as_word(k, *end)
        else:
            out[row, 2 * n], out[row, 2 * n + 1] = end
    for f in k.lanes(first, k.minimum(first + block, n)):
        far = k.select(f > 0, n - f, 0)
        a, b = (z[row, 0, f], z[row, 1, f]), (k.gather(z, row, 0, far), k.gather(z, row, 1, far))
        even = (a[0] + b[0]) * (0.5 * scale), (a[1] - b[1]) * (0.5 * scale)
        odd = (a[1] + b[1]) * (0.5 * scale), (b[0] - a[0]) * (0.5 * scale)
        turned = times(k, odd, (factors[0, f + turn], factors[1, f + turn]))
        real, imaginary = even[0] + turned[0], k.select(f > 0, even[1] + turned[1], 0.0)
        if made == "words":
            out[row, f] = as_word(k, real, imaginary)
            continue
        k.scatter(out, real, row, f * 2)
        k.scatter(out, imaginary, row, f * 2 + 1)


@kernel
def half_spectrum(
    k: Tracer, x: Array, factors: Array, out: Array, *, n: int, width: int, turn: int, block: int
) -> None:
    # z[f] = (x[f] + conj x[n - f]) + sqrt(-1) conj(w^f) (x[f] - conj x[n - f]) for f < n, parts exchanged
    row, first = k.program(0), k.program(1) * block
    source = _Source(k, x, row, width, "pairs", False)
    for f in k.lanes(first, k.minimum(first + block, n)):
        a, b = source.at(f), source.at(n - f)
        ends = f < 1  # the imaginary parts of the first and the last count as 0
        a, b = ((v[0], k.select(ends, 0.0, v[1])) for v in (a, b))
        even, odd = (a[0] + b[0], a[1] - b[1]), (a[0] - b[0], a[1] + b[1])
        turned = times(k, odd, (factors[0, f + turn], -factors[1, f + turn]))
        out[row, 1, f], out[row, 0, f] = even[0] - turned[1], even[1] + turned[0]


# --- complex arithmetic ------------------------------------------------------------------------------------------------
def times(k: Tracer, a: Complex, b: Complex) -> Complex:
    """a b."""
    return k.fma(a[0], b[0], -(a[1] * b[1])), k.fma(a[0], b[1], a[1] * b[0])


def _plus(a: Complex, b: Complex) -> Complex:
    return a[0] + b[0], a[1] + b[1]


def _minus(a: Complex, b: Complex) -> Complex:
    return a[0] - b[0], a[1] - b[1]


def _times_root(k: Tracer, a: Complex, i: int, n: int) -> Complex:
    """a exp(-2 pi sqrt(-1) i / n), for the eighths of a turn without needless products."""
    quarter, rest = divmod(8 * i, 2 * n)
    if rest == 0:
        return [a, (a[1], -a[0]), (-a[0], -a[1]), (-a[1], a[0])][quarter % 4]
    if 8 * i % n == 0:
        half = float(np.sqrt(0.5))
        a = (a[0] + a[1]) * half, (a[1] - a[0]) * half
        return _times_root(k, a, quarter % 4, 4)
    c, s = float(np.cos(2 * pi * i / n)), float(np.sin(2 * pi * i / n))
    return k.fma(a[1], s, a[0] * c), k.fma(a[0], -s, a[1] * c)


def transformed(k: Tracer, values: Sequence[Complex]) -> list[Complex]:
    """The transform of a few values: y[j] = sum_i x[i] exp(-2 pi sqrt(-1) i j / n)."""
    n = len(values)
    if n == 1:
        return list(values)
    if n % 2:
        return _odd(k, values)
    even, odd = transformed(k, values[::2]), transformed(k, values[1::2])
    turned = [_times_root(k, value, i, n) for i, value in enumerate(odd)]
    sums = [_plus(a, b) for a, b in zip(even, turned, strict=True)]
    return sums + [_minus(a, b) for a, b in zip(even, turned, strict=True)]


def _odd(k: Tracer, values: Sequence[Complex]) -> list[Complex]:
    """The transform of an odd number of values, by sums and differences of x[i] and x[n - i]."""
    n, first = len(values), values[0]
    pairs = [(values[i], values[n - i]) for i in range(1, n // 2 + 1)]
    sums, differences = [_plus(a, b) for a, b in pairs], [_minus(a, b) for a, b in pairs]
    total = first
    for value in sums:
        total = _plus(total, value)
    found: dict[int, Complex] = {0: total}
    for j in range(1, n // 2 + 1):
        real, imaginary = list(first), None
        for i, (plus, minus) in enumerate(zip(sums, differences, strict=True), 1):
            c, s = (float(f(2 * pi * (i * j % n) / n)) for f in (np.cos, np.sin))
            real = [k.fma(v, c, r) for v, r in zip(plus, real, strict=True)]
            imaginary = (
                [v * s for v in minus]
                if imaginary is None
                else [k.fma(v, s, r) for v, r in zip(minus, imaginary, strict=True)]
            )
        assert imaginary is not None
        found[j] = real[0] + imaginary[1], real[1] - imaginary[0]
        found[n - j] = real[0] - imaginary[1], real[1] + imaginary[0]
    return [found[j] for j in range(n)]
