"""An activation of one tensor times another, the middle of gated layers: a row for each op. silu_multiply is one of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.dtypes import f16, f64
from camshaft.lang import Tracer, ir
from camshaft.ops.checks import FLOATS
from camshaft.ops.elementwise import samples as draws
from camshaft.ops.elementwise.frame import Formula, family
from camshaft.ops.elementwise.unary import gelu


def _gelu_multiply(k: Tracer, gate: ir.Value, up: ir.Value) -> ir.Value:
    return gelu(k, gate) * up


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.longdouble(np.pi)) * (x + 0.044715 * x**3)))


ROWS = (
    Formula(
        "sigmoid_multiply",
        "y = x / (1 + exp(-gate))",
        lambda k, x, gate: x / (1.0 + k.exp(-gate)),
        lambda x, gate: x * (1 / (1 + np.exp(-gate))),
        FLOATS,
        operands="x gate",
        draws=(draws.normal,),
        sampled=(f64, f16),
        flops=5.0,
        decompose=lambda f, x, gate: x * f.sigmoid(gate),
    ),
    Formula(
        "gelu_multiply",
        "y = gate / 2 (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) up",
        _gelu_multiply,
        lambda gate, up: _gelu(gate) * up,
        FLOATS,
        operands="gate up",
        draws=(draws.normal,),
        sampled=(f64, f16),
        flops=21.0,
        decompose=lambda f, gate, up: f.gelu(gate) * up,
    ),
)
OPS = family(ROWS, __name__)
