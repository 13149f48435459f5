"""copy: y = x, bit for bit but for the payload of 16-bit NaNs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from camshaft.lang.kernel import kernel
from camshaft.lang.tracing.tracer import Array as KernelArray
from camshaft.lang.tracing.tracer import Tracer
from camshaft.ops import op as ops
from camshaft.ops.elementwise import frame as elementwise
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec

DTYPES = (f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64)


@kernel
def copy_block(k: Tracer, x: KernelArray, out: KernelArray, *, columns: int, block: int) -> None:
    # y[r, c] = x[r, c]
    row, first = k.program(0), k.program(1) * block
    for c in k.lanes(first, k.minimum(first + block, columns)):
        out[row, c] = x[row, c]


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "copy", specs, "one tensor x")
    elementwise.expect_tensor("copy", specs[0], DTYPES)
    return (specs[0],)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    return (inputs[0].copy(),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    how = elementwise.cut(node.inputs[0])
    return elementwise.launch(copy_block, how, (ops.read(0, shape=how.shape), ops.write(0, shape=how.shape)))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(10)
    for shape in elementwise.sample_shapes():
        yield ops.Sample("x".join(map(str, shape)), (rng.normal(size=shape).astype(np.float32),))
    for dtype in DTYPES[1:]:
        bits = rng.integers(0, 100, 37)
        yield ops.Sample(f"37 of {dtype.name}", (bits.astype(dtype.numpy),))
    yield ops.Sample("special", (np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40], np.float32),))
    (spec, x), active = elementwise.part_of_bound(11, 33)
    yield ops.Sample("7 of 16", (x,), specs=(spec,), extents=active)


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {}, "wanted one tensor")
    yield ops.ErrorSample((TensorSpec((2, 8), boolean),), {}, "wanted a tensor of f32")


OP = ops.Op(
    name="copy",
    formula="y = x",
    parameters=Parameters("x"),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("row_blocks", elementwise.BACKENDS, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0},
)
