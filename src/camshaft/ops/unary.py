"""Elementwise functions of one tensor: a row for each op. The frame is ops/formula.py."""

from __future__ import annotations

import numpy as np

from camshaft.ops import formula_samples as draws
from camshaft.ops.formula import FLOATS, Formula, family

ROWS = (
    Formula("exp", "y = e^x", lambda k, x: k.exp(x), np.exp, FLOATS, arity=1, flops=10.0),
    Formula(
        "silu",
        "y = x / (1 + exp(-x))",
        lambda k, x: x / (1.0 + k.exp(-x)),
        lambda x: x / (1 + np.exp(-x)),
        FLOATS,
        arity=1,
        structure=True,
        draws=(draws.between(40, -86),),
        flops=4.0,
    ),
)
OPS = family(ROWS, __name__)
