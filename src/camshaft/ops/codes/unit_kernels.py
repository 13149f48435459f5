"""Kernels of products with codes for few tokens: x as words in units, and rows of weights a unit at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from camshaft.dtypes import f32
from camshaft.lang import Array, Tracer, Value, Variable, kernel
from camshaft.ops.codes.code import number, unit_codes
from camshaft.ops.codes.weights import Weights
from camshaft.ops.quantized.operands import Tokens


@kernel
def in_units(k: Tracer, x: Array, out: Array, sums: Array, *, units: int, unit: int) -> None:
    # out[t, j, u] = x[t, u unit + j], sums[t, u] = sum_j out[t, j, u]
    t = k.program(0)
    for u in k.lanes(units):
        total = k.const(0.0, f32)
        for j in range(unit):
            value = k.gather(x, t, u * unit + j)
            out[t, j, u] = value
            total = total + value
        sums[t, u] = total


@kernel
def rows_by_unit(
    k: Tracer, x: Array, sums: Array, *rest: Any, n: int, rows: int, columns: int, bound: int, units: int, **form: Any
) -> None:
    # y[t, r] = sum_u scale[r, u] sum_j x[t, j, u] code[r, u, j] + bias[r, u] sums[t, u], `rows` rows and `columns` tokens
    arrays = 2 + bool(form["last"])
    weights, out = Weights(k, rest[:arrays], **form), rest[arrays]
    tokens, first = Tokens(k, columns, bound, rest[arrays + 1 :]), k.program(0) * rows
    mine = [first + r if n % rows == 0 else k.minimum(first + r, n - 1) for r in range(rows)]
    totals = [[k.accumulator("sum") for _ in tokens.places] for _ in mine]
    for u in k.lanes(units):
        dots = _dots(k, x, weights, mine, tokens, u)
        for row, line, found in zip(mine, totals, dots, strict=True):
            _add_scaled(k, sums, weights, (row, u), tokens, line, found)
    for r, line in enumerate(totals):
        _store(k, weights, out, (first + r, n if n % rows else None), tokens, line)


def _dots(k: Tracer, x: Array, weights: Weights, mine: Sequence[Value], tokens: Tokens, u: Value) -> list[list[Value]]:
    """The sums over unit u of each row's codes times x, by row and token."""
    kind, per = weights.kind, weights.kind.unit_words
    dots: list[list[Value]] = [[] for _ in mine]
    words = [
        [weights.codes[row, u]] if per == 1 else [k.gather(weights.codes, row, u * per + i) for i in range(per)]
        for row in mine
    ]
    codes = [unit_codes(k, found, kind) for found in words]
    for j in range(kind.unit):
        values = [x[place, j, u] for place in tokens.places]
        for line, found in zip(dots, codes, strict=True):
            weight = number(k, found[j], kind)
            line[:] = (
                [k.fma(weight, v, dot) for v, dot in zip(values, line, strict=True)]
                if j
                else [weight * v for v in values]
            )
    return dots


def _add_scaled(
    k: Tracer,
    sums: Array,
    weights: Weights,
    at: tuple[Value, Value],
    tokens: Tokens,
    totals: Sequence[Variable],
    dots: Sequence[Value],
) -> None:
    scale, bias = weights.scale(*at, per=weights.kind.unit)
    for place, total, dot in zip(tokens.places, totals, dots, strict=True):
        found = k.fma(dot, scale, total.value)
        total.set(found if bias is None else k.fma(bias, sums[place, at[1]], found))


def _store(
    k: Tracer, weights: Weights, out: Array, at: tuple[Value, int | None], tokens: Tokens, totals: Sequence[Variable]
) -> None:
    row, n = at
    inside = None if n is None else row < n
    for place, stored, total in zip(tokens.places, tokens.stored, totals, strict=True):
        found = k.lanes_sum(total)
        found = found if weights.factor is None else found * weights.factor
        condition = inside if stored is None else stored if inside is None else stored & inside
        if condition is None:
            out[place, row] = found
        else:
            with k.when(condition):
                out[place, row] = found
