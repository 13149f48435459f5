"""silu: y = x * sigmoid(x) = x / (1 + e^-x)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.lang.kernel import kernel
from camshaft.lang.tracer import Array as KernelArray
from camshaft.lang.tracer import Tracer
from camshaft.ops import elementwise
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec


@kernel
def silu_block(k: Tracer, x: KernelArray, out: KernelArray, *, columns: int, block: int) -> None:
    # y[r, c] = x[r, c] / (1 + exp(-x[r, c]))
    row, first = k.program(0), k.program(1) * block
    for c in k.lanes(first, k.minimum(first + block, columns)):
        value = x[row, c]
        out[row, c] = value / (1.0 + k.exp(-value))


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "silu", specs, "one tensor x")
    elementwise.expect_tensor("silu", specs[0])
    return (specs[0],)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x = inputs[0].astype(np.float64)
    with np.errstate(all="ignore"):
        return (x / (1.0 + np.exp(-x)),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    how = elementwise.cut(node.inputs[0])
    return elementwise.launch(silu_block, how, (ops.read(0, shape=how.shape), ops.write(0, shape=how.shape)))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(6)
    for shape in elementwise.sample_shapes():
        yield ops.Sample("x".join(map(str, shape)), ((4 * rng.normal(size=shape)).astype(np.float32),))
    yield ops.Sample("special", (np.array([np.nan, np.inf, 0.0, -0.0, 80.0, 100.0], np.float32),))
    yield ops.Sample("far below zero", (np.linspace(-86, -10, 50, dtype=np.float32),))
    (spec, x), active = elementwise.part_of_bound(7, 2, 33)
    yield ops.Sample("7 of 16", (x,), specs=(spec,), extents=active)


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {}, "wanted one tensor")
    yield ops.ErrorSample((TensorSpec((2, 8), i32),), {}, "wanted a tensor of f32")


OP = ops.Op(
    name="silu",
    formula="y = x / (1 + exp(-x))",
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("row_blocks", elementwise.BACKENDS, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12},
    flops=lambda node: 4.0 * np.prod(node.inputs[0].bounds),
)
