"""outer: y[i, j] = a[i] b[j], rounded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, f16, f32, f64, i8, i64
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import NUMBERS, rounded, same_dtype, widened
from camshaft.ops.elementwise.binary import wrapping
from camshaft.ops.kernels import blocks
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec, bound


@kernel
def products(k: Tracer, a: Array, b: Array, out: Array, *, columns: int, block: int) -> None:
    # out[i, j] = a[i] b[j]
    row, first = k.program(0), k.program(1) * block
    factor = a[row]
    for c in k.lanes(first, k.minimum(first + block, columns)):
        out[row, c] = wrapping("multiply", k, factor, b[c])


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2 and not attrs, "outer", specs, "two vectors")
    dtype = same_dtype("outer", specs, NUMBERS)
    fits = all(len(s.shape) == 1 and s.bounds[0] > 0 for s in specs) and isinstance(specs[1].shape[0], int)
    ops.expect(fits, "outer", specs, "two vectors, the second without an Extent")
    return (TensorSpec((specs[0].shape[0], specs[1].shape[0]), dtype),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    columns = bound(node.inputs[1].shape[0])
    block = blocks.even_block(columns)
    grid = ops.Cells(node.inputs[0].shape[0]), ops.Cells(columns, per=block)
    arrays = ops.read(0), ops.read(1), ops.write(0)
    return ops.Build(
        (ops.Launch(products, arrays, grid, {"columns": columns, "block": block}, sizes=("columns", "block")),)
    )


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    with np.errstate(all="ignore"):
        return (rounded(np.multiply.outer(*map(widened, inputs)), as_dtype(inputs[0].dtype)),)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType = f32) -> ops.Array:
    return rng.integers(0, 100, shape).astype(dtype.numpy)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(21)
    for m, n in ((1, 1), (3, 33), (2, 4099)):
        yield ops.Sample(f"{m} x {n}", (_draw(rng, (m,)), _draw(rng, (n,))))
    for dtype in (f64, f16, i8, i64):
        yield ops.Sample(f"of {dtype.name}", (_draw(rng, (3,), dtype), _draw(rng, (18,), dtype)))


def _error_samples() -> Iterable[ops.ErrorSample]:
    yield ops.ErrorSample((TensorSpec((2, 8), f32),) * 2, {}, "wanted two vectors")


def _decompose(f: Any, a: Any, b: Any) -> Any:
    return a.reshape((*a.shape, 1)) * b


OP = ops.Op(
    name="outer",
    formula="y[i, j] = a[i] b[j]",
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("row_blocks", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0, "f64": 0.0},
    parameters=Parameters("a b"),
    decompose=_decompose,
)
