"""The attribute `to` of norms and silu_multiply: y in 16 bits, rounded to nearest, for products that read it so.

Made by graph/passes/round.py; a sum that a residual_norm gives beside y stays f32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from camshaft.dtypes import bf16, f16, f32
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec

_DTYPES = {dtype.name: dtype for dtype in (f32, f16, bf16)}
# Beside y unrounded: a step's square over 12, where a power of two begins and steps are widest; a tenth more for chance.
TOLERANCE = {"f32": 1e-12, "f16": 1.1 * 2.0**-20 / 12, "bf16": 1.1 * 2.0**-14 / 12}


def result(op: str, y: TensorSpec, attrs: Mapping[str, Any]) -> TensorSpec:
    """y as the attributes ask for it. ShapeError for another dtype."""
    name = attrs.get("to", "f32")
    ops.expect(name in _DTYPES, op, f"to {name!r}", "to f32, f16 or bf16")
    return TensorSpec(y.shape, _DTYPES[name])
