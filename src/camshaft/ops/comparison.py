"""Comparisons of two tensors, logic on booleans, and choices by them: a row for each op. The frame is ops/formula.py."""

from __future__ import annotations

import numpy as np

from camshaft.ops.formula import EVERY, EXACT, Formula, family

ROWS = (
    Formula(
        "where",
        "y = a where the condition holds, else b",
        lambda k, c, a, b: k.select(c, a, b),
        np.where,
        EVERY,
        arity=3,
        conditions=1,
        tolerance=EXACT,
        structure=True,
    ),
)
OPS = family(ROWS, __name__)
