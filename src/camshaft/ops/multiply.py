"""multiply: y = a * b, elementwise; both of one shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import f32
from camshaft.lang.kernel import kernel
from camshaft.lang.tracer import Array as KernelArray
from camshaft.lang.tracer import Tracer
from camshaft.ops import elementwise
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec


@kernel
def multiply_block(k: Tracer, a: KernelArray, b: KernelArray, out: KernelArray, *, columns: int, block: int) -> None:
    # y[r, c] = a[r, c] * b[r, c]
    row, first = k.program(0), k.program(1) * block
    for c in k.lanes(first, k.minimum(first + block, columns)):
        out[row, c] = a[row, c] * b[row, c]


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "multiply", specs, "a and b of one shape")
    a, b = specs
    elementwise.expect_tensor("multiply", a)
    ops.expect(b == a, "multiply", b, f"b as a is, {a}")
    return (a,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    a, b = (x.astype(np.float64) for x in inputs)
    with np.errstate(invalid="ignore"):
        return (a * b,)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    how = elementwise.cut(node.inputs[0])
    arrays = (ops.read(0, shape=how.shape), ops.read(1, shape=how.shape), ops.write(0, shape=how.shape))
    return elementwise.launch(multiply_block, how, arrays)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(4)
    for shape in elementwise.sample_shapes():
        a, b = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
        yield ops.Sample("x".join(map(str, shape)), (a, b))
    special = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    yield ops.Sample("special", (np.repeat(special, 4), np.tile(special, 4)))
    (spec, a), active = elementwise.part_of_bound(5, 33)
    yield ops.Sample("7 of 16", (a, a[::-1].copy()), specs=(spec, spec), extents=active)


def _error_samples() -> Iterable[ops.ErrorSample]:
    a = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((a, TensorSpec((9,), f32)), {}, "wanted b as a is")
    yield ops.ErrorSample((a,), {}, "wanted a")


OP = ops.Op(
    name="multiply",
    formula="y = a * b",
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("row_blocks", elementwise.BACKENDS, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-14},
    flops=lambda node: float(np.prod(node.inputs[0].bounds)),
)
