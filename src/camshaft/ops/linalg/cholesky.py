"""cholesky: the lower triangular L with L L^T = A, for symmetric positive definite A, by outer products of its columns.

Only the lower triangle of A is read. Where A is not positive definite, a square root of a number below 0 gives NaN from there on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, f16, f32
from camshaft.lang import Array, Constant, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import same_dtype
from camshaft.ops.linalg.triangular import FLOATS, expect_matrices
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec


@kernel
def outer_products(k: Tracer, a: Array, column: Array, out: Array, *, n: int) -> None:
    # for each j: l[i, j] = a[i, j] / sqrt(a[j, j]), then a[i, c] -= l[i, j] l[c, j] for i >= c > j
    matrix = k.program(0)
    for i in k.range(n):
        for c in k.lanes(n):
            out[matrix, i, c] = k.select(c <= i, a[matrix, i, c], 0.0)
    k.barrier()
    for j in k.range(n):
        root = k.sqrt(out[matrix, j, j])
        k.barrier()
        for i in k.lanes(j, n):
            value = k.gather(out, matrix, i, j) / root
            column[matrix, i] = value
            k.scatter(out, value, matrix, i, j)
        k.barrier()
        for i in k.range(j + 1, n):
            factor = -column[matrix, i]
            for c in k.lanes(j + 1, i + 1):
                out[matrix, i, c] = k.fma(factor, column[matrix, c], out[matrix, i, c])
        k.barrier()


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1 and not attrs, "cholesky", (*specs, *attrs), "one tensor a")
    same_dtype("cholesky", specs, FLOATS)
    expect_matrices("cholesky", specs[0], "a")
    return specs


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    (a,) = inputs
    left: ops.Array = a.astype(np.longdouble if a.dtype == np.float64 else np.float64)
    n = a.shape[-1]
    out = np.zeros_like(left)
    with np.errstate(all="ignore"):
        for j in range(n):
            out[..., j:, j] = left[..., j:, j] / np.sqrt(left[..., j, j, None])
            left[..., j:, j:] = left[..., j:, j:] - out[..., j:, j, None] * out[..., None, j:, j]
    return (out.astype(np.float64),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (a,) = node.inputs
    n, count = a.bounds[-1], prod(a.bounds[:-2])
    constants: dict[str, Constant] = {"n": n}
    arrays = ops.read(0, shape=(count, n, n)), ops.scratch(0, "update"), ops.write(0, shape=(count, n, n))
    launch = ops.Launch(outer_products, arrays, (ops.Cells(count),), constants, sizes=("n",))
    return ops.Build((launch,), (TensorSpec((count, n), as_dtype(a.dtype)),))


def _draw(rng: np.random.Generator, shape: tuple[int, ...]) -> ops.Array:
    """A A^T + n I: positive definite and well conditioned."""
    x = rng.normal(size=shape)
    made: ops.Array = x @ np.swapaxes(x, -1, -2) + shape[-1] * np.eye(shape[-1])
    return made


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(25)
    for shape in ((1, 1), (15, 15), (2, 17, 17), (2, 3, 5, 5), (33, 33)):
        yield ops.Sample(f"{shape}", (_draw(rng, shape).astype(np.float32),))
    yield ops.Sample("f64", (_draw(rng, (20, 20)),))
    upper = np.tril(_draw(rng, (9, 9))) + np.triu(np.full((9, 9), np.nan), 1)
    yield ops.Sample("the upper triangle is not read", (upper.astype(np.float32),))
    indefinite = np.diag([4.0, 1.0, -1.0, 9.0])
    yield ops.Sample("not positive definite", (indefinite.astype(np.float32),))


def _error_samples() -> Iterable[ops.ErrorSample]:
    a = TensorSpec((4, 4), f32)
    yield ops.ErrorSample((a, a), {}, "wanted one tensor a")
    yield ops.ErrorSample((TensorSpec((4, 3), f32),), {}, "wanted a \\[")
    yield ops.ErrorSample((TensorSpec((4,), f32),), {}, "wanted a \\[")
    yield ops.ErrorSample((TensorSpec((4, 4), f16),), {}, "wanted tensors of f32, f64")


def _vjp(f: Any, dy: Any, y: Any, a: Any) -> Any:
    """Of a symmetric matrix, as torch's: (S + S^T) / 2 with S = L^-T P L^-1, where P is the lower half of L^T dL."""
    n = a.shape[-1]
    half = (np.tri(n) - 0.5 * np.eye(n)).astype(as_dtype(a.dtype).numpy)
    turned = f.transpose(y, axes=(*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))
    left = f.triangular_solve(turned, f.matmul(turned, f.where(np.tri(n, dtype=bool), dy, 0)) * half, lower=False)
    back = f.transpose(left, axes=(*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))
    whole = f.triangular_solve(turned, back, lower=False)
    return (whole + f.transpose(whole, axes=(*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))) * 0.5


OP = ops.Op(
    name="cholesky",
    vjp=_vjp,
    formula="l lower triangular with l l^T = a",
    parameters=Parameters("a"),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("outer_products", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12, "f64": 1e-28},
    flops=lambda node: float(prod(node.inputs[0].bounds) * node.inputs[0].bounds[-1]) / 3,
)
