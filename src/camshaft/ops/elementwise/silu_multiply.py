"""silu_multiply: y = silu(gate) * up, the middle of a gated feed-forward layer (Shazeer, 2020)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, f32
from camshaft.lang import Tracer, ir
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE, to_dtype
from camshaft.ops.elementwise import samples
from camshaft.ops.elementwise.frame import Formula, op_of
from camshaft.ops.parameters import TO
from camshaft.ops.spec import TensorSpec


def _compute(k: Tracer, gate: ir.Value, up: ir.Value, to: str = "f32") -> ir.Value:
    return gate / (1.0 + k.exp(-gate)) * up


def _numpy(gate: Any, up: Any, to: str = "f32") -> Any:
    return gate / (1.0 + np.exp(-gate)) * up


def _dtype(dtype: DType, attrs: ops.Attrs) -> DType:
    return as_dtype(to_dtype("silu_multiply", TensorSpec((), dtype), attrs).dtype)


def _samples() -> Iterable[ops.Sample]:
    yield from samples.samples(ROW)
    for name in ("bf16", "f16"):
        for sample in samples.active_samples(ROW, np.random.default_rng(8)):
            yield ops.Sample(f"to {name}, {sample.name}", sample.inputs, {"to": name}, sample.specs, sample.extents)


def _error_samples() -> Iterable[ops.ErrorSample]:
    yield from samples.error_samples(ROW)
    gate = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((gate, gate), {"to": "i8"}, "wanted to f32, f16 or bf16")


def _decompose(f: Any, gate: Any, up: Any, to: str = "f32") -> Any:
    y = f.silu(gate) * up
    return y if to == "f32" else f.cast(y, to=to)


def _vjp(f: Any, dy: Any, y: Any, gate: Any, up: Any, to: str = "f32") -> tuple[Any, Any]:
    s = f.sigmoid(gate)
    silu = gate * s
    return dy * up * (s + silu * (1 - s)), dy * silu


ROW = Formula(
    name="silu_multiply",
    text="y = gate / (1 + exp(-gate)) * up",
    compute=_compute,
    numpy=_numpy,
    dtypes=(f32,),
    gives=_dtype,
    operands="gate up",
    attrs=(TO,),
    tolerance=TO_TOLERANCE,
    draws=(samples.normal,),
    structure=True,
    samples=_samples,
    error_samples=_error_samples,
    flops=5.0,
    decompose=_decompose,
    vjp=_vjp,
)
OP = op_of(ROW, __name__)
