"""triangular_solve: X of A X = B for triangular A, column by column of B, by substitution; and what linear algebra ops share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DTYPES, DType, as_dtype, f16, f32, f64
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import same_dtype
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.scan.definition import expect_attributes
from camshaft.ops.spec import TensorSpec

PARAMETERS = Parameters("a b", (Attribute("lower", "bool", True), Attribute("unit_diagonal", "bool", False)))
FLOATS = (f32, f64)
BLOCK = 128


@kernel
def substitute(
    k: Tracer, a: Array, b: Array, x: Array, *, dtype: str, lower: bool, unit: bool, n: int, columns: int, block: int
) -> None:  # fmt: skip
    # x[i, c] = (b[i, c] - sum over j before i of a[i, j] x[j, c]) / a[i, i], i from the first row, or from the last if upper
    matrix, first = k.program(0), k.program(1) * block
    stop, left = k.minimum(first + block, columns), k.scratch(DTYPES[dtype], block)
    for step in k.range(n):
        i = step if lower else n - 1 - step
        for c in k.lanes(first, stop):
            left[c - first] = b[matrix, i, c]
        for before in k.range(step):
            j = before if lower else n - 1 - before
            factor = -a[matrix, i, j]
            for c in k.lanes(first, stop):
                left[c - first] = k.fma(factor, x[matrix, j, c], left[c - first])
        for c in k.lanes(first, stop):
            x[matrix, i, c] = left[c - first] if unit else left[c - first] / a[matrix, i, i]


def expect_matrices(op: str, spec: TensorSpec, name: str) -> None:
    """ShapeError unless the spec is [.., n, n] of no empty axis and without an Extent."""
    fits = len(spec.shape) >= 2 and spec.shape[-1] == spec.shape[-2] and 0 not in spec.bounds
    fits = fits and not any(isinstance(d, Extent) for d in spec.shape)
    ops.expect(fits, op, spec, f"{name} [.., n, n] of no empty axis and without an Extent")


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "triangular_solve", specs, "a [.., n, n] and b [.., n, m]")
    expect_attributes("triangular_solve", attrs, PARAMETERS)
    same_dtype("triangular_solve", specs, FLOATS)
    a, b = specs
    expect_matrices("triangular_solve", a, "a")
    fits = (
        len(b.shape) == len(a.shape)
        and b.shape[:-1] == a.shape[:-1]
        and isinstance(b.shape[-1], int)
        and b.bounds[-1] > 0
    )
    ops.expect(fits, "triangular_solve", b, f"b [.., n, m] with the leading axes and the rows of {a}")
    return (b,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    a, b = (x.astype(np.longdouble if x.dtype == np.float64 else np.float64) for x in inputs)
    n, lower = a.shape[-1], attrs.get("lower", True)
    x = np.zeros_like(b)
    for i in range(n) if lower else reversed(range(n)):
        before = slice(0, i) if lower else slice(i + 1, n)
        x[..., i, :] = b[..., i, :] - (a[..., i, before, None] * x[..., before, :]).sum(-2)
        if not attrs.get("unit_diagonal", False):
            x[..., i, :] /= a[..., i, i, None]
    return (x.astype(np.float64),)


def _decompose(f: Any, a: Any, b: Any, lower: bool = True, unit_diagonal: bool = False) -> Any:
    """A = D (I - N) with N^n = 0, so A^-1 B = (I + N) (I + N^2) (I + N^4) .. D^-1 B."""
    n, numpy = a.shape[-1], as_dtype(a.dtype).numpy
    one, zero = numpy.type(1), numpy.type(0)
    strict = np.tri(n, k=-1, dtype=bool) if lower else ~np.tri(n, dtype=bool)
    if not unit_diagonal:
        diagonal = f.sum(f.where(np.eye(n, dtype=bool), a, zero), axes=-1, keepdims=True)
        a, b = a / diagonal, b / diagonal
    power, x = f.where(strict, -a, zero), b
    factors = []
    for _ in range(max(n - 1, 1).bit_length()):
        factors.append(power)
        power = f.matmul(power, power)
    for factor in reversed(factors):
        x = x + f.matmul(factor, x)
    return x * one


def _vjp(f: Any, dy: Any, y: Any, a: Any, b: Any, lower: bool = True, unit_diagonal: bool = False) -> tuple[Any, Any]:
    """db = A^-T dy, and dA = -db y^T in the part of A that is read."""
    order, n = (*range(a.ndim - 2), a.ndim - 1, a.ndim - 2), a.shape[-1]
    db = f.triangular_solve(f.transpose(a, axes=order), dy, lower=not lower, unit_diagonal=unit_diagonal)
    read = np.tri(n, k=-1 if unit_diagonal else 0, dtype=bool)
    return f.where(read if lower else read.T, -f.matmul(db, y, transpose_b=True), 0), db


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    a, b = node.inputs
    n, columns, count = a.bounds[-1], b.bounds[-1], prod(a.bounds[:-2])
    constants: dict[str, Constant] = {
        "dtype": as_dtype(a.dtype).name, "lower": bool(node.attrs.get("lower", True)),
        "unit": bool(node.attrs.get("unit_diagonal", False)), "n": n, "columns": columns, "block": BLOCK,
    }  # fmt: skip
    shape = (count, n, columns)
    arrays = ops.read(0, shape=(count, n, n)), ops.read(1, shape=shape), ops.write(0, shape=shape)
    grid = ops.Cells(count), ops.Cells(columns, per=BLOCK)
    return ops.Build((ops.Launch(substitute, arrays, grid, constants, sizes=("n", "columns")),))


def draw(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> ops.Array:
    """A matrix with small elements beside a diagonal near 1, so that it is well conditioned."""
    n = shape[-1]
    made: ops.Array = rng.normal(size=shape) / (2 * n) + np.eye(n) * rng.uniform(0.5, 2, shape[-1])
    return made.astype(dtype.numpy)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(24)
    shapes = (((), 1, 1), ((), 15, 3), ((2,), 17, 16), ((2, 3), 5, 33), ((), 33, BLOCK + 1))
    for turn, (lead, n, m) in enumerate(shapes):
        attrs = {"lower": turn % 2 == 0, "unit_diagonal": turn > 2}
        given = draw(rng, f32, (*lead, n, n)), rng.normal(size=(*lead, n, m)).astype(np.float32)
        yield ops.Sample(f"{(*lead, n, m)}", given, attrs)
    yield ops.Sample("f64", (draw(rng, f64, (20, 20)), rng.normal(size=(20, 7))))


def _error_samples() -> Iterable[ops.ErrorSample]:
    a, b = TensorSpec((4, 4), f32), TensorSpec((4, 2), f32)
    yield ops.ErrorSample((a,), {}, "wanted a")
    yield ops.ErrorSample((TensorSpec((4, 3), f32), b), {}, "wanted a \\[")
    yield ops.ErrorSample((a, TensorSpec((3, 2), f32)), {}, "wanted b \\[")
    yield ops.ErrorSample((TensorSpec((4, 4), f16), TensorSpec((4, 2), f16)), {}, "wanted tensors of f32, f64")
    yield ops.ErrorSample((a, b), {"upper": True}, "wanted lower, unit_diagonal")


OP = ops.Op(
    name="triangular_solve",
    vjp=_vjp,
    formula="x = a^-1 b for triangular a; the other triangle is not read, nor the diagonal if it is unit",
    parameters=PARAMETERS,
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("substitution", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12, "f64": 1e-28},
    flops=lambda node: float(prod(node.inputs[1].bounds) * node.inputs[0].bounds[-1]),
    decompose=_decompose,
)
