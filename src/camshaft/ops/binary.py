"""Elementwise arithmetic on two tensors that broadcast: a row for each op. The frame is ops/formula.py."""

from __future__ import annotations

import functools

import numpy as np

from camshaft.dtypes import i64, u64
from camshaft.lang import ir
from camshaft.lang.tracer import Tracer
from camshaft.ops.formula import EXACT, NUMBERS, Formula, family


def _wrapping(instruction: str, k: Tracer, a: ir.Value, b: ir.Value) -> ir.Value:
    """In i64 by way of u64: the language's i64 are indexes, which must not overflow."""
    if a.dtype != i64:
        return k.apply(instruction, a, b)
    return k.bitcast(k.apply(instruction, k.bitcast(a, u64), k.bitcast(b, u64)), i64)


def _arithmetic(name: str, sign: str, function: np.ufunc, structure: bool = False) -> Formula:
    return Formula(
        name,
        f"y = a {sign} b",
        functools.partial(_wrapping, name),
        function,
        NUMBERS,
        tolerance=EXACT,
        sampled=NUMBERS[1:] if structure else (),
        structure=structure,
    )


ROWS = (
    _arithmetic("add", "+", np.add, structure=True),
    _arithmetic("subtract", "-", np.subtract),
    _arithmetic("multiply", "*", np.multiply),
)
OPS = family(ROWS, __name__)
