"""copy: y = x, bit for bit; and stop_gradient, which passes no gradient: to a derivative y is a constant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import bf16, boolean, f32, i32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY, NUMBERS
from camshaft.ops.elementwise import samples
from camshaft.ops.elementwise.frame import Formula, op_of
from camshaft.ops.gradient import stopped
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec


def _copy_samples() -> Iterable[ops.Sample]:
    yield from samples.samples(ROW)
    yield ops.Sample("a subnormal", (np.array([np.nan, -0.0, 1e-40], np.float32),))


ROW = Formula(
    name="copy",
    text="y = x",
    compute=lambda k, x: x,
    numpy=lambda x: x,
    dtypes=EVERY,
    arity=1,
    tolerance={f32.name: 0.0},
    draws=(samples.normal,),
    sampled=(*NUMBERS[1:], boolean),
    structure=True,
    samples=_copy_samples,
    moves=lambda node: {},
    vjp=lambda f, dy, y, x: dy,
    flops=0.0,
)
_COPY = op_of(ROW, __name__)


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


_STOP_GRADIENT = ops.Op(
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
OPS = {op.name: op for op in (_COPY, _STOP_GRADIENT)}
