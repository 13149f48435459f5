"""stop_gradient: y = x, and no gradient passes: to a derivative it is a constant. It computes nothing in a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import bf16, f32, i32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.gradient import stopped
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1 and not attrs, "stop_gradient", (*specs, *attrs), "one tensor x")
    ops.expect(specs[0].is_plain and 0 not in specs[0].bounds, "stop_gradient", specs[0], "a plain tensor, none empty")
    return specs


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    return (inputs[0].copy(),)


def _samples() -> Iterable[ops.Sample]:
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    rows = Extent("rows", 3)
    yield ops.Sample("2 of 3", (x,), {}, (TensorSpec((rows, 5), f32),), {rows: 2})
    for dtype in (bf16, i32):
        yield ops.Sample(dtype.name, (x.astype(dtype.numpy),))


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {}, "wanted one tensor x")
    yield ops.ErrorSample((TensorSpec((0,), f32),), {}, "none empty")


OP = ops.Op(
    name="stop_gradient",
    formula="y = x, a constant to derivatives",
    parameters=Parameters("x"),
    infer=_infer,
    reference=_reference,
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0, "bf16": 0.0},
    decompose=lambda f, x: x,
    vjp=stopped,
)
