"""argmax: the index of the greatest element of each row; ties to the smaller index, NaN counts as the lowest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.extent import Extent
from camshaft.lang.kernel import kernel
from camshaft.lang.tracer import Array as KernelArray
from camshaft.lang.tracer import Tracer
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec


@kernel
def one_row_per_program(k: Tracer, x: KernelArray, out: KernelArray, *, dim: int) -> None:
    # each lane keeps its greatest element (the first of equals) and where it was; then the lanes are compared
    row, best, where = k.program(0), k.var(float("-inf")), k.var(0, i32)
    for c in k.lanes(dim):
        value = x[row, c]
        greater = value > best.value  # false for NaN
        best.set(k.select(greater, value, best.value))
        where.set(k.select(greater, c.to(i32), where.value))
    winner = k.lanes_max(best)
    out[row] = k.lanes_min(k.select(best.value == winner, where.value, dim))


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "argmax", specs, "one tensor x [R, n]")
    x = specs[0]
    fits = x.is_plain and x.dtype == f32 and len(x.shape) == 2 and isinstance(x.shape[1], int) and x.shape[1] > 0
    ops.expect(fits, "argmax", x, "x of f32 [R, n]")
    return (TensorSpec(x.shape[:1], i32),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x = inputs[0]
    return (np.where(np.isnan(x), -np.inf, x).argmax(-1).astype(np.int32),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x = node.inputs[0]
    grid, dim = (ops.Cells(x.shape[0]),), x.bounds[1]
    return ops.Build((ops.Launch(one_row_per_program, (ops.read(0), ops.write(0)), grid, {"dim": dim}),))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(16)
    for rows, dim in ((1, 1), (9, 15), (9, 16), (9, 17), (20, 33), (3, 1000), (1, 49152)):
        yield ops.Sample(f"{rows}x{dim}", (rng.normal(size=(rows, dim)).astype(np.float32),))
    yield ops.Sample("ties", (rng.integers(0, 3, (40, 70)).astype(np.float32),))
    x = np.full((7, 40), -np.inf, np.float32)
    x[1], x[2, 3:], x[3, :39] = np.nan, np.nan, np.nan
    x[4, 17], x[5, 20:22], x[6] = -3e38, np.inf, rng.normal(size=40)
    x[6, ::2] = np.nan
    yield ops.Sample("infinities and NaN", (x,))
    wanted, x = Extent("rows", 16), rng.normal(size=(16, 33)).astype(np.float32)
    yield ops.Sample("7 of 16", (x,), {}, (TensorSpec((wanted, 33), f32),), {wanted: 7})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {}, "wanted one tensor")
    yield ops.ErrorSample((TensorSpec((8,), f32),), {}, "wanted x of f32")


OP = ops.Op(
    name="argmax",
    formula="y[r] = the least c with x[r, c] = max(x[r])",
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={},
    flops=lambda node: float(np.prod(node.inputs[0].bounds)),
)
