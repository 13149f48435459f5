"""gather: y[i] = x[rows[i]], where x[r] is a row. An index out of bounds reads nothing and gives NaN (0 for integers)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import f32, i32, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import expect_tensor
from camshaft.ops.kernels import blocks
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec

DTYPES = (f32, i32)


@kernel
def gather_bounded(k: Tracer, x: Array, rows: Array, out: Array, *, limit: int, columns: int, block: int) -> None:
    # y[i, c] = x[rows[i], c]
    _gather(k, x, rows, out, limit, columns, block)


@kernel
def gather_active(k: Tracer, x: Array, rows: Array, out: Array, limit: ir.Value, *, columns: int, block: int) -> None:
    # y[i, c] = x[rows[i], c], rows[i] under x's active extent
    _gather(k, x, rows, out, limit, columns, block)


def _gather(k: Tracer, x: Array, rows: Array, out: Array, limit: ir.Operand, columns: int, block: int) -> None:
    i, first = k.program(0), k.program(1) * block
    stop = k.minimum(first + block, columns)
    source = rows[i].to(i64)
    with k.when((source >= 0) & (source < limit)):
        for c in k.lanes(first, stop):
            out[i, c] = x[source, c]
    with k.when((source < 0) | (source >= limit)):
        for c in k.lanes(first, stop):
            out[i, c] = float("nan") if x.dtype.is_float else 0


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "gather", specs, "x [T, d] and rows [R]")
    x, rows = specs
    expect_tensor("gather", x, DTYPES)
    ops.expect(len(x.shape) == 2, "gather", x, "x of two dimensions")
    ops.expect(rows.is_plain and rows.dtype == i32 and len(rows.shape) == 1, "gather", rows, "rows of i32 [R]")
    return (TensorSpec((rows.shape[0], x.shape[1]), x.dtype),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, rows = inputs
    inside = (rows >= 0) & (rows < len(x))
    missing = np.nan if x.dtype.kind == "f" else 0
    return (np.where(inside[:, None], x[np.where(inside, rows, 0)], missing),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, rows = node.inputs
    columns = x.bounds[1]
    block = blocks.even_block(columns)
    arrays = (ops.read(0), ops.read(1), ops.write(0))
    grid = (ops.Cells(rows.shape[0]), ops.Cells(columns, per=block))
    if isinstance(x.shape[0], Extent):
        constants = {"columns": columns, "block": block}
        return ops.Build((ops.Launch(gather_active, arrays, grid, constants, extents=(x.shape[0],)),))
    constants = {"limit": x.bounds[0], "columns": columns, "block": block}
    return ops.Build((ops.Launch(gather_bounded, arrays, grid, constants, sizes=tuple(constants)),))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(15)
    for n_rows, columns, taken in ((1, 1, 1), (5, 15, 3), (4, 16, 9), (9, 33, 2), (3, blocks.BLOCK + 1, 4)):
        x = rng.normal(size=(n_rows, columns)).astype(np.float32)
        yield ops.Sample(f"{taken} of {n_rows}x{columns}", (x, rng.integers(0, n_rows, taken, dtype=np.int32)))
    bad = np.array([0, -1, 4, 3, 2**31 - 1, -(2**31)], np.int32)
    yield ops.Sample("indexes out of bounds", (rng.normal(size=(4, 17)).astype(np.float32), bad))
    yield ops.Sample("integers", (rng.integers(-9, 9, (4, 17)).astype(np.int32), bad))
    tokens, wanted = Extent("tokens", 16), Extent("rows", 8)
    specs = (TensorSpec((tokens, 33), f32), TensorSpec((wanted,), i32))
    rows = np.array([6, 0, 7, 3, 1, 1, 1, 1], np.int32)
    yield ops.Sample(
        "4 of 7 of 16", (rng.normal(size=(16, 33)).astype(np.float32), rows), {}, specs, {tokens: 7, wanted: 4}
    )


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x,), {}, "wanted x")
    yield ops.ErrorSample((x, TensorSpec((3,), f32)), {}, "wanted rows of i32")
    yield ops.ErrorSample((TensorSpec((8,), f32), TensorSpec((3,), i32)), {}, "wanted x of two dimensions")


OP = ops.Op(
    name="gather",
    formula="y[i] = x[rows[i]]",
    parameters=Parameters("x rows"),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("row_blocks", ops.EVERYWHERE, _build),),
    indexes={1: lambda node: node.inputs[0].bounds[0]},
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0},
    nbytes=lambda node: 2.0 * node.outputs[0].nbytes,
)
