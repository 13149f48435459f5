"""The attribute `to`: an op's first result, computed in f32 and rounded once to f16 or bf16 as it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from camshaft.dtypes import bf16, f16, f32
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec

_DTYPES = {dtype.name: dtype for dtype in (f32, f16, bf16)}
# Rounding error against the unrounded y: step^2 / 12 at a power of two, where steps are widest, and a tenth more.
TOLERANCE = {"f32": 1e-12, "f16": 1.1 * 2.0**-20 / 12, "bf16": 1.1 * 2.0**-14 / 12}


def result(op: str, y: TensorSpec, attrs: Mapping[str, Any]) -> TensorSpec:
    """y in the dtype that `to` names. ShapeError for another dtype than f32, f16 and bf16."""
    name = attrs.get("to", "f32")
    ops.expect(name in _DTYPES, op, f"to {name!r}", "to f32, f16 or bf16")
    return TensorSpec(y.shape, _DTYPES[name])
